"""`TileCosts`: the best tile of every subgraph that was asked about, remembered; ops are bits of integers."""

from collections.abc import Iterator

from graphopt.contests.tiling.footprint import NOTHING, footprint
from graphopt.contests.tiling.schedule import TileStep, snake
from graphopt.contests.tiling.tile_latency import NO_TILE, Tile, best_tile
from graphopt.contests.tiling.tile_workload import TileWorkload

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
