"""FLOP of ATen operators whose kind does not say it: contractions, Fourier transforms, sums of embeddings.

Complex numbers count as real arithmetic on pairs: a product is 6 FLOP, a multiply-add of a contraction 8, any other
elementwise operation or reduction twice the real one's.
"""

from collections.abc import Sequence
from math import log2, prod
from typing import Any

from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category

_CATEGORY = {name: OPERATORS[i].category for name, i in OPERATOR_ID.items()}


def flops(name: str, kind: str, args: Sequence[Any], operands: Sequence[Any], results: Sequence[Any]) -> float | None:
    """FLOP of the ATen operator `name` on real numbers, 2 per multiply-add; None: the kind's count per element.

    operands, results: what has a `shape`, in the order of the arguments.
    """
    if name.startswith("_fft_"):
        return _fourier(name, args[1], operands[0].shape, results[0].shape)
    if name == "_embedding_bag":  # every row that is looked up is added
        return _numel(operands[1]) * float(operands[0].shape[-1])
    if name.startswith("_scaled_dot_product"):  # query, key: two products forward; these again and three more backward
        backward = name.endswith("_backward")
        query, key = operands[backward : backward + 2]
        return (10.0 if backward else 4.0) * _numel(query) * float(key.shape[-2])
    if _CATEGORY[kind] is not Category.CONTRACTION:
        return None
    first, second = operands[1:3] if name in ("addmm", "baddbmm") else operands[:2]
    if kind == "matmul":
        return 2.0 * _numel(results[0]) * float(first.shape[-1])
    if name == "convolution_backward":  # both gradients cost what the forward convolution did
        weight, transposed = operands[2], bool(args[7])
        rows = second if transposed else first
    else:
        weight, transposed = second, bool(args[6])
        rows = first if transposed else results[0]
    return 2.0 * _numel(rows) / float(rows.shape[1]) * _numel(weight)


def _fourier(name: str, dims: Sequence[int], given: Sequence[int], made: Sequence[int]) -> float:
    """5 N log2 N for every complex transform of N points, half of it with a real side, as FFT benchmarks count."""
    points = made if name == "_fft_c2r" else given
    length = prod(points[d] for d in dims)
    return (5.0 if name == "_fft_c2c" else 2.5) * prod(points) * log2(max(2, length))


def complex_factor(kind: str, tensors: Sequence[Any]) -> float:
    """By how much an operation takes more FLOP than on real numbers."""
    if not any("complex" in str(getattr(t, "dtype", "")) for t in tensors) or _CATEGORY[kind] is Category.OPAQUE:
        return 1.0
    if _CATEGORY[kind] is Category.CONTRACTION:
        return 4.0
    return 6.0 if kind == "mul" else 2.0


def _numel(value: Any) -> float:
    return float(prod(value.shape))
