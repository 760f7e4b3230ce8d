"""Any `nn.Module` to a `Graph` of primitive operators, without computing anything: traced with fake tensors.

Operators that run are recorded into an FX graph, as `torch.fx.experimental.proxy_tensor.make_fx` gives with fake
tensors, in a quarter of its time. There is one dispatch mode on top of the fake one, and one FX node per operator.
"""

# mypy: disable-error-code="no-any-return, no-untyped-call"

import os
import re
import sys
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import getitem
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.func import functional_call, functionalize
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.aten_table import decompositions
from graphopt.graphs.readers.pytorch.fx_reader import read_fx, writes
from graphopt.graphs.readers.pytorch.known_values import VALUE_ERRORS, KnownValues
from graphopt.graphs.readers.pytorch.nested_tensors import Arguments, arguments_of, loss_in, tensors_in, with_tensors
from graphopt.graphs.readers.pytorch.trace_errors import complaint, quiet, refuse_what_cannot_be_called

_decompositions = lru_cache(maxsize=1)(decompositions)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a module: its arguments with fake tensors, weights by name, and the mode that all of them share."""

    module: nn.Module
    weights: dict[str, Tensor]
    arguments: Arguments
    mode: FakeTensorMode
    values: KnownValues | None

    @property
    def given(self) -> list[Tensor]:
        """The tensors that the call depends on: weights, then inputs."""
        return [*self.weights.values(), *tensors_in(self.arguments)]

    def following(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with known values."""

        def follow(*flat: Tensor) -> Any:
            with self.values or nullcontext():
                return run(*flat)

        return follow

    def result(self, flat: Sequence[Tensor]) -> Any:
        """The module's result where `flat` stands for `given`."""
        inputs = iter(flat[len(self.weights) :])
        args, kwargs = with_tensors(self.arguments, lambda _: next(inputs))
        with unchanged(self.module):
            return functional_call(self.module, dict(zip(self.weights, flat)), args, kwargs)


def capture(module: nn.Module, example_inputs: Any, *, name: str, family: str, backward: bool,
            keep_program: bool) -> Graph:  # fmt: skip
    """The graph of one call of `module`, in evaluation mode; with `backward`, in training mode and with its gradients.

    `example_inputs` are the call's arguments as `arguments_of` reads them; of tensors in them only shapes and dtypes
    count. The module's results may be nested as deep. Backward: gradients start from the output called `loss` (a key or
    an attribute that is one number), else from all floating outputs. The gradients arriving there are graph inputs;
    those of parameters, and of inputs that require them, are further outputs. Updates of buffers (running statistics)
    are not traced. Shapes may depend on the values of inputs that are whole numbers or truth values, such as edges.
    Then the graph is that of the example's values, with a warning. `keep_program` keeps the traced `GraphModule`, whose
    placeholders are parameters, buffers, inputs, output gradients; its `meta["weights"]` has the first two by name, a
    node's `meta["source"]` is the `Source` of its call. Raises GraphError, in one sentence, when the module cannot be
    traced or its shapes depend on other values.
    """
    arguments = arguments_of(example_inputs)

    def recorded(values: KnownValues | None) -> tuple[FxGraph, nn.Module, int]:
        with unchanged(module), _plain_implementations():
            call = _prepared(module.train(backward), arguments, values)
            run, given = _functional(call, backward)
            names = {id(part): path for path, part in module.named_modules()} if keep_program else None
            return *_trace(run, given, call.mode, names), len(call.weights)

    try:
        try:
            traced, constants, weights = recorded(None)
        except VALUE_ERRORS:
            traced, constants, weights = recorded(KnownValues())
            warnings.warn(f"{name}: shapes depend on whole numbers or truth values among the inputs; they are those of "
                          "the example", stacklevel=2)  # fmt: skip
        program = GraphModule(constants, traced) if keep_program else None
    except (Exception, SystemExit) as error:
        raise GraphError(f"{name}: {complaint(error)}") from error
    if program is not None:
        program.meta["weights"] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return read_fx(traced, name=name, family=family, weights=weights, program=program)


