"""The operators that rewriting understands: parameters, arity, shape inference. All others are `opaque`.

An `Operation` is an operator with its parameters fixed, e.g. conv with strides (1, 1). It makes one tensor, except
`split` and some `opaque` ones, whose results `item` picks. Text form, as rules write it: `(conv [1,1] [0,0,0,0] none
?x ?w)`, parameters before inputs.

| operator | parameters | inputs -> result |
|---|---|---|
| input, weight | name, shape, dtype | a leaf; weights are known before the program runs |
| fill | value, shape | every element is the value |
| identity_kernel | shape (O, I, h, w) | the conv kernel that returns its input: 1 at its centre where i = o mod I |
| mean_kernel | shape (O, I, h, w) | the conv kernel that averages a window: 1 / (h w) everywhere where i = o mod I |
| matmul | activation | [..., m, k], [..., k, n] -> [..., m, n], numpy's rules |
| conv | strides (h, w), pads (top, left, bottom, right), activation | [B, C, H, W], [O, C / groups, h, w], a bias [O] |
| add, mul | | elementwise, numpy's broadcasting |
| relu, tanh, sigmoid | | elementwise |
| rsqrt | epsilon | 1 / sqrt(x + epsilon), elementwise |
| concat | axis | tensors that differ at most along the axis |
| split | axis, sizes | the parts, in order |
| item | index | one result of an operation that makes several |
| transpose | permutation | |
| reshape | shape | |
| pool_max, pool_avg | kernel (h, w), strides, pads | [B, C, H, W]; padding is no maximum, and means do not count it |
| enlarge | (h, w) | a conv kernel in the middle of zeros; the sizes grow by even numbers |
| merge_groups | groups, count | the kernel of a conv of so many groups, for one of groups / count: zeros between them |
| batch_norm | epsilon | x, scale, bias, mean, variance [C]; axis 1 of x (inference) |
| opaque | key, types of the results | anything; the program keeps what the key stands for |
| softmax | axis | exponentials along the axis over their sum |
| layer_norm | epsilon | x, scale [n], bias [n]: over the last axis, of n elements |
| gather | axis | x, indices: in place of the axis, what x has at each index, which counts modulo the axis's size |
| pad | before, after | zeros along each axis, so many before and after |

The number of groups of a conv is channels / kernel channels, as in TASO. Axes count from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

Shape = tuple[int, ...]
ACTIVATIONS = ("none", "relu", "sigmoid", "tanh")


class TensorType(NamedTuple):
    """The type of a tensor, known before it is computed."""

    shape: Shape
    dtype: str = "float32"


class ShapeError(ValueError):
    """An operation does not take these inputs; the message says why."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of the table above with its parameters."""

    name: str
    params: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.name, *(text_of(param) for param in self.params)])


class Signature(NamedTuple):
    """The signature of an operator: names of its parameters, how many inputs (least and most)."""

    params: tuple[str, ...]
    least: int
    most: int


def text_of(param: Any) -> str:
    """A parameter as rules write it: `3`, `none`, `[1,1]`."""
    return "[" + ",".join(map(text_of, param)) + "]" if isinstance(param, tuple) else str(param)


