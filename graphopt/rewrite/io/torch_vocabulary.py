"""ATen operators that the vocabulary has, one function each: from a call to a term, or None where it means more."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation, TensorType


@dataclass(frozen=True)
class AtenCall:
    """One call: its arguments, types of its results, which of several are used, and the term of a node."""

    terms: Terms
    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    results: Sequence[TensorType]
    used: Collection[Any]
    term: Callable[[Any], int]

    def add(self, name: str, *params: Any, of: Sequence[int]) -> int:
        return self.terms.add(Operation(name, params), tuple(of))

    def arg(self, position: int, default: Any = None) -> Any:
        return self.args[position] if position < len(self.args) else default

    def shape(self, position: int = 0) -> tuple[int, ...]:
        return self.terms.shape(self.term(self.args[position]))

    def first(self) -> int:
        return self.term(self.args[0])


def translate(call: AtenCall) -> int | None:
    """The term; None for a call that stays opaque. Raises ShapeError where shapes do not fit."""
    rule = RULES.get(call.name)
    if rule is None or any(0 in kind.shape for kind in call.results):
        return None
    if call.name not in MOVES and call.results[0].dtype not in ("float32", "float64"):
        return None
    return rule(call)


def _unary(c: AtenCall) -> int | None:
    return c.add(c.name, of=[c.first()])


def _binary(c: AtenCall) -> int | None:
    """Of tensors, or of a tensor and a number."""
    if c.kwargs.get("alpha", 1) != 1:
        return None
    sides = [_side(c, c.args[0]), _side(c, c.args[1])]
    return None if None in sides else c.add(c.name, of=[s for s in sides if s is not None])


def _side(c: AtenCall, arg: Any) -> int | None:
    if isinstance(arg, Node):
        return c.term(arg)
    plain = c.results[0].dtype == "float32" and isinstance(arg, int | float)
    return c.add("fill", float(arg), (), of=[]) if plain else None


def _matmul(c: AtenCall) -> int | None:
    return c.add("matmul", "none", of=[c.first(), c.term(c.args[1])])


def _conv(c: AtenCall) -> int | None:
    x, w, bias, strides, pads, dilation, transposed, _, groups = c.args
    if transposed or len(c.shape()) != 4 or any(d != 1 for d in dilation) or groups * c.shape(1)[1] != c.shape()[1]:
        return None
    inputs = [c.term(x), c.term(w), *([c.term(bias)] if bias is not None else [])]
    return c.add("conv", tuple(strides), (*pads, *pads), "none", of=inputs)


def _reshape(c: AtenCall) -> int | None:
    shape = c.results[0].shape
    return c.first() if c.shape() == shape else c.add("reshape", shape, of=[c.first()])


def _expand(c: AtenCall) -> int | None:
    return c.first() if c.shape() == c.results[0].shape else None


def _permute(c: AtenCall) -> int | None:
    rank = len(c.shape())
    return _transposed(c, tuple(d % rank for d in c.args[1]))


def _transpose(c: AtenCall) -> int | None:
    rank = len(c.shape())
    order = list(range(rank))
    a, b = (0, 1) if c.name == "t" else (c.args[1] % rank, c.args[2] % rank)
    if rank > 1:
        order[a], order[b] = order[b], order[a]
    return _transposed(c, tuple(order))


def _transposed(c: AtenCall, order: tuple[int, ...]) -> int | None:
    return c.first() if order == tuple(range(len(order))) else c.add("transpose", order, of=[c.first()])


def _cat(c: AtenCall) -> int | None:
    parts = [c.term(node) for node in c.args[0]]
    axis = c.arg(1, 0) % len(c.results[0].shape)
    return parts[0] if len(parts) == 1 else c.add("concat", axis, of=parts)


def _split(c: AtenCall) -> int | None:
    axis = c.arg(2, c.kwargs.get("dim", 0)) % len(c.shape())
    sizes = tuple(kind.shape[axis] for kind in c.results)
    return c.add("split", axis, sizes, of=[c.first()])


def _max_pool(c: AtenCall) -> int | None:
    kernel, strides, pads = (_pair(c, i) for i in (1, 2, 3))
    if set(c.used) - {0} or any(d != 1 for d in c.arg(4, (1,))):
        return None
    return c.add("pool_max", kernel, strides or kernel, _grown(c, kernel, strides or kernel, pads or (0, 0)),
                 of=[c.first()])  # fmt: skip


def _avg_pool(c: AtenCall) -> int | None:
    kernel, strides, pads = (_pair(c, i) for i in (1, 2, 3))
    counted = c.arg(5, True) and any(pads)
    if counted or c.arg(6) is not None or len(c.shape()) != 4:
        return None
    return c.add("pool_avg", kernel, strides or kernel, _grown(c, kernel, strides or kernel, pads or (0, 0)),
                 of=[c.first()])  # fmt: skip


def _pair(c: AtenCall, position: int) -> tuple[int, ...]:
    values = tuple(c.arg(position, ()))
    return values * 2 if len(values) == 1 else values


def _grown(c: AtenCall, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]) -> tuple[int, ...]:
    """Padding below and to the right that lets the last windows of `ceil_mode` fit."""
    size, windows = c.shape()[2:], c.results[0].shape[2:]
    ends = [max((windows[i] - 1) * strides[i] + kernel[i] - size[i] - pads[i], pads[i]) for i in (0, 1)]
    return (*pads, *(ends if c.arg(5 if "max" in c.name else 4, False) else pads))


def _mean(c: AtenCall) -> int | None:
    """The mean over height and width is a pooling over the whole image."""
    shape = c.shape()
    if len(shape) != 4 or sorted(d % 4 for d in c.arg(1, ())) != [2, 3]:
        return None
    pooled = c.add("pool_avg", shape[2:], (1, 1), (0, 0, 0, 0), of=[c.first()])
    return pooled if c.arg(2, False) else c.add("reshape", shape[:2], of=[pooled])


def _adaptive(c: AtenCall) -> int | None:
    shape = c.shape()
    if len(shape) != 4 or tuple(c.args[1]) != (1, 1):
        return None
    return c.add("pool_avg", shape[2:], (1, 1), (0, 0, 0, 0), of=[c.first()])


def _embedding(c: AtenCall) -> int | None:
    return c.add("gather", 0, of=[c.first(), c.term(c.args[1])])


def _index_select(c: AtenCall) -> int | None:
    return c.add("gather", c.args[1] % len(c.shape()), of=[c.first(), c.term(c.args[2])]) if c.shape() else None


def _pad(c: AtenCall) -> int | None:
    """torch lists pairs from the last axis on."""
    pairs = list(zip(c.args[1][::2], c.args[1][1::2]))[::-1]
    pairs = [(0, 0)] * (len(c.shape()) - len(pairs)) + pairs
    if c.arg(2, 0) != 0 or any(min(pair) < 0 for pair in pairs):
        return None
    return c.add("pad", tuple(a for a, _ in pairs), tuple(b for _, b in pairs), of=[c.first()])


CHANGES_NOTHING = frozenset({"alias", "detach", "clone", "contiguous", "lift_fresh", "lift_fresh_copy", "_to_copy"})
# What works on any element type.
MOVES = frozenset(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "expand", "permute", "transpose", "t",
                   "cat", "split", "split_with_sizes"))  # fmt: skip
RULES: dict[str, Callable[[AtenCall], int | None]] = {
    **dict.fromkeys(("relu", "tanh", "sigmoid"), _unary),
    **dict.fromkeys(("add", "mul"), _binary),
    **dict.fromkeys(("mm", "bmm"), _matmul),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "squeeze", "unsqueeze"), _reshape),
    **dict.fromkeys(("transpose", "t"), _transpose),
    **dict.fromkeys(("split", "split_with_sizes"), _split),
    "convolution": _conv,
    "expand": _expand,
    "permute": _permute,
    "cat": _cat,
    "max_pool2d_with_indices": _max_pool,
    "avg_pool2d": _avg_pool,
    "mean": _mean,
    "_adaptive_avg_pool2d": _adaptive,
    "embedding": _embedding,
    "index_select": _index_select,
    "constant_pad_nd": _pad,
}
