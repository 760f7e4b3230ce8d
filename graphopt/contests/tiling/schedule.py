"""`TileSchedule`: how a workload runs: subgraphs one after the other, each with its tile and what stays in fast memory.

A schedule passes through `Plans.choices["schedule"]` as one row of whole numbers (`encode`), and so do its files.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable

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
    """The order of tiles that walks rows there and back (or columns), so that neighbours share what they read; None
    where that is row by row in one direction."""
    grid = np.arange(rows * columns).reshape(rows, columns)
    lines: Iterable[NDArray[np.int64]] = grid.T if by_columns else grid
    walked = np.concatenate([line[::-1] if i % 2 else line for i, line in enumerate(lines)])
    return None if np.array_equal(walked, np.arange(rows * columns)) else tuple(walked.tolist())