_CONTAINERS = (dict, OrderedDict, defaultdict, list, set)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Afterwards the module has the attributes that it had, and lists, dictionaries and sets in these have their former
    contents. A module with a cache would keep fake tensors, and hand them out from then on."""
    held = list[tuple[Any, Any]]()
    ahead: list[Any] = [part.__dict__ for part in module.modules()]
    seen = set[int]()
    while ahead:
        one = ahead.pop()
        if type(one) in _CONTAINERS and id(one) not in seen:
            seen.add(id(one))
            held.append((one, copy(one)))
            ahead += one.values() if isinstance(one, dict) else one
    try:
        yield
    finally:
        for one, before in held:
            one.clear()
            one.extend(before) if isinstance(one, list) else one.update(before)


def fake_mode() -> FakeTensorMode:
    """A mode under which modules and tensors are made without memory: `with fake_mode(): module = Net()`."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def _prepared(module: nn.Module, arguments: Arguments, values: KnownValues | None) -> _Call:
    """The call with fake tensors of one mode: theirs if there is one. Tensors on `meta` are taken to the CPU. values:
    follows those of the inputs."""
    refuse_what_cannot_be_called(module)
    weights: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    modes = [t.fake_mode for t in (*weights.values(), *tensors_in(arguments)) if isinstance(t, FakeTensor)]
    mode = modes[0] if modes else fake_mode()

    def convert(value: Tensor) -> Tensor:
        if isinstance(value, FakeTensor):
            return value
        if not value.is_meta:
            return mode.from_tensor(value)
        with mode:
            made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        return made.requires_grad_(value.requires_grad)

    def input_of(value: Tensor) -> Tensor:
        made = convert(value)
        there = not (isinstance(value, FakeTensor) or value.is_meta)
        if values is not None and there and not (value.is_floating_point() or value.is_complex()):
            values.follow(made, value)
        return made

    return _Call(
        module, {key: convert(t) for key, t in weights.items()}, with_tensors(arguments, input_of), mode, values
    )


def _functional(call: _Call, backward: bool) -> tuple[Callable[..., Any], list[Tensor]]:
    """The call as a function of a flat list of tensors, and example values for it."""
    given = call.given
    if not backward:
        return torch.no_grad()(call.following(lambda *flat: _returned(call.result(flat)))), given
    wanted = [i for i, t in enumerate(given) if t.requires_grad]
    with call.mode, torch.enable_grad(), call.values or nullcontext():
        seeds = [torch.empty_like(t) for t in _starts(call.result(_leaves(given, wanted)))]
    return torch.enable_grad()(call.following(_with_gradients(call, wanted))), [
        *given,
        *(seed.detach() for seed in seeds),
    ]


def _returned(result: Any) -> list[Tensor]:
    outputs = tensors_in(result)
    if not outputs:
        raise GraphError("the module returns no tensor; return what it computes")
    return outputs


def _starts(result: Any) -> list[Tensor]:
    """Where gradients start: at the loss, if the result names one, else at all outputs that have a gradient."""
    loss = loss_in(result)
    outputs = _returned(result) if loss is None else [loss]
    return [t for t in outputs if t.is_floating_point() or t.is_complex()]


def _leaves(flat: Sequence[Tensor], wanted: list[int]) -> list[Tensor]:
    return [t.detach().requires_grad_() if i in set(wanted) else t for i, t in enumerate(flat)]


def _with_gradients(call: _Call, wanted: list[int]) -> Callable[..., Any]:
    """The call's outputs, followed by the gradients of the tensors at `wanted`; the tensors after the call's own are
    the gradients that arrive at `_starts`."""

    def run(*flat: Tensor) -> list[Tensor | None]:
        values = _leaves(flat[: len(call.given)], wanted)
        result = call.result(values)
        pairs = [(t, seed) for t, seed in zip(_starts(result), flat[len(values) :]) if t.requires_grad]
        if not pairs or not wanted:
            raise GraphError("no output depends on a parameter that is learned; leave backward away")
        gradients = torch.autograd.grad(
            [t for t, _ in pairs], [values[i] for i in wanted], [seed for _, seed in pairs], allow_unused=True
        )
        return [*_returned(result), *gradients]

    return run


def _trace(run: Callable[..., Any], arguments: list[Tensor], fake: FakeTensorMode,
           names: Mapping[int, str] | None) -> tuple[FxGraph, nn.Module]:  # fmt: skip
    """Recorded as primitive operators; where it updates tensors in place, recorded again without such updates, and
    without sources. names: paths of modules by their id, where values and sources are kept."""
    keep_values = names is not None
    graph, constants = record(run, arguments, _decompositions(), fake, keep_values=keep_values, names=names)
    if any(_updates_in_place(node) for node in graph.nodes):
        graph, constants = record(run, arguments, {}, fake, keep_values=False)
        # constants are arguments, so that writes into them do not reach the module
        held = dict(constants.named_buffers())
        pure = functionalize(partial(functional_call, GraphModule(constants, graph)))

        def again(*flat: Tensor) -> Any:
            return pure(held, flat)

        with torch.no_grad():
            graph, constants = record(again, arguments, _decompositions(), fake, keep_values=keep_values)
    return graph, constants


def _updates_in_place(node: Node) -> bool:
    """Whether the node writes into its operand, other than into a buffer that is not read again."""
    if not writes(node):
        return False
    target = node.args[0] if node.args else None
    return bool(node.users) or not isinstance(target, Node) or target.op != "placeholder"


_grouped = torch._meta_registrations._meta_grouped_mm_common


