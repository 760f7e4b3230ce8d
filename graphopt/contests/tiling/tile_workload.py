"""Workloads for a core with fast and slow memory, and their schedules.

`TileWorkload`: ops on matrices, and the hardware. Source: the problem statement of a public scheduling contest (MLSys
2026), as docs/contests.md repeats it. `TileSchedule`: subgraphs one after the other, each with its tile and the tensors
that stay in fast memory. It passes through `Plans.choices["schedule"]` as one row of whole numbers (`encode`), and so
do its files.

Shape legend: N ops, T tensors.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.graph import GraphError

MOST_OPS = 100_000
MOST_SIDE = 2**24  # elements of a tensor in one direction
MOST_ELEMENTS = 2**53  # of all tensors: sums are exact
SharedSlices = Literal["once", "per_operand"]


@dataclass(frozen=True, eq=False)
class TileWorkload:
    """Matrices and the ops on them, by the contest's numbers. Every op makes one tensor.

    Sizes are in elements; times in the contest's unit, of which bandwidth and base costs are.
    """

    name: str
    widths: tuple[int, ...]  # [T] columns
    heights: tuple[int, ...]  # [T] rows
    inputs: tuple[tuple[int, ...], ...]  # [N] tensors read, in order; of a product left, then right
    output: tuple[int, ...]  # [N] the tensor made
    base_costs: tuple[float, ...]  # [N] compute time of one native tile, a product's over its whole depth
    is_matmul: tuple[bool, ...]  # [N] a product of matrices, else pointwise
    capacity: float  # elements that fast memory holds
    bandwidth: float  # elements per unit of time to and from slow memory
    native: tuple[int, int]  # (width, height) of the largest tile
    shared_slices: SharedSlices = "once"  # room for a slice that several operands read; problem files do not say it

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check_links(self)
        _check_cycles(self)

    @property
    def num_ops(self) -> int:
        return len(self.output)

    @property
    def num_tensors(self) -> int:
        return len(self.widths)

    def elements(self, tensor: int) -> int:
        return self.widths[tensor] * self.heights[tensor]

    def shape(self, tensor: int) -> tuple[int, int]:
        """(width, height)."""
        return self.widths[tensor], self.heights[tensor]

    def depth(self, op: int) -> int:
        """The number of terms of a product: the width of its left operand."""
        return self.widths[self.inputs[op][0]]

    @cached_property
    def producer(self) -> tuple[int, ...]:
        """[T] the op that makes each tensor, -1 for inputs of the graph."""
        maker = {tensor: op for op, tensor in enumerate(self.output)}
        return tuple(maker.get(tensor, -1) for tensor in range(self.num_tensors))

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """[T] the distinct ops that read each tensor, ascending."""
        found: list[list[int]] = [[] for _ in range(self.num_tensors)]
        for op, tensors in enumerate(self.inputs):
            for tensor in {*tensors}:
                found[tensor].append(op)
        return tuple(map(tuple, found))

    @cached_property
    def rank(self) -> tuple[int, ...]:
        """[N] the place of each op in a topological order, the smallest numbers first among those that are ready."""
        places = {op: place for place, op in enumerate(_topological(self))}
        return tuple(places[op] for op in range(self.num_ops))


def _topological(workload: TileWorkload) -> list[int]:
    from heapq import heapify, heappop, heappush

    waits = [sum(workload.producer[t] >= 0 for t in {*tensors}) for tensors in workload.inputs]
    ready, order = [op for op, count in enumerate(waits) if not count], []
    heapify(ready)
    while ready:
        op = heappop(ready)
        order.append(op)
        for reader in workload.readers[workload.output[op]]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, reader)
    return order


def _check_sizes(workload: TileWorkload) -> None:
    name, tensors = workload.name, len(workload.widths)
    if not 0 < len(workload.output) <= MOST_OPS:
        raise GraphError(f"{name} has {len(workload.output):,} ops: give 1 to {MOST_OPS:,}")
    sides = (*workload.widths, *workload.heights, *workload.native)
    if len(workload.heights) != tensors or not all(0 < side <= MOST_SIDE for side in sides):
        raise GraphError(f"{name}: every tensor and the native tile need a width and a height of 1 to {MOST_SIDE:,}")
    if sum(map(workload.elements, range(tensors))) > MOST_ELEMENTS:
        raise GraphError(f"{name}: its tensors have more than {MOST_ELEMENTS:,} elements; give smaller ones")
    if not (0 < workload.capacity < 2**62 and 0 < workload.bandwidth < 2**62):
        raise GraphError(f"{name}: capacity and bandwidth must be positive and finite")
    if not all(0 <= cost < 2**53 for cost in workload.base_costs):
        raise GraphError(f"{name}: base costs must not be negative or beyond 2^53")


def _check_cycles(workload: TileWorkload) -> None:
    stuck = {*range(workload.num_ops)} - {*_topological(workload)}
    if stuck:
        raise GraphError(f"{workload.name}: ops form a cycle, op {min(stuck)} waits for what it makes: remove an edge")


def _check_links(workload: TileWorkload) -> None:
    name, tensors = workload.name, range(workload.num_tensors)
    if len({*workload.output}) < workload.num_ops:
        twice = next(t for t in workload.output if workload.output.count(t) > 1)
        raise GraphError(f"{name}: tensor {twice} is made by two ops; give each op a tensor of its own")
    for op, read in enumerate(workload.inputs):
        unknown = [tensor for tensor in (*read, workload.output[op]) if tensor not in tensors]
        if unknown or not read:
            what = f"names tensor {unknown[0]} of {len(tensors)}" if unknown else "reads nothing"
            raise GraphError(f"{name}: op {op} {what}; tensors are numbered from 0")
        if workload.is_matmul[op]:
            _check_product(workload, op)


def _check_product(workload: TileWorkload, op: int) -> None:
    if len(workload.inputs[op]) != 2:
        raise GraphError(f"{workload.name}: MatMul {op} reads {len(workload.inputs[op])} tensors; it needs two")
    (lw, lh), (rw, rh) = (workload.shape(tensor) for tensor in workload.inputs[op])
    if lw != rh or workload.shape(workload.output[op]) != (rw, lh):
        made = "x".join(map(str, workload.shape(workload.output[op])))
        raise GraphError(f"{workload.name}: MatMul {op} cannot make {made} of {lw}x{lh} and {rw}x{rh} (width x height)")


CHOICE_NAME = "schedule"


@dataclass(frozen=True, slots=True)
class TileStep:
    """One subgraph. ops: in an order in which they can run. tile: (width, height, depth). retain: tensors that stay for
    the next step. order: of its tiles, by their numbers row by row; None: row by row."""

    ops: tuple[int, ...]
    tile: tuple[int, int, int]
    retain: tuple[int, ...] = ()
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TileSchedule:
    """Steps in the order in which they run."""

    steps: tuple[TileStep, ...]


def encode(schedule: TileSchedule) -> NDArray[np.int32]:
    """[L] the number of steps; of each step its tile, and ops, retained tensors and order, each after its length (-1
    for no order)."""
    numbers = [len(schedule.steps)]
    for step in schedule.steps:
        order = [-1] if step.order is None else [len(step.order), *step.order]
        numbers += [*step.tile, len(step.ops), *step.ops, len(step.retain), *step.retain, *order]
    return np.array(numbers, np.int32)


def decode(numbers: Sequence[int] | NDArray[np.integer[Any]]) -> TileSchedule:
    """The schedule that `encode` wrote. Raises Unreadable."""
    values = [int(number) for number in numbers]
    place = 0

    def take(count: int) -> tuple[int, ...]:
        nonlocal place
        if not 0 <= count <= len(values) - place:
            raise Unreadable("its schedule ends too early: write it again")
        place += count
        return tuple(values[place - count : place])

    def listed() -> tuple[int, ...]:
        return take(take(1)[0])

    def step() -> TileStep:
        width, height, depth = take(3)
        ops, retain, tiles = listed(), listed(), take(1)[0]
        return TileStep(ops, (width, height, depth), retain, None if tiles == -1 else take(tiles))

    steps = tuple(step() for _ in range(min(take(1)[0], len(values))))
    if place < len(values) or not steps:
        raise Unreadable("its schedule has numbers after its end, or no step: write it again")
    return TileSchedule(steps)


def snake(columns: int, rows: int, *, by_columns: bool) -> tuple[int, ...] | None:
    """The order of tiles that walks rows there and back (or columns), so that neighbours share reads; None where that
    is row by row in one direction."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    lines: Iterable[NDArray[np.int64]] = grid.T if by_columns else grid
    walked = np.concatenate([line[::-1] if i % 2 else line for i, line in enumerate(lines)])
    return None if np.array_equal(walked, np.arange(rows * columns)) else tuple(walked.tolist())
