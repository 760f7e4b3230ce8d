"""Latency and working set of a subgraph by the size of its tiles, in closed form, and the best size, which `TileCosts`
remembers of every subgraph that was asked about; its ops are bits of integers.

Tiles at the right and lower edge may be smaller. Walked there and back, all but a few kinds of tile load the same, so a
grid is a sum over at most a dozen kinds. Floats; `pricing_tiles` is exact.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.tiling.footprint import NOTHING, TileFootprint, footprint
from graphopt.contests.tiling.tile_workload import TileStep, TileWorkload, snake
from graphopt.core.utils.compiled import njit

BETTER = 1 - 1e-12


class Tile(NamedTuple):
    """The best tile of a subgraph; latency is inf where none fits."""

    latency: float
    width: int
    height: int
    depth: int
    by_columns: bool


NO_TILE = Tile(float("inf"), 0, 0, 0, False)


def best_tile(foot: TileFootprint, capacity: float, bandwidth: float, native: tuple[int, int], *,
              every_side: bool = False) -> Tile:  # fmt: skip
    """The tile of least latency that fits, among `sides` (or all sides) and the deepest steps that fit."""
    if foot.resident > capacity:
        return NO_TILE
    menu = all_sides if every_side else sides
    widths, heights = menu(foot.width, native[0]), menu(foot.height, native[1])
    found = _best(foot, widths, heights, float(capacity), float(bandwidth))
    return Tile(float(found[0]), int(found[1]), int(found[2]), int(found[3]), bool(found[4]))


@lru_cache(maxsize=4096)
def sides(size: int, native: int) -> NDArray[np.int64]:
    """Sides of tiles worth trying, the largest first: of every number of tiles the smallest side that makes no more."""
    few = {-(-size // count) for count in range(-(-size // native), size + 1)}
    return np.array(sorted((side for side in few if side <= native), reverse=True), np.int64)


def all_sides(size: int, native: int) -> NDArray[np.int64]:
    """Every side, the largest first."""
    found: NDArray[np.int64] = np.arange(min(size, native), 0, -1, dtype=np.int64)
    return found


@njit(cache=True, nogil=True)
def working_set(foot: TileFootprint, width: int, height: int, depth: int) -> float:
    """Elements in fast memory at the worst moment."""
    steps = steps_of(foot, depth)
    tile = width * height
    held = foot.resident + (foot.tiles_used + foot.made) * tile + foot.row_fixed * height + foot.column_fixed * width
    held += foot.streamed * min(depth, foot.depth)
    if steps > 1:
        return held + (foot.row_uses * height + foot.column_uses * width) * depth
    return held + foot.row_uses_depth * height + foot.column_uses_depth * width


@njit(cache=True, nogil=True)
def steps_of(foot: TileFootprint, depth: int) -> int:
    """In how many steps a depth takes the whole."""
    return (foot.depth + depth - 1) // depth if foot.depth > 0 else 1


@njit(cache=True, nogil=True)
def _tile_latency(foot: TileFootprint, bandwidth: float, depth: int, steps: int, width: int, height: int,
                  new_row: bool, new_column: bool, first: bool) -> float:  # fmt: skip
    """Of one tile: its first step, those in the middle, its last."""
    total = 0.0
    tile = width * height
    for part in range(3):
        repeats, deep = 1, depth
        if part == 0:
            deep = min(depth, foot.depth)
        elif part == 1:
            repeats = steps - 2
        else:
            deep = foot.depth - (steps - 1) * depth
            repeats = 1 if steps > 1 else 0
        if repeats <= 0:
            continue
        compute = foot.product_cost * (deep / foot.depth) if foot.depth > 0 else 0.0
        moved = 0.0
        if part == 0:
            compute += foot.pointwise_cost
            moved += foot.tiles_read * tile
            if new_row:
                moved += foot.row_fixed * height
            if new_column:
                moved += foot.column_fixed * width
        if steps == 1:
            moved += foot.row_again_depth * height + foot.column_again_depth * width
            if new_row:
                moved += foot.row_depth * height
            if new_column:
                moved += foot.column_depth * width
            if first:
                moved += foot.streamed * deep
        else:
            moved += (foot.row_slices + foot.row_again) * height * deep + foot.streamed * deep
            moved += (foot.column_slices + foot.column_again) * width * deep
        if part == 2 or steps == 1:
            moved += foot.made * tile
        total += repeats * max(compute, moved / bandwidth)
    return total


@njit(cache=True, nogil=True)
def grid_latency(foot: TileFootprint, bandwidth: float, width: int, height: int, depth: int,
                 by_columns: bool) -> float:  # fmt: skip
    """Of the whole grid, walked there and back by rows or by columns."""
    columns, rows = (foot.width + width - 1) // width, (foot.height + height - 1) // height
    last_width, last_height = foot.width - (columns - 1) * width, foot.height - (rows - 1) * height
    steps = steps_of(foot, depth)
    lines, along = (columns, rows) if by_columns else (rows, columns)
    total = 0.0
    for kind in range(4):  # of lines: the first, odd ones, even ones, the last
        back = 0
        count = 1
        if kind == 1:
            count, back = max(lines - 1, 0) // 2 if lines > 2 else 0, 1
        elif kind == 2:
            count = (lines - 2) // 2 if lines > 2 else 0
        elif kind == 3:
            count, back = (1 if lines > 1 else 0), (lines - 1) % 2
        last_line = (kind == 0 and lines == 1) or kind == 3
        for place in range(3):  # in a line: where it is entered, others, the one at the edge
            enters = place == 0
            if enters:
                times, at_edge = 1, along == 1 or back == 1
            elif place == 1:
                times, at_edge = (along - 1 - (1 - back) if along > 1 else 0), False
            else:
                times, at_edge = (1 if along > 1 and back == 0 else 0), True
            if count * times <= 0:
                continue
            new_line, new_along = enters, not enters or kind == 0
            if by_columns:
                w, h = (last_width if last_line else width), (last_height if at_edge else height)
                new_row, new_column = new_along, new_line
            else:
                w, h = (last_width if at_edge else width), (last_height if last_line else height)
                new_row, new_column = new_line, new_along
            total += (count * times) * _tile_latency(
                foot, bandwidth, depth, steps, w, h, new_row, new_column, kind == 0 and enters
            )
    return total


@njit(cache=True, nogil=True)
def _depths(foot: TileFootprint, width: int, height: int, capacity: float, found: NDArray[np.int64]) -> int:
    """Fills in the depths worth trying: the whole, the deepest that fits, the same in equal steps, the deepest divisor.
    Deeper steps are never slower, since the larger of two sums is at most the sum of the larger ones."""
    if foot.depth == 0:
        found[0] = 1
        return 1
    count = 0
    if working_set(foot, width, height, foot.depth) <= capacity:
        found[0] = foot.depth
        count = 1
    if not foot.may_split:
        return count
    least, each = working_set(foot, width, height, 1), foot.row_uses * height + foot.column_uses * width + foot.streamed
    if foot.depth == 1 or least > capacity:
        return count
    deepest = foot.depth - 1 if each <= 0 else min(int((capacity - least) // each) + 1, foot.depth - 1)
    steps = (foot.depth + deepest - 1) // deepest
    divisor = deepest
    while foot.depth % divisor != 0:
        divisor -= 1
    found[count], found[count + 1], found[count + 2] = deepest, (foot.depth + steps - 1) // steps, divisor
    return count + 3


@njit(cache=True, nogil=True)
def _best(foot: TileFootprint, widths: NDArray[np.int64], heights: NDArray[np.int64], capacity: float,
          bandwidth: float) -> tuple[float, int, int, int, int]:  # fmt: skip
    best, best_width, best_height, best_depth, best_columns = np.inf, 0, 0, 0, 0
    depths = np.zeros(4, np.int64)
    for width in widths:
        for height in heights:
            tiles = ((foot.width + width - 1) // width) * ((foot.height + height - 1) // height)
            if tiles * (foot.pointwise_cost + foot.product_cost) >= best * BETTER:
                continue
            for i in range(_depths(foot, width, height, capacity, depths)):
                depth = depths[i]
                if working_set(foot, width, height, depth) > capacity:
                    continue
                if foot.square > 0 and (width != foot.square or depth != foot.square):
                    continue
                for by_columns in range(2):
                    found = grid_latency(foot, bandwidth, width, height, depth, by_columns == 1)
                    if found < best * BETTER:
                        best, best_width, best_height, best_depth = found, width, height, depth
                        best_columns = by_columns
    return best, best_width, best_height, best_depth, best_columns


MOST = 400_000  # that are remembered
Kept = frozenset[int]  # tensors


def bits(mask: int) -> Iterator[int]:
    """Places of its ones, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class TileCosts:
    """Of one workload. every_side: tiles of all sides are tried, not only those of `sides`."""

    def __init__(self, workload: TileWorkload, *, every_side: bool = False) -> None:
        self.workload, self._every_side = workload, every_side
        self._known: dict[tuple[int, Kept, Kept], Tile] = {}

    def best(self, ops: int, resident: Kept = NOTHING, retained: Kept = NOTHING) -> Tile:
        """The best tile of the subgraph of these ops, `NO_TILE` where none is valid."""
        key = ops, resident, retained
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST:
                self._known.clear()
            w, foot = self.workload, footprint(self.workload, [*bits(ops)], resident, retained)
            found = NO_TILE
            if not isinstance(foot, str):
                found = best_tile(foot, w.capacity, w.bandwidth, w.native, every_side=self._every_side)
            self._known[key] = found
        return found

    def step(self, ops: int, resident: Kept = NOTHING, retained: Kept = NOTHING) -> TileStep:
        """The subgraph with its best tile, as a part of a schedule."""
        workload, tile = self.workload, self.best(ops, resident, retained)
        order = sorted(bits(ops), key=workload.rank.__getitem__)
        inside = {*order}
        made = next(workload.output[op] for op in order if inside.isdisjoint(workload.readers[workload.output[op]]))
        columns, rows = -(-workload.widths[made] // tile.width), -(-workload.heights[made] // tile.height)
        walk = snake(columns, rows, by_columns=tile.by_columns)
        return TileStep(tuple(order), (tile.width, tile.height, tile.depth), tuple(sorted(retained)), walk)
