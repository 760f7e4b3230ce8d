"""A sample's graph is run: what it asks for is limited, and values that shapes depend on are followed."""

import operator
import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.graphnet.archive import TEXT
from graphopt.graphs.readers.pytorch.graphnet.scalars import IN_PLACE, OPERATORS, SCALARS, computed
from graphopt.graphs.readers.pytorch.known_values import VALUE_ERRORS, constant_of
from graphopt.graphs.readers.pytorch.nested_tensors import tensors_in
from graphopt.graphs.readers.pytorch.program_inputs import InputSpec, make_inputs
from graphopt.graphs.readers.pytorch.program_operators import MOST_PARTS

MOST_KNOWN = 2**18  # elements of a tensor whose values are followed
MOST_STEPS = 4096  # of a recurrent network
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
_CUTS = {"split": ("split_size", "dim"), "unsafe_split": ("split_size", "dim"), "chunk": ("chunks", "dim"),
         "unsafe_chunk": ("chunks", "dim"), "tensor_split": ("sections", "dim"), "unbind": ("dim",)}  # fmt: skip
_ARITHMETIC = frozenset((*OPERATORS.values(), *SCALARS.values()))
_INDEXES = (operator.getitem, operator.setitem, "__getitem__", "index_put", "index_put_")
_INTO = frozenset((operator.setitem, *IN_PLACE.values()))
_DRAWN = re.compile("rand|bernoulli|multinomial|normal|uniform|dropout|empty|exponential|cauchy|geometric"
                    "|poisson|binomial|rrelu|gumbel")  # whose values no run repeats  # fmt: skip


