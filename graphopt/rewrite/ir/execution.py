"""Programs run by torch: in the element types they state, or with all floating-point tensors in float64.

Terms that depend on weights alone are computed once, when the program is made ready. Operations outside the vocabulary
run themselves: `Program.opaque` holds an `OpaqueCall` for each key.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from graphopt.core.errors import UserError
from graphopt.rewrite.ir.terms import Program, depth_first, reachable
from graphopt.rewrite.ir.vocabulary import Operation

Array = NDArray[Any]
Value = Any  # Tensor, a tuple of them for several results, an Array for element types that torch does not have


class Executor:
    """A program made ready: call it with one array per input, in order, to get one array per output.

    double: floating-point tensors are float64 throughout. Opaque operations may round to their own type inside. device:
    of torch, on which it runs; terms that depend on weights alone are computed before, on the CPU. once: it is called
    once. Weights are read where they are used and go after their last use, so that a large model needs no memory for
    all of them in float64. Raises ValueError for inputs of the wrong number or shape.
    """

    def __init__(self, program: Program, *, double: bool = False, device: str = "cpu", once: bool = False) -> None:
        self.program, self.double, self.device = program, double, device
        if once:
            self._order, statics = depth_first(program.terms, program.outputs), dict[int, Value]()
        else:
            self._order = [term for term in program.live() if not program.terms.static[term]]
            statics = static_values(program, frontier(program), double=double)
        self._statics = {term: self._placed(value) for term, value in statics.items()}

    def __call__(self, inputs: Sequence[Array]) -> list[Array]:
        return [to_array(value) for value in self.results(self.given(inputs))]

    def results(self, given: Mapping[int, Value]) -> list[Value]:
        """The outputs, on the device, for the inputs `given`."""
        values: dict[int, Value] = {**self._statics, **given}
        order = [term for term in self._order if term not in values]
        _compute(self.program, order, values, {*self.program.outputs, *self._statics}, self.double)
        return [_widened(values[o], self.double) for o in self.program.outputs]

    def given(self, inputs: Sequence[Array]) -> dict[int, Value]:
        """Input term -> its value on the device."""
        terms, leaves = self.program.terms, self.program.inputs
        if len(inputs) != len(leaves):
            raise ValueError(f"the program takes {len(leaves)} inputs, not {len(inputs)}")
        for leaf, array in zip(leaves, inputs, strict=True):
            if np.shape(array) != terms.shape(leaf):
                name = terms.operation[leaf].params[0]
                raise ValueError(f"input {name!r} has the shape {terms.shape(leaf)}, not {np.shape(array)}")
        values = (to_value(_typed(array, terms.type_of(leaf).dtype)) for leaf, array in zip(leaves, inputs))
        return {leaf: self._placed(_widened(value, self.double)) for leaf, value in zip(leaves, values)}

    def _placed(self, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(self._placed(part) for part in value)
        return value.to(self.device) if isinstance(value, Tensor) else value


def frontier(program: Program) -> list[int]:
    """Static terms that must be known at run time: outputs, and operands of terms that are not static."""
    terms, live = program.terms, program.live()
    read = {i for term in live if not terms.static[term] for i in terms.inputs[term]}
    return sorted(term for term in {*read, *program.outputs} if terms.static[term])


def static_values(program: Program, wanted: Iterable[int], *, double: bool) -> dict[int, Value]:
    """Values of terms that depend on weights alone."""
    wanted, values = list(wanted), dict[int, Value]()
    _compute(program, reachable(program.terms, wanted), values, set(wanted), double)
    return {term: values[term] for term in wanted}


def _compute(program: Program, order: Sequence[int], values: dict[int, Value], keep: set[int], double: bool) -> None:
    """Adds the values of terms, in order; others but those to keep go after their last use."""
    inputs = program.terms.inputs
    last = {used: term for term in order for used in inputs[term]}
    with torch.inference_mode():
        for term in order:
            values[term] = _computed(program, term, values, double)
            for used in inputs[term]:
                if last[used] == term and used not in keep:
                    values.pop(used, None)


_MOVES = frozenset({"concat", "split", "transpose", "reshape"})  # they move elements alone


def _computed(program: Program, term: int, values: Mapping[int, Value], double: bool) -> Value:
    operation, terms = program.terms.operation[term], program.terms
    if operation.name == "weight":
        return to_value(program.weights[operation.params[0]])  # as narrow as it is, until something is computed of it
    inputs = [values[i] for i in terms.inputs[term]]
    if operation.name == "item":
        return inputs[0][operation.params[0]]
    if operation.name not in _MOVES:
        inputs = [_widened(value, double) for value in inputs]
    if operation.name == "opaque":
        results = program.opaque[operation.params[0]].run(inputs)
        return tuple(_widened(to_value(r), double) for r in results)
    return apply(operation, inputs, torch.float64 if double else torch.float32)


def apply(operation: Operation, inputs: Sequence[Tensor], dtype: torch.dtype = torch.float32) -> Value:
    """The result of one operation of the vocabulary (a tuple for split). dtype: of operations without operands."""
    name, params = operation.name, operation.params
    match name:
        case "fill":
            return torch.full(params[1], params[0], dtype=dtype)
        case "identity_kernel" | "mean_kernel":
            shape = params[0]
            kernel, rows = torch.zeros(shape, dtype=dtype), torch.arange(shape[0])
            if name == "mean_kernel":
                kernel[rows, rows % shape[1]] = 1 / (shape[2] * shape[3])
            else:
                kernel[rows, rows % shape[1], shape[2] // 2, shape[3] // 2] = 1
            return kernel
        case "matmul":
            return activated(params[0], torch.matmul(inputs[0], inputs[1]))
        case "conv":
            return _conv(inputs, *params)
        case "add":
            return torch.add(inputs[0], inputs[1])
        case "mul":
            return torch.mul(inputs[0], inputs[1])
        case "relu" | "tanh" | "sigmoid":
            return activated(name, inputs[0])
        case "rsqrt":
            return torch.rsqrt(inputs[0] + params[0])
        case "concat":
            return torch.cat(list(inputs), params[0])
        case "split":
            return torch.split(inputs[0], list(params[1]), params[0])
        case "transpose":
            return inputs[0].permute(params[0])
        case "reshape":
            return inputs[0].reshape(params[0])
        case "pool_max":
            whole, window, edges = _windows(inputs[0], *params)
            return F.max_pool2d(_padded(whole, edges, -torch.inf), window, params[1])
        case "pool_avg":
            return _pool_avg(inputs[0], *params)
        case "enlarge":
            h, width = ((new - old) // 2 for new, old in zip(params[0], inputs[0].shape[2:]))
            return F.pad(inputs[0], (width, width, h, h))
        case "merge_groups":
            return _merge_groups(inputs[0], *params)
        case "batch_norm":
            x, scale, bias, mean, variance = inputs
            return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, params[0])
        case "softmax":
            return torch.softmax(inputs[0], params[0])
        case "layer_norm":
            x, scale, bias = inputs
            return F.layer_norm(x, x.shape[-1:], scale, bias, params[0])
        case "gather":
            x, indices = inputs
            place: tuple[Any, ...] = (slice(None),) * params[0]
            return x[(*place, torch.remainder(indices.long(), x.shape[params[0]]))]
        case "pad":  # torch lists pairs from the last axis on
            return F.pad(inputs[0], [pad for pair in list(zip(*params))[::-1] for pad in pair])
    raise ValueError(f"torch has no operation {name!r}")


def activated(name: str, x: Tensor) -> Tensor:
    """x after an activation of the vocabulary."""
    return x if name == "none" else ACTIVATED[name](x)


ACTIVATED: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
Pair = tuple[int, int]  # (height, width)
Pads = tuple[int, int, int, int]  # (top, left, bottom, right)


def _conv(inputs: Sequence[Tensor], strides: Pair, pads: Pads, activation: str) -> Tensor:
    x, w = inputs[:2]
    bias = inputs[2] if len(inputs) == 3 else None
    same = pads[0] == pads[2] and pads[1] == pads[3]
    padded, rest = (x, (pads[0], pads[1])) if same else (_padded(x, pads, 0.0), (0, 0))
    return activated(activation, F.conv2d(padded, w, bias, strides, rest, 1, x.shape[1] // w.shape[1]))


def _padded(x: Tensor, pads: Pads, filling: float) -> Tensor:
    top, left, bottom, right = pads
    return F.pad(x, (left, right, top, bottom), value=filling) if any(pads) else x


def _windows(x: Tensor, kernel: Pair, strides: Pair, pads: Pads) -> tuple[Tensor, Pair, Pads]:
    """Operand, kernel and pads of a pooling, where an axis with a single window is cut to its extent: with `ceil_mode`
    there are windows of thousands over seven elements."""
    sizes, edges = list(kernel), [list(pads[:2]), list(pads[2:])]
    for axis in (0, 1):
        before, after, size = edges[0][axis], edges[1][axis], x.shape[2 + axis]
        if before + size + after - sizes[axis] < strides[axis]:
            sizes[axis] = min(size, sizes[axis] - before)
            x = x.narrow(2 + axis, 0, sizes[axis])
            edges[0][axis] = edges[1][axis] = 0
    return x, (sizes[0], sizes[1]), (edges[0][0], edges[0][1], edges[1][0], edges[1][1])


def _pool_avg(x: Tensor, kernel: Pair, strides: Pair, pads: Pads) -> Tensor:
    """Sums over windows by the number of elements in them that are not padding."""
    x, kernel, pads = _windows(x, kernel, strides, pads)
    sums = F.avg_pool2d(_padded(x, pads, 0.0), kernel, strides, divisor_override=1)
    if not any(pads):
        return sums / float(kernel[0] * kernel[1])
    ones = _padded(torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype), pads, 0.0)
    return sums / F.avg_pool2d(ones, kernel, strides, divisor_override=1)


def _merge_groups(w: Tensor, groups: int, count: int) -> Tensor:
    rows = w.shape[0] // groups  # output channels per group
    merged = w.new_zeros((groups // count, count, rows, count, *w.shape[1:]))
    parts = w.reshape(groups // count, count, rows, *w.shape[1:])
    for place in range(count):
        merged[:, place, :, place] = parts[:, place]
    return merged.reshape(w.shape[0], count * w.shape[1], *w.shape[2:])


def _typed(array: Array, dtype: str) -> Array:
    """The array in the element type that the program states; floating point may come in any width."""
    floating = dtype in ("float16", "float32", "float64") and np.issubdtype(np.asarray(array).dtype, np.floating)
    return np.asarray(array, dtype) if floating else np.asarray(array)


def to_value(array: Any) -> Value:
    """An array as a tensor; as it is where torch has no such element type."""
    if not isinstance(array, np.ndarray | np.generic):
        return array
    array = np.asarray(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    if 0 in array.strides and array.size > 1:  # one value for many elements; torch keeps it so
        steps = tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)
        return torch.from_numpy(array[steps].copy()).expand(array.shape)
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except TypeError:
        return array


def to_array(value: Value) -> Array:
    """A tensor as an array; one value for many elements stays so. Raises UserError for a sequence of different ones."""
    if not isinstance(value, Tensor):
        try:
            return np.asarray(value)
        except ValueError:
            raise UserError(
                "an output is a sequence of different tensors; give a model whose outputs are tensors"
            ) from None
    if value.numel() > 1 and not any(value.stride()):
        return np.broadcast_to(to_array(value[(0,) * value.dim()]), tuple(value.shape))
    if value.dtype == torch.bfloat16:
        import ml_dtypes  # comes with onnx

        return value.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.contiguous().numpy()


def _widened(value: Value, double: bool) -> Value:
    if double and isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex()):
        return value.to(torch.complex128 if value.is_complex() else torch.float64)
    return value
