"""A sample's graph is run: its memory is limited, and values that shapes depend on are followed."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.graphnet.archive import TEXT
from graphopt.graphs.readers.pytorch.graphnet.scalars import OPERATORS, SCALARS, computed
from graphopt.graphs.readers.pytorch.known_values import VALUE_ERRORS, KnownValues
from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in
from graphopt.graphs.readers.pytorch.program_inputs import InputSpec, make_inputs
from graphopt.graphs.readers.pytorch.program_operators import MOST_PARTS

MOST_STEPS = 4096  # of a recurrent network
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CUTS = {"split": ("split_size", "dim"), "unsafe_split": ("split_size", "dim"), "chunk": ("chunks", "dim"),
         "unsafe_chunk": ("chunks", "dim"), "tensor_split": ("sections", "dim"), "unbind": ("dim",)}  # fmt: skip
_ARITHMETIC = frozenset((*OPERATORS.values(), *SCALARS.values()))
_READS = ("item", int, float)


class Run(Interpreter):
    """On fake tensors, values that follow from stored ones are known. So numbers that are read from tensors, and
    indices by masks, have the values that they would have. Raises GraphError, which names line and call, where a call
    fails or asks for more than is given."""

    def __init__(self, gm: GraphModule, stored: Mapping[str, InputSpec]) -> None:
        super().__init__(gm)
        self.stored = stored
        self.extra_traceback = False  # errors say the line
        self.numbers: dict[Node, Any] = {}  # that were read from known tensors
        self.nesting = 0
        self.casts: list[Any] = []

    def run(self, *args: Any) -> Any:  # type: ignore[override]
        values = KnownValues()
        for node, given in zip(self.graph.find_nodes(op="placeholder"), args, strict=True):
            if isinstance(given, FakeTensor) and node.target in self.stored:
                with _disable_current_modes():
                    (value,) = make_inputs([self.stored[str(node.target)]], 0)
                values.follow(given, value)
        try:
            with values if any(isinstance(given, FakeTensor) for given in args) else nullcontext():
                return super().run(*args)
        finally:  # a call that failed leaves others' resources
            for _ in range(self.nesting):
                torch._C._functorch._vmap_decrement_nesting()
            for cast in reversed(self.casts):
                torch.amp.autocast_mode._exit_autocast(cast)  # type: ignore[no-untyped-call]

    def run_node(self, n: Node) -> Any:
        if n.op in ("placeholder", "output"):
            return super().run_node(n)
        try:
            return self._made(n)
        except Exception as error:
            said = f"fails ({' '.join(f'{type(error).__name__}: {error}'.split())[:200]})"
            said = "depends on values that are not stored" if isinstance(error, VALUE_ERRORS) else said
            said = str(error) if isinstance(error, GraphError) else said
            raise GraphError(f"{TEXT}, line {n.meta['line']}: {_name(n)} {said}") from error

    def _made(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        function = _function(n)
        check(n, args, kwargs)
        if n.target in _ARITHMETIC and not tensors_in((args, kwargs)):
            return computed(function, args, kwargs)
        memory = [
            (t.untyped_storage(), t.untyped_storage().nbytes()) for t in tensors_in(args) if "as_strided" in _name(n)
        ]
        made = function(*args, **kwargs)
        if any(storage.nbytes() != before for storage, before in memory):
            raise GraphError("makes a view that goes beyond its memory")
        if n.target in _READS and any(isinstance(t, FakeTensor) for t in tensors_in(args)):
            self.numbers[n] = made
        self._count(n, made)
        return made

    def _count(self, n: Node, made: Any) -> None:
        """Counts open resources, which a failure has to close again."""
        name = _name(n)
        self.nesting += (name == "_vmap_increment_nesting") - (name == "_vmap_decrement_nesting")
        if name == "_enter_autocast":
            self.casts.append(made)
        elif name == "_exit_autocast" and self.casts:
            self.casts.pop()


def with_numbers(gm: GraphModule, numbers: Mapping[Node, Any]) -> GraphModule:
    """The program with these numbers in place of the nodes that read them."""
    for node, number in numbers.items():
        for user in list(node.users):
            user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda x: number if x is node else x)  # noqa: B023
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def check(n: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where a call would make very many tensors, or is a method of another object than a tensor."""
    name, first = _name(n), args[0] if args else None
    if (
        n.op == "call_method"
        and not isinstance(first, Tensor)
        and not (name == "numel" and isinstance(first, torch.Size))
    ):
        raise GraphError("is a method of tensors")
    if not isinstance(first, Tensor):
        return
    if name in _RECURRENT and max(first.shape, default=0) > MOST_STEPS:
        raise GraphError(f"has more than {MOST_STEPS:,} steps")
    if name in _CUTS and first.dim():
        settings = {**dict(zip(_CUTS[name], args[1:])), **kwargs}
        size = first.shape[_whole(settings.pop("dim", 0))]
        by = next(iter(settings.values()), 1)
        by = len(by) if isinstance(by, tuple | list) else by
        parts = size if name == "unbind" else ceil(size / max(1, by)) if "split" in _CUTS[name][0] else min(by, size)
        if parts > MOST_PARTS:
            raise GraphError(f"makes {parts:,} tensors, more than {MOST_PARTS:,}")


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise GraphError("has a dimension that is no whole number")
    return value


def _function(n: Node) -> Callable[..., Any]:
    if n.op == "call_method":
        name = str(n.target)
        return lambda first, *args, **kwargs: getattr(first, name)(*args, **kwargs)
    assert callable(n.target)
    return n.target


def _name(n: Node) -> str:
    if isinstance(n.target, str):
        return n.target
    return str(getattr(n.target, "_opname", getattr(n.target, "__name__", n.target)))