def infer(operation: Operation, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Types of the results. Raises ShapeError for inputs or parameters that do not fit."""
    signature = VOCABULARY.get(operation.name)
    if signature is None:
        raise ShapeError(f"no operator {operation.name!r}; there are {', '.join(VOCABULARY)}")
    if len(operation.params) != len(signature.params):
        raise ShapeError(f"{operation.name} takes the parameters ({', '.join(signature.params)}), not {operation}")
    if not signature.least <= len(inputs) <= signature.most:
        raise ShapeError(f"{operation.name} takes {signature.least} to {signature.most} inputs, not {len(inputs)}")
    return _inferred(operation.name, operation.params, inputs)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ShapeError(message)


def _inferred(name: str, params: tuple[Any, ...], inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    shape, dtype = inputs[0] if inputs else ((), "")
    match name:
        case "add" | "mul":
            return (TensorType(broadcast(shape, inputs[1].shape), _dtype(inputs)),)
        case "relu" | "tanh" | "sigmoid" | "rsqrt":
            return (inputs[0],)
        case "matmul":
            _activation(params[0])
            a, b = shape, inputs[1].shape
            _require(len(a) >= 2 and len(b) >= 2, f"matmul needs matrices, not {a} and {b}")
            _require(a[-1] == b[-2], f"matmul of {a} and {b}: {a[-1]} columns meet {b[-2]} rows")
            return (TensorType((*broadcast(a[:-2], b[:-2]), a[-2], b[-1]), _dtype(inputs)),)
        case "conv":
            strides, pads, activation = params
            _activation(activation)
            x, w = shape, inputs[1].shape
            _require(len(x) == 4 and len(w) == 4, f"conv needs four dimensions, not {x} and {w}")
            whole = w[1] > 0 and x[1] % w[1] == 0
            _require(whole, f"conv of {x} with kernels {w}: the channels do not make whole groups")
            _require(w[0] % (x[1] // w[1]) == 0, f"conv of {x} with kernels {w}: the kernels do not make whole groups")
            bias = inputs[2].shape if len(inputs) == 3 else (w[0],)
            _require(bias == (w[0],), f"conv with {w[0]} kernels takes a bias ({w[0]},), not {bias}")
            return (TensorType((x[0], w[0], *_window(x[2:], w[2:], strides, pads)), _dtype(inputs)),)
        case "concat":
            (axis,) = params
            shapes = [i.shape for i in inputs]
            _require(0 <= axis < len(shape), f"concat along axis {axis} of {shape}")
            rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes if len(s) == len(shape)}
            _require(len(rest) == 1 and all(len(s) == len(shape) for s in shapes), f"concat along {axis} of {shapes}")
            return (TensorType((*shape[:axis], sum(s[axis] for s in shapes), *shape[axis + 1 :]), _dtype(inputs)),)
        case "split":
            axis, sizes = params
            _require(0 <= axis < len(shape) and len(sizes) > 0 and min(sizes) > 0 and sum(sizes) == shape[axis],
                     f"split of {shape} along axis {axis} into {sizes}")  # fmt: skip
            return tuple(TensorType((*shape[:axis], size, *shape[axis + 1 :]), dtype) for size in sizes)
        case "transpose":
            _require(sorted(params[0]) == list(range(len(shape))), f"transpose of {shape} by {params[0]}")
            return (TensorType(tuple(shape[axis] for axis in params[0]), dtype),)
        case "reshape":
            _require(prod(shape) == prod(params[0]), f"reshape of {shape} to {params[0]}")
            return (TensorType(params[0], dtype),)
        case "pool_max" | "pool_avg":
            kernel, strides, pads = params
            _require(len(shape) == 4, f"pooling needs four dimensions, not {shape}")
            hidden = max(pads[0], pads[2]) >= kernel[0] or max(pads[1], pads[3]) >= kernel[1]
            _require(not hidden, f"pads {pads} hide {kernel}")
            return (TensorType((*shape[:2], *_window(shape[2:], kernel, strides, pads)), dtype),)
        case "enlarge":
            (size,) = params
            _require(len(shape) == 4, f"enlarge needs a conv kernel, not {shape}")
            grown = [new - old for new, old in zip(size, shape[2:], strict=True)]
            _require(all(g >= 0 and g % 2 == 0 for g in grown), f"enlarge of {shape} to {size}")
            return (TensorType((*shape[:2], *size), dtype),)
        case "merge_groups":
            groups, count = params
            _require(len(shape) == 4 and min(params) > 0 and shape[0] % groups == 0 and groups % count == 0,
                     f"merge_groups of {shape}: {groups} groups by {count}")  # fmt: skip
            return (TensorType((shape[0], shape[1] * count, *shape[2:]), dtype),)
        case "batch_norm":
            _require(len(shape) >= 2, f"batch_norm needs channels, not {shape}")
            vectors = all(i.shape == (shape[1],) for i in inputs[1:])
            _require(vectors, f"batch_norm of {shape} needs vectors of {shape[1]}")
            return (inputs[0],)
        case "softmax":
            _require(0 <= params[0] < len(shape), f"softmax along axis {params[0]} of {shape}")
            return (inputs[0],)
        case "layer_norm":
            _require(len(shape) >= 1 and all(i.shape == shape[-1:] for i in inputs[1:]),
                     f"layer_norm of {shape} needs vectors of its last axis")  # fmt: skip
            return (TensorType(shape, _dtype(inputs)),)
        case "gather":
            (axis,) = params
            _require(0 <= axis < len(shape), f"gather along axis {axis} of {shape}")
            return (TensorType((*shape[:axis], *inputs[1].shape, *shape[axis + 1 :]), dtype),)
        case "pad":
            before, after = params
            _require(len(before) == len(after) == len(shape) and min((*before, *after), default=0) >= 0,
                     f"pad of {shape} by {before} and {after}")  # fmt: skip
            return (TensorType(tuple(map(sum, zip(before, shape, after))), dtype),)
        case "opaque":
            return tuple(TensorType(*result) for result in params[1])
        case "input" | "weight":
            return (TensorType(params[1], params[2]),)
        case "fill":
            return (TensorType(params[1]),)
        case "identity_kernel" | "mean_kernel":
            made = params[0]
            _require(len(made) == 4 and made[0] % made[1] == 0, f"no kernel of shape {made}")
            centred = name == "mean_kernel" or all(side % 2 for side in made[2:])
            _require(centred, f"an identity kernel has a centre, {made} has none")
            return (TensorType(made),)
    raise ShapeError("item picks a result of an operation that makes several: use Terms.add")


def _activation(name: Any) -> None:
    if name not in ACTIVATIONS:
        raise ShapeError(f"no activation {name!r}; there are {', '.join(ACTIVATIONS)}")


def _dtype(inputs: Sequence[TensorType]) -> str:
    if len({i.dtype for i in inputs}) > 1:
        raise ShapeError(f"element types differ: {', '.join(i.dtype for i in inputs)}")
    return inputs[0].dtype


def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape of an elementwise result. Raises ShapeError."""
    longer, shorter = (a, b) if len(a) >= len(b) else (b, a)
    shorter = (1,) * (len(longer) - len(shorter)) + shorter
    if not all(x == y or x == 1 or y == 1 for x, y in zip(longer, shorter)):
        raise ShapeError(f"{a} and {b} do not broadcast")
    return tuple(y if x == 1 else x for x, y in zip(longer, shorter))


def _window(size: Shape, kernel: Shape, strides: Shape, pads: Shape) -> Shape:
    """Positions of a window along height and width."""
    room = (size[0] + pads[0] + pads[2] - kernel[0], size[1] + pads[1] + pads[3] - kernel[1])
    if min(room) < 0 or min(strides) <= 0 or min(pads) < 0:
        raise ShapeError(f"a window {kernel} with strides {strides} and pads {pads} does not fit {size}")
    return (room[0] // strides[0] + 1, room[1] // strides[1] + 1)


MANY = 1 << 30

VOCABULARY: dict[str, Signature] = {
    "input": Signature(("name", "shape", "dtype"), 0, 0),
    "weight": Signature(("name", "shape", "dtype"), 0, 0),
    "fill": Signature(("value", "shape"), 0, 0),
    "identity_kernel": Signature(("shape",), 0, 0),
    "mean_kernel": Signature(("shape",), 0, 0),
    "matmul": Signature(("activation",), 2, 2),
    "conv": Signature(("strides", "pads", "activation"), 2, 3),
    "add": Signature((), 2, 2),
    "mul": Signature((), 2, 2),
    "relu": Signature((), 1, 1),
    "tanh": Signature((), 1, 1),
    "sigmoid": Signature((), 1, 1),
    "rsqrt": Signature(("epsilon",), 1, 1),
    "concat": Signature(("axis",), 1, MANY),
    "split": Signature(("axis", "sizes"), 1, 1),
    "item": Signature(("index",), 1, 1),
    "transpose": Signature(("permutation",), 1, 1),
    "reshape": Signature(("shape",), 1, 1),
    "pool_max": Signature(("kernel", "strides", "pads"), 1, 1),
    "pool_avg": Signature(("kernel", "strides", "pads"), 1, 1),
    "enlarge": Signature(("size",), 1, 1),
    "merge_groups": Signature(("groups", "count"), 1, 1),
    "batch_norm": Signature(("epsilon",), 5, 5),
    "opaque": Signature(("key", "types"), 0, MANY),
    "softmax": Signature(("axis",), 1, 1),
    "layer_norm": Signature(("epsilon",), 3, 3),
    "gather": Signature(("axis",), 2, 2),
    "pad": Signature(("before", "after"), 1, 1),
}


ACTIVATION_FLOP = {"none": 0.0, "relu": 1.0, "sigmoid": 12.0, "tanh": 16.0}  # per element, as of core.operators


def window_flop(operation: Operation, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
    """FLOP of matmul, conv and pooling, a multiply-add being two; None for all others."""
    out = float(prod(results[0].shape))
    match operation.name:
        case "matmul":
            return out * (2.0 * inputs[0].shape[-1] + ACTIVATION_FLOP[operation.params[0]])
        case "conv":
            bias = len(inputs) == 3
            return out * (2.0 * prod(inputs[1].shape[1:]) + bias + ACTIVATION_FLOP[operation.params[2]])
        case "pool_max" | "pool_avg":
            return out * float(prod(operation.params[0]))
    return None