def _grouped_of_any_type(a: Tensor, b: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Fake tensors take products by groups (mixtures of experts) in bfloat16 alone, a CPU in float32, too."""
    if a.dtype not in (torch.float32, torch.float64, torch.float16):
        return _grouped(a, b, *args, **kwargs)
    return _grouped(a.to(torch.bfloat16), b.to(torch.bfloat16), *args, **kwargs).to(a.dtype)


@contextmanager
def _plain_implementations() -> Iterator[None]:
    """Without the fused CPU implementations that hide many operators in one."""
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(quiet())
        stack.enter_context(mock.patch.object(torch._meta_registrations, _grouped.__name__, _grouped_of_any_type))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)


# --- Recording.


Decompositions = dict[Any, Callable[..., Any]]
_SAME = (torch.ops.aten.detach.default, torch.ops.aten.alias.default)  # their result is their operand
_VIEW = torch.ops.aten.view.default
_CALLED = nn.Module._call_impl.__code__
_INNER = (str(Path(torch.__file__).parent), str(Path(__file__).parents[3]), "<")  # files that are nobody's model


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """Shape and dtype of a result: `node.meta["val"]` where the fake tensor itself is not kept."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Source(NamedTuple):
    """Where an operator comes from: the path of the innermost module that ran, and FILE:LINE outside of PyTorch that
    called it; empty where there is none, as of gradients."""

    module: str
    line: str


_TOLD: dict[str, dict[str, Source]] = {}  # of graphs whose programs carry no sources, by their hash
MOST_TOLD = 200


def sources(graph: Graph) -> dict[str, Source]:
    """Op name -> where it comes from, for the ops of a graph that was captured in this process with its program."""
    if not isinstance(graph.program, GraphModule):
        return _TOLD.get(graph.hash, {})
    return {node.name: node.meta["source"] for node in graph.program.graph.nodes if any(node.meta.get("source", ()))}


def tell_sources(graph: Graph, nodes: Iterable[Node]) -> None:
    """Keeps where the nodes of a graph that `torch.compile` made come from, by PyTorch's own notes."""
    found = {node.name: source for node in nodes if any(source := _noted(node))}
    if found:
        if len(_TOLD) >= MOST_TOLD:
            _TOLD.clear()
        _TOLD[graph.hash] = found


_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_PATH = re.compile(r"^L\['\w+'\]\.?")


def _noted(node: Node) -> Source:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    module = _PATH.sub("", str([*stack.values()][-1][0])) if stack else ""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    lines = [_line(file, line) for file, line in frames if not file.startswith(_INNER)]
    return Source(module, lines[-1] if lines else "")


def _line(file: str, line: object) -> str:
    """Of a file below the current folder without that."""
    return f"{file.removeprefix(f'{os.getcwd()}{os.sep}')}:{line}"


def _source(names: Mapping[int, str]) -> Source:
    """Of the present call, by the frames between here and `record`."""
    module = line = ""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code is not record.__code__ and not (module and line):
        if frame.f_code is _CALLED and not module:
            module = names.get(id(frame.f_locals["self"]), "")
        elif not line and not frame.f_code.co_filename.startswith(_INNER):
            line = _line(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return Source(module, line)


def record(run: Callable[..., Any], arguments: Sequence[Tensor], table: Decompositions, fake: FakeTensorMode, *,
           keep_values: bool, names: Mapping[int, str] | None = None) -> tuple[FxGraph, nn.Module]:  # fmt: skip
    """The graph of `run(*arguments)` and the module that holds its constants: `GraphModule(constants, graph)` runs it.

    Placeholders are the arguments (fake tensors of `fake`), outputs the results of `run` (a list). `table` replaces
    operators by functions of simpler ones. `keep_values` keeps a fake tensor per node in `node.meta["val"]`, else a
    `TensorMetadata`. names: paths of modules by their id, for `node.meta["source"]`.
    """
    recorder = _Recorder(table, keep_values, names)
    for i, argument in enumerate(arguments):
        recorder.bind(argument, recorder.graph.placeholder(f"arg{i}_1"))
    with fake, recorder:
        results = run(*arguments)
    recorder.graph.output([recorder.node_of(t) if isinstance(t, Tensor) else t for t in results])
    return recorder.graph, recorder.constants


class _Recorder(TorchDispatchMode):
    """Every fake tensor remembers the node that made it."""

    def __init__(self, table: Decompositions, keep_values: bool, names: Mapping[int, str] | None) -> None:
        super().__init__()
        self.table, self.keep_values, self.names = table, keep_values, names
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
        node = self.graph.create_node("call_function", func, args, kwargs, name=func._opname)
        if self.names is not None:
            node.meta["source"] = _source(self.names)
        return node

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
            self.constants.register_buffer(name, getattr(tensor, "_stored_values", tensor))
            node = self.graph.create_node("get_attr", name)
            self.bind(tensor, node)
        assert node is not None
        return node
