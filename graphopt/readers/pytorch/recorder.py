"""Records the primitive tensor operators that a function runs into an FX graph; fake tensors make it free of compute.

What `torch.fx.experimental.proxy_tensor.make_fx` gives with fake tensors, in a quarter of its time: one dispatch mode
on top of the fake one, and one FX node per operator.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import getitem
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode

Decompositions = dict[Any, Callable[..., Any]]
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)  # their result is their operand
_VIEW = torch.ops.aten.view.default


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Shape and dtype of a result: what `node.meta["val"]` holds where the fake tensor itself is not kept."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def record(run: Callable[..., Any], arguments: Sequence[Tensor], table: Decompositions, fake: FakeTensorMode, *,
           keep_values: bool) -> tuple[FxGraph, nn.Module]:  # fmt: skip
    """The graph of `run(*arguments)` and the module that holds its constants: `GraphModule(constants, graph)` runs it.

    Placeholders are the arguments (fake tensors of `fake`), outputs what `run` returns (a list). `table` replaces
    operators by functions of simpler ones. `keep_values` keeps a fake tensor per node in `node.meta["val"]`, else a
    `TensorMetadata`.
    """
    recorder = _Recorder(table, keep_values)
    for i, argument in enumerate(arguments):
        recorder.bind(argument, recorder.graph.placeholder(f"arg{i}_1"))
    with fake, recorder:
        results = run(*arguments)
    recorder.graph.output([recorder.node_of(t) if isinstance(t, Tensor) else t for t in results])
    return recorder.graph, recorder.constants


class _Recorder(TorchDispatchMode):
    """Every fake tensor remembers the node that made it."""

    def __init__(self, table: Decompositions, keep_values: bool) -> None:
        super().__init__()
        self.table, self.keep_values = table, keep_values
        self.graph = FxGraph()
        self.constants = nn.Module()
        self._composite: dict[Any, bool] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        simpler = self.table.get(func)
        if simpler is not None:
            with self:
                result = simpler(*args, **kwargs)
            if result is not NotImplemented:
                return result
        elif self._is_composite(func):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        inputs, options = (
            tuple(self._argument(value) for value in args),
            {key: self._argument(value) for key, value in kwargs.items()},
        )
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, ValueError):
            if func is not _VIEW or args[0].is_contiguous():
                raise
            # `table` left the operand in another memory order than the operator it stands for: copied into that order
            with self:
                return func(args[0].clone(memory_format=torch.contiguous_format), *args[1:])
        if func in _SAME:
            self.bind(result, inputs[0])
        else:
            self._record(func, inputs, options, result)
        return result

    def _is_composite(self, func: Any) -> bool:
        """Whether PyTorch itself defines the operator by others, for every device."""
        if func not in self._composite:
            key = torch._C.DispatchKey.CompositeImplicitAutograd
            aten = func.namespace == "aten"
            self._composite[func] = aten and (key in func.py_kernels or func.has_kernel_for_dispatch_key(key))
        return self._composite[func]

    def _argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.node_of(value)
        if isinstance(value, (list, tuple)):
            return [self._argument(v) for v in value]
        if isinstance(value, torch.SymInt):
            raise TypeError(f"size {value} depends on data")
        return value

    def _record(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if isinstance(result, Tensor):
            self.bind(result, self._call(func, args, kwargs))
        elif isinstance(result, (list, tuple)) and any(isinstance(r, Tensor) for r in result):
            node = self._call(func, args, kwargs)
            node.meta["val"] = tuple(self._value(r) for r in result)
            for i, part in enumerate(result):
                if isinstance(part, Tensor):
                    self.bind(part, self.graph.call_function(getitem, (node, i)))

    def _call(self, func: Any, args: Any, kwargs: Any) -> Node:
        return self.graph.create_node("call_function", func, args, kwargs, name=func._opname)

    def bind(self, tensor: Tensor, node: Node) -> None:
        tensor._recorded = (self, node)  # type: ignore[attr-defined]
        node.meta["val"] = self._value(tensor)

    def _value(self, result: Any) -> Any:
        if self.keep_values or not isinstance(result, Tensor):
            return result
        return TensorMetadata(tuple(result.shape), result.dtype)

    def node_of(self, tensor: Tensor) -> Node:
        """The node that made the tensor; tensors from outside become constants of the module."""
        recorder, node = getattr(tensor, "_recorded", (None, None))
        if recorder is not self:
            name = f"_constant{len(self.constants._buffers)}"
            self.constants.register_buffer(name, tensor)
            node = self.graph.create_node("get_attr", name)
            self.bind(tensor, node)
        assert node is not None
        return node
