"""The meaning of every operation, on exact integers: the oracle of rule verification and of tests.

Tensors are int64 arrays of small values, so that sums and products are exact. Operations without an integer meaning are
replaced by others that keep every identity rules may use, and no other:
- tanh and sigmoid, and 1 / sqrt(x + epsilon) in rsqrt and batch_norm, are uninterpreted functions: fixed hashes of
  their argument.
- softmax and layer_norm are uninterpreted functions of an element, less what shifts do not change, and of the sum of
  such functions along the axis. So the order of the elements does not matter.
- The mean over a window is taken of values scaled by the least common multiple of all windows' counts, so pool_avg is
  linear and exact; mean_kernel is scaled alike. Two sides of a rule must therefore average equally often on every
  path, as all true ones do.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from math import lcm
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from graphopt.rewrite.ir.terms import Program, Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation

Array = NDArray[np.int64]
LEAST = -(1 << 40)  # below every value that is met: padding of pool_max


def run(terms: Terms, outputs: Sequence[int], leaves: Mapping[int, Array]) -> list[Array]:
    """Values of the outputs. leaves: the value of every input and weight that they need."""
    values: dict[int, Any] = {}
    for term in reachable(terms, outputs):
        operation = terms.operation[term]
        if term in leaves:
            values[term] = leaves[term]
        elif operation.name == "item":
            values[term] = values[terms.inputs[term][0]][operation.params[0]]
        else:
            values[term] = apply(operation, [values[i] for i in terms.inputs[term]])
    return [values[o] for o in outputs]


def random_leaves(program: Program, rng: np.random.Generator, bound: int = 4) -> dict[int, Array]:
    """Integers in [-bound, bound] for every input and weight of a program."""
    terms = program.terms
    return {term: rng.integers(-bound, bound + 1, terms.shape(term))
            for term in program.live() if terms.operation[term].name in ("input", "weight")}  # fmt: skip


def apply(operation: Operation, inputs: Sequence[Array]) -> Any:
    """The result of one operation (a tuple for split)."""
    name, params = operation.name, operation.params
    match name:
        case "fill":
            return np.full(params[1], params[0], np.int64)
        case "identity_kernel" | "mean_kernel":
            return kernel_of(name, params[0])
        case "matmul":
            return activated(params[0], np.matmul(inputs[0], inputs[1]))
        case "conv":
            return activated(params[2], conv(inputs, params[0], params[1]))
        case "add":
            return inputs[0] + inputs[1]
        case "mul":
            return inputs[0] * inputs[1]
        case "relu" | "tanh" | "sigmoid":
            return activated(name, inputs[0])
        case "rsqrt":
            return rsqrt(inputs[0], params[0])
        case "concat":
            return np.concatenate(inputs, params[0])
        case "split":
            return tuple(np.split(inputs[0], np.cumsum(params[1])[:-1], params[0]))
        case "transpose":
            return inputs[0].transpose(params[0])
        case "reshape":
            return inputs[0].reshape(params[0])
        case "pool_max" | "pool_avg":
            return pool(name, inputs[0], *params)
        case "enlarge":
            grown = [(new - old) // 2 for new, old in zip(params[0], inputs[0].shape[2:])]
            return np.pad(inputs[0], ((0, 0), (0, 0), *((side, side) for side in grown)))
        case "merge_groups":
            return merge_groups(inputs[0], *params)
        case "batch_norm":
            return batch_norm(inputs, params[0])
        case "softmax":
            return softmax(inputs[0], params[0])
        case "layer_norm":
            return layer_norm(inputs, params[0])
        case "gather":
            return np.take(inputs[0], inputs[1], params[0], mode="wrap")
        case "pad":
            return np.pad(inputs[0], list(zip(*params)))
    raise ValueError(f"{name} has no meaning on integers; opaque operations cannot be verified")


def activated(name: str, x: Array) -> Array:
    if name == "none":
        return x
    return np.maximum(x, 0) if name == "relu" else scrambled(x, {"tanh": 3, "sigmoid": 4}[name])


def scrambled(x: Array, salt: int) -> Array:
    """An uninterpreted function: small integers that look random, the same for the same argument and salt.

    Salts are such that 0 does not become 0: a rule that moves a function past zeros must be found out.
    """
    mixed = (x.astype(np.uint64) + np.uint64(salt)) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    return ((mixed >> np.uint64(40)) % np.uint64(15)).astype(np.int64) - 7


def conv(inputs: Sequence[Array], strides: tuple[int, int], pads: tuple[int, int, int, int]) -> Array:
    x, w = inputs[0], inputs[1]
    groups = x.shape[1] // w.shape[1]
    windows = windows_of(x, w.shape[2:], strides, pads, 0)
    b, _, h, width = windows.shape[:4]
    windows = windows.reshape(b, groups, w.shape[1], h, width, *w.shape[2:])
    kernels = w.reshape(groups, -1, *w.shape[1:])
    out = np.einsum("bgihwyx,goiyx->bgohw", windows, kernels).reshape(b, w.shape[0], h, width)
    return np.asarray(out + inputs[2][:, None, None] if len(inputs) == 3 else out)


def windows_of(x: Array, kernel: Sequence[int], strides: tuple[int, int], pads: tuple[int, int, int, int],
               filled: int) -> Array:  # fmt: skip
    """[B, C, H', W', h, w] the elements under each position of the window."""
    top, left, bottom, right = pads
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=filled)
    return sliding_window_view(padded, tuple(kernel), (2, 3))[:, :, :: strides[0], :: strides[1]]  # type: ignore[call-overload,no-any-return]


def pool(name: str, x: Array, kernel: tuple[int, int], strides: tuple[int, int],
         pads: tuple[int, int, int, int]) -> Array:  # fmt: skip
    if name == "pool_max":
        return np.asarray(windows_of(x, kernel, strides, pads, LEAST).max((4, 5)))
    counts = windows_of(np.ones((1, 1, *x.shape[2:]), np.int64), kernel, strides, pads, 0).sum((4, 5))
    return np.asarray(windows_of(x, kernel, strides, pads, 0).sum((4, 5)) * (every_count(kernel) // counts))


def every_count(kernel: Sequence[int]) -> int:
    """The least common multiple of how many elements a window can hold."""
    return reduce(lcm, range(1, kernel[0] * kernel[1] + 1))


def kernel_of(name: str, shape: tuple[int, ...]) -> Array:
    kernel, rows = np.zeros(shape, np.int64), np.arange(shape[0])
    if name == "identity_kernel":
        kernel[rows, rows % shape[1], shape[2] // 2, shape[3] // 2] = 1
    else:
        kernel[rows, rows % shape[1]] = every_count(shape[2:]) // (shape[2] * shape[3])
    return kernel


def merge_groups(w: Array, groups: int, count: int) -> Array:
    merged = np.zeros((w.shape[0], w.shape[1] * count, *w.shape[2:]), w.dtype)
    for row in range(w.shape[0]):
        place = row // (w.shape[0] // groups) % count
        merged[row, place * w.shape[1] : (place + 1) * w.shape[1]] = w[row]
    return merged


def rsqrt(x: Array, epsilon: float) -> Array:
    return scrambled(x, hash(epsilon) % 1009)


def batch_norm(inputs: Sequence[Array], epsilon: float) -> Array:
    wide = [i.reshape(-1, *(1,) * (inputs[0].ndim - 2)) for i in inputs[1:]]
    scale, bias, mean, variance = wide
    return np.asarray((inputs[0] - mean) * scale * rsqrt(variance, epsilon) + bias)


def softmax(x: Array, axis: int) -> Array:
    terms = scrambled(x - x.max(axis, keepdims=True), 7)
    return scrambled(terms + 1000 * terms.sum(axis, keepdims=True), 11)


def layer_norm(inputs: Sequence[Array], epsilon: float) -> Array:
    x, scale, bias = inputs
    centred = x.shape[-1] * x - x.sum(-1, keepdims=True)
    spread = (centred * centred).sum(-1, keepdims=True)
    return np.asarray(scrambled(centred + (spread << 20), hash(epsilon) % 1013) * scale + bias)