class Run(Interpreter):
    """On fake tensors, small tensors that follow from stored values are computed beside them (`known`). So numbers that
    are read from tensors, and indices by masks, have the values that they would have. Raises GraphError, which names
    line and call, where a call fails or asks for more than is given."""

    def __init__(self, gm: GraphModule, stored: Mapping[str, InputSpec]) -> None:
        super().__init__(gm)
        self.stored = stored
        self.extra_traceback = False  # errors say the line
        self.known: dict[Node, Any] = {}
        self.numbers: dict[Node, Any] = {}  # that were read from known tensors
        self.nesting = 0
        self.casts: list[Any] = []

    def run(self, *args: Any) -> Any:  # type: ignore[override]
        try:
            return super().run(*args)
        finally:  # a call that failed leaves what others opened
            for _ in range(self.nesting):
                torch._C._functorch._vmap_decrement_nesting()
            for cast in reversed(self.casts):
                torch.amp.autocast_mode._exit_autocast(cast)  # type: ignore[no-untyped-call]

    def run_node(self, n: Node) -> Any:
        if n.op in ("placeholder", "output"):
            made = super().run_node(n)
            if isinstance(made, FakeTensor) and n.target in self.stored:
                with _disable_current_modes():
                    (self.known[n],) = make_inputs([self.stored[str(n.target)]], 0)
            return made
        try:
            return self._made(n)
        except Exception as error:
            foreseen = isinstance(error, GraphError)
            said = str(error) if foreseen else f"fails ({' '.join(f'{type(error).__name__}: {error}'.split())[:200]})"
            raise GraphError(f"{TEXT}, line {n.meta['line']}: {_name(n)} {said}") from error

    def _made(self, n: Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        function = _function(n)
        check(n, args, kwargs)
        if n.target in _ARITHMETIC and not tensors_in((args, kwargs)):
            return computed(function, args, kwargs)
        if n.target == "item" or (n.target in (int, float) and tensors_in(args)):
            return self._number(n, args[0], function)
        args, kwargs = self._with_indices(n, args), self._with_length(n, args, kwargs)
        memory = [
            (t.untyped_storage(), t.untyped_storage().nbytes()) for t in tensors_in(args) if "as_strided" in _name(n)
        ]
        try:
            made = function(*args, **kwargs)
        except VALUE_ERRORS as error:
            return self._computed(n, function, args, error)
        if any(storage.nbytes() != before for storage, before in memory):
            raise GraphError("makes a view that goes beyond its memory")
        self._count(n, made)
        self._follow(n, made, function)
        return made

    def _count(self, n: Node, made: Any) -> None:
        """What a failure has to close again."""
        name = _name(n)
        self.nesting += (name == "_vmap_increment_nesting") - (name == "_vmap_decrement_nesting")
        if name == "_enter_autocast":
            self.casts.append(made)
        elif name == "_exit_autocast" and self.casts:
            self.casts.pop()

    # --- Values beside fake tensors.

    def _number(self, n: Node, tensor: Any, function: Callable[..., Any]) -> Any:
        if not isinstance(tensor, FakeTensor):
            return function(tensor)
        known = self.known.get(n.all_input_nodes[0])
        if known is None:
            raise GraphError("reads a number of a tensor whose values are not stored")
        with _disable_current_modes():
            self.numbers[n] = function(known)
        return self.numbers[n]

    def _with_indices(self, n: Node, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Masks whose values are known become the positions where they hold."""
        if (
            _target(n) not in _INDEXES
            or len(args) < 2
            or not tensors_in(args[1])
            or not isinstance(args[0], FakeTensor)
        ):
            return args
        values = map_arg(n.args[1], lambda node: self.known.get(node, self.env[node]))
        several = args[1] if isinstance(args[1], tuple | list) else (args[1],)
        beside = values if isinstance(values, tuple | list) else (values,)
        parts: list[Any] = []
        for part, value in zip(several, beside):
            mask = isinstance(part, FakeTensor) and part.dtype is torch.bool
            if not mask or isinstance(value, FakeTensor) or (_target(n) is operator.setitem and len(several) == 1):
                parts.append(part)
                continue
            with _disable_current_modes():
                places = value.nonzero(as_tuple=True)
            parts += [constant_of(place, args[0].fake_mode) for place in places]
        return (args[0], type(args[1])(parts) if isinstance(args[1], list) else tuple(parts), *args[2:])

    def _with_length(self, n: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The length of what is repeated as often as a tensor says, where its values are known."""
        counts = n.args[1] if _name(n) == "repeat_interleave" and len(n.args) > 1 else None
        known = self.known.get(counts) if isinstance(counts, Node) else None
        return dict(kwargs) if known is None else {**kwargs, "output_size": int(known.sum())}

    def _computed(self, n: Node, function: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> Any:
        """What only values can tell, if they are known: a constant of the graph."""
        if not self._all_known(n) or any(t.numel() > MOST_KNOWN for t in tensors_in(args)):
            raise GraphError("depends on values that are not stored") from error
        values, settings = self._values(n)
        with _disable_current_modes():
            made = function(*values, **settings)
        self.known[n] = made
        mode = next(t.fake_mode for t in tensors_in(args) if isinstance(t, FakeTensor))
        return tree_map_only(Tensor, lambda t: constant_of(t, mode), made)

    def _follow(self, n: Node, made: Any, function: Callable[..., Any]) -> None:
        tensors = tensors_in(made)
        small = all(isinstance(t, FakeTensor) and t.numel() <= MOST_KNOWN for t in tensors)
        repeats = not _DRAWN.search(_name(n))
        if tensors and small and repeats and self._all_known(n) and not torch.is_autocast_enabled("cpu"):
            values, settings = self._values(n)
            with _disable_current_modes(), torch.no_grad():
                self.known[n] = function(*values, **settings)
        elif _writes(n) and n.all_input_nodes and n.all_input_nodes[0] in self.known:
            self.known.clear()  # views of it may be known too

    def _all_known(self, n: Node) -> bool:
        return all(node in self.known or not tensors_in(self.env[node]) for node in n.all_input_nodes)

    def _values(self, n: Node) -> tuple[Any, Any]:
        return map_arg((n.args, n.kwargs), lambda node: self.known.get(node, self.env[node]))


def with_numbers(gm: GraphModule, numbers: Mapping[Node, Any]) -> GraphModule:
    """The program with these numbers in place of the nodes that read them."""
    for node, number in numbers.items():
        for user in list(node.users):
            user.args, user.kwargs = map_arg((user.args, user.kwargs), lambda x: number if x is node else x)  # noqa: B023
        gm.graph.erase_node(node)
    gm.recompile()
    return gm


def check(n: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where a call would make very many tensors, or is a method of what is no tensor."""
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


def _target(n: Node) -> Any:
    return n.target if n.target in (operator.getitem, operator.setitem) else _name(n)


def _writes(n: Node) -> bool:
    name = _name(n)
    in_place = name.endswith("_") and not name.endswith("__")
    in_place |= name.startswith("__i") and name != "__invert__"
    return n.target in _INTO or in_place or n.kwargs.get("inplace") is True
