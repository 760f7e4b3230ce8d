"""Partially equivalent transformations with corrections (Wang et al., PET, OSDI 2021, sections 4-6).

A mutant computes the same function as a convolution or matrix product in a part of its result only. Images of a batch
put side by side make one larger image, but rows next to a seam see the neighbour where they should see padding. Where a
mutant is wrong is found by computing both with exact integers; there the original, cut down to those rows, computes the
result again, and both are put together. The corrected mutant is compared once more, everywhere.

A convolution does the same in every channel, so one channel a group shows where a mutant is wrong.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation, Shape, ShapeError

ROWS, COLUMNS = 2, 3
DRAWS = 4
Interval = tuple[int, int]
Flags = NDArray[np.bool_]
Make = Callable[[Terms, Operation, tuple[int, ...]], int]


@dataclass(frozen=True, slots=True)
class Mutation:
    """A way to compute an operation otherwise. make: raises ShapeError where it does not fit. axis: along which its
    result may be wrong in places.
    """

    name: str
    operator: str
    axis: int
    make: Make


@dataclass(frozen=True, slots=True)
class Mutant:
    """A term that is equal to another one, by a mutation and its correction. wrong: intervals that were corrected."""

    name: str
    term: int
    wrong: tuple[Interval, ...]


def mutants(terms: Terms, term: int) -> Iterator[Mutant]:
    """All corrected mutants of a term."""
    operation, inputs = terms.operation[term], terms.inputs[term]
    if terms.static[term]:
        return
    for mutation in MUTATIONS:
        if mutation.operator != operation.name:
            continue
        wrong = wrong_intervals(mutation, operation, tuple(terms.shape(i) for i in inputs))
        if wrong is not None:
            made = corrected(terms, mutation, operation, inputs, wrong)
            if made != term:
                yield Mutant(mutation.name, made, wrong)


@cache
def wrong_intervals(mutation: Mutation, operation: Operation, shapes: tuple[Shape, ...]) -> tuple[Interval, ...] | None:
    """Where the mutant of an operation on such inputs is wrong; None where there is none or most of it is."""
    terms = Terms()
    inputs = tuple(terms.add(Operation("input", (f"x{i}", shape, "float32"))) for i, shape in enumerate(_thin(shapes)))
    try:
        original, mutant = terms.add(operation, inputs), mutation.make(terms, operation, inputs)
    except ShapeError:
        return None
    if terms.types[original] != terms.types[mutant]:
        return None
    differs = _differs(terms, original, mutant, inputs)
    others = tuple(axis for axis in range(differs.ndim) if axis != mutation.axis)
    wrong: Flags = np.asarray(differs.any(axis=others))
    if 2 * int(wrong.sum()) > len(wrong):
        return None
    edges = np.flatnonzero(np.diff(np.concatenate([[False], wrong, [False]])))
    found = tuple((int(a), int(b)) for a, b in edges.reshape(-1, 2))
    if _differs(terms, original, corrected(terms, mutation, operation, inputs, found), inputs).any():
        raise ValueError(f"{mutation.name} of {operation} on {shapes} is wrong after its correction")
    return found


def _thin(shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Shapes with one channel a group, two groups at most, for a convolution; small matrices for a product of them."""
    if len(shapes[1]) != 4:
        return (*shapes[0][:-2], min(shapes[0][-2], 3), 2), (*shapes[1][:-2], 2, 2)
    groups = min(2, shapes[0][1] // shapes[1][1])
    x, w, *bias = shapes
    return (x[0], groups, *x[2:]), (groups, 1, *w[2:]), *((groups,) for _ in bias)


def _differs(terms: Terms, a: int, b: int, inputs: Sequence[int]) -> Flags:
    """Where two terms differ in some draw."""
    rng = np.random.default_rng(0)
    found = np.zeros(terms.shape(a), bool)
    for _ in range(DRAWS):
        leaves = {i: rng.integers(-9, 10, terms.shape(i)) for i in inputs}
        left, right = reference.run(terms, (a, b), leaves)
        found |= left != right
    return found


def corrected(terms: Terms, mutation: Mutation, operation: Operation, inputs: tuple[int, ...],
              wrong: tuple[Interval, ...]) -> int:  # fmt: skip
    """The mutant with its wrong intervals computed by the original."""
    mutant = mutation.make(terms, operation, inputs)
    if not wrong:
        return mutant
    size = terms.shape(mutant)[mutation.axis]
    cuts = sorted({0, size, *(edge for interval in wrong for edge in interval)})
    parts = []
    for low, high in pairwise(cuts):
        if (low, high) in wrong:
            parts.append(strip(terms, operation, inputs, mutation.axis, (low, high)))
        else:
            parts.append(part(terms, mutant, mutation.axis, low, high))
    return terms.add(Operation("concat", (mutation.axis,)), parts)


def part(terms: Terms, x: int, axis: int, low: int, high: int) -> int:
    """x[low:high] along an axis."""
    sizes = (low, high - low, terms.shape(x)[axis] - high)
    if sizes[0] == sizes[2] == 0:
        return x
    split = terms.add(Operation("split", (axis, tuple(size for size in sizes if size))), (x,))
    return terms.add(Operation("item", (1 if low else 0,)), (split,))


def strip(terms: Terms, conv: Operation, inputs: tuple[int, ...], axis: int, rows: Interval) -> int:
    """Rows (or columns) of a convolution's result, from the part of its input that they see."""
    strides, pads, activation = conv.params
    x, place = inputs[0], axis - ROWS
    stride, before, kernel, size = strides[place], pads[place], terms.shape(inputs[1])[axis], terms.shape(x)[axis]
    first, end = rows[0] * stride - before, (rows[1] - 1) * stride - before + kernel
    low, high = max(0, first), min(size, end)
    if low >= high:
        raise ShapeError(f"rows {rows} of {conv} see padding alone")
    new = list(pads)
    new[place], new[place + 2] = low - first, end - high
    seen = part(terms, x, axis, low, high)
    return terms.add(Operation("conv", (strides, tuple(new), activation)), (seen, *inputs[1:]))


def _batch_into(axis: int) -> Make:
    """All images of the batch one after another along an axis of one image."""

    def make(terms: Terms, conv: Operation, inputs: tuple[int, ...]) -> int:
        x = inputs[0]
        batch, channels, *_ = terms.shape(x)
        _require_whole(terms, conv, inputs, axis, 1)
        if batch == 1:
            raise ShapeError("a batch of one image has no seam")
        there = (1, 0, 2, 3) if axis == ROWS else (1, 2, 0, 3)
        back = (1, 0, 2, 3) if axis == ROWS else (2, 0, 1, 3)
        together = tuple(size * batch if place == axis else size for place, size in enumerate(terms.shape(x)))[2:]
        moved = terms.add(Operation("transpose", (there,)), (x,))
        joined = terms.add(Operation("reshape", ((1, channels, *together),)), (moved,))
        result = terms.add(conv, (joined, *inputs[1:]))
        _, kernels, *_ = terms.shape(result)
        one = terms.shape(terms.add(conv, inputs))
        apart = (kernels, batch, one[2], one[3]) if axis == ROWS else (kernels, one[2], batch, one[3])
        return terms.add(Operation("transpose", (back,)), (terms.add(Operation("reshape", (apart,)), (result,)),))

    return make


def _into_batch(axis: int, count: int) -> Make:
    """Equal parts of an axis as so many images more."""

    def make(terms: Terms, conv: Operation, inputs: tuple[int, ...]) -> int:
        x = inputs[0]
        _require_whole(terms, conv, inputs, axis, count)
        parts = _parts(terms, x, axis, count)
        result = terms.add(conv, (terms.add(Operation("concat", (0,)), parts), *inputs[1:]))
        return terms.add(Operation("concat", (axis,)), _parts(terms, result, 0, count))

    return make


def _parts(terms: Terms, x: int, axis: int, count: int) -> list[int]:
    sizes = (terms.shape(x)[axis] // count,) * count
    split = terms.add(Operation("split", (axis, sizes)), (x,))
    return [terms.add(Operation("item", (i,)), (split,)) for i in range(count)]


def _require_whole(terms: Terms, conv: Operation, inputs: tuple[int, ...], axis: int, count: int) -> None:
    """Raises ShapeError unless each of `count` parts of the axis makes as many results as its share: stride x results
    is its size, so that results of the next part begin where it ends."""
    before, after = terms.shape(inputs[0])[axis], terms.shape(terms.add(conv, inputs))[axis]
    stride = conv.params[0][axis - ROWS]
    if before != stride * after or after % count or after < 2 * count:
        raise ShapeError(f"{before} to {after} by a stride of {stride} in {count} parts leaves gaps at the seams")


def _rows_together(terms: Terms, matmul: Operation, inputs: tuple[int, ...]) -> int:
    """Products of a batch of matrices with one matrix as one product; right everywhere."""
    a, b = (terms.shape(i) for i in inputs)
    if len(a) < 3 or len(b) != 2:
        raise ShapeError("no batch of matrices times one matrix")
    rows = terms.add(Operation("reshape", ((prod(a[:-1]), a[-1]),)), inputs[:1])
    return terms.add(Operation("reshape", ((*a[:-1], b[1]),)), (terms.add(matmul, (rows, inputs[1])),))


MUTATIONS = (
    Mutation("batch_into_rows", "conv", ROWS, _batch_into(ROWS)),
    Mutation("batch_into_columns", "conv", COLUMNS, _batch_into(COLUMNS)),
    Mutation("rows_into_batch", "conv", ROWS, _into_batch(ROWS, 2)),
    Mutation("columns_into_batch", "conv", COLUMNS, _into_batch(COLUMNS, 2)),
    Mutation("rows_together", "matmul", 0, _rows_together),
)
