"""A second evaluator of schedules, written from the rules without the first: it goes through a step tile by tile and
looks at which slice of which tensor is there. `check` uses it; nothing is searched with it.

Every use of a tensor is a series over the moments of a step. Tile comes after tile, and in a tile one depth step after
the other. Each moment has the slice that it needs, or none. Slices that were not there the moment before are loaded.
"""

from dataclasses import dataclass
from math import lcm

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.tiling.tile_workload import TileSchedule, TileStep, TileWorkload

Series = NDArray[np.int64]  # [M] over moments
MOST_MOMENTS = 2**26
NOT_NOW = -1


class NotValid(Exception):
    """A rule that a schedule breaks."""


@dataclass(frozen=True)
class _Use:
    """tensor; cut: how it is sliced; need: [M] number of the slice wanted, or NOT_NOW; size: [M] its elements; room:
    elements at the worst."""

    tensor: int
    cut: str
    need: Series
    size: Series
    room: int


def objections(workload: TileWorkload, schedule: TileSchedule, claimed: float) -> list[str]:
    """Errors of a schedule, or of its claimed cost."""
    try:
        found = sum(referee_latencies(workload, schedule))
    except NotValid as error:
        return [str(error)]
    if abs(found - claimed) <= 1e-9 * max(abs(found), 1.0):
        return []
    return [f"the schedule costs {found!r} by the second evaluator, not {claimed!r}"]


def referee_latencies(workload: TileWorkload, schedule: TileSchedule) -> list[float]:
    """The latency of every step. Raises NotValid."""
    slow = {t for t in range(workload.num_tensors) if t not in workload.output}
    fast: set[int] = set()
    ran, latencies = set[int](), []
    for number, step in enumerate(schedule.steps):
        try:
            latencies.append(_StepRun(workload, step, slow, fast).latency())
        except NotValid as error:
            raise NotValid(f"subgraph {number}: {error}") from None
        ran |= {*step.ops}
        consumed = {t for op in step.ops for t in workload.inputs[op]}
        slow |= {workload.output[op] for op in step.ops} - consumed - {*step.retain}
        fast = {*step.retain}
    read = {t for op in range(workload.num_ops) for t in workload.inputs[op]}
    for op in range(workload.num_ops):
        if op not in ran:
            raise NotValid(f"op {op} never runs")
        if workload.output[op] not in read and workload.output[op] not in slow:
            raise NotValid(f"output {workload.output[op]} is not in slow memory at the end")
    return latencies


class _StepRun:
    """One subgraph, about to run."""

    def __init__(self, workload: TileWorkload, step: TileStep, slow: set[int], fast: set[int]) -> None:
        self.w, self.step, self.fast = workload, step, fast
        self._check_ops(slow)
        made = [workload.output[op] for op in step.ops]
        consumed = {t for op in step.ops for t in workload.inputs[op]}
        self.passing = {t for t in made if t in consumed}
        self.results = [t for t in made if t not in consumed]
        self._check_results()
        self.products = [op for op in step.ops if workload.is_matmul[op]]
        self.pointwise = [op for op in step.ops if not workload.is_matmul[op]]
        self.pair = self._pair()
        self._lay_out()

    def _check_ops(self, slow: set[int]) -> None:
        done: set[int] = set()
        for op in self.step.ops:
            if not 0 <= op < self.w.num_ops or op in done:
                raise NotValid(f"op {op} does not exist or runs twice")
            for tensor in self.w.inputs[op]:
                makers = [o for o in self.step.ops if self.w.output[o] == tensor]
                if makers and makers[0] not in done:
                    raise NotValid(f"op {op} runs before op {makers[0]}, which makes what it reads")
                if not makers and tensor not in slow and tensor not in self.fast:
                    raise NotValid(f"tensor {tensor} is nowhere when op {op} reads it")
            done.add(op)
        if not done:
            raise NotValid("no op")
        self._check_joined()

    def _check_joined(self) -> None:
        groups: list[set[int]] = []
        for op in self.step.ops:
            touched = {*self.w.inputs[op], self.w.output[op]}
            joined = [group for group in groups if group & touched]
            groups = [group for group in groups if not group & touched] + [touched.union(*joined)]
        if len(groups) > 1:
            raise NotValid("its ops fall into parts that share no tensor")

    def _check_results(self) -> None:
        if len({self.w.shape(t) for t in self.results}) != 1:
            raise NotValid("its results have different shapes")
        if len({*self.step.retain}) < len(self.step.retain):
            raise NotValid("it retains a tensor twice")
        for tensor in self.step.retain:
            final = all(tensor not in read for read in self.w.inputs)
            if tensor not in self.results or final:
                raise NotValid(f"it cannot retain tensor {tensor}")

    def _pair(self) -> tuple[int, int, int] | None:
        """(first, second, side) of two products in a chain."""
        for op in self.products:
            wanted = [(reader, side) for reader in self.products for side in (0, 1)
                      if self.w.inputs[reader][side] == self.w.output[op]]  # fmt: skip
            if len({side for _, side in wanted}) > 1:
                raise NotValid(f"op {op} feeds both sides of products")
            if wanted and len(self.products) == 2:
                return op, wanted[0][0], wanted[0][1]
        return None

    def _lay_out(self) -> None:
        w, (wide, high, deep) = self.w, self.step.tile
        if min(wide, high, deep) < 1 or wide > w.native[0] or high > w.native[1]:
            raise NotValid(f"tiles of {wide}x{high}x{deep} cannot be")
        self.W, self.H = w.shape(self.results[0])
        self.K = w.depth(self.pair[1]) if self.pair else max([w.depth(op) for op in self.products], default=0)
        self.steps = -(-self.K // deep) if self.K else 1
        self._check_depth()
        columns, rows = -(-self.W // wide), -(-self.H // high)
        if columns * rows * self.steps > MOST_MOMENTS:
            raise NotValid("more moments than can be gone through")
        order = np.arange(columns * rows) if self.step.order is None else np.array(self.step.order, np.int64)
        if not np.array_equal(np.sort(order), np.arange(columns * rows)):
            raise NotValid("its order does not visit every tile once")
        self.at = np.tile(np.arange(self.steps), len(order))
        self.row, self.column = (np.repeat(a, self.steps) for a in (order // columns, order % columns))
        self.wide = np.minimum(wide, self.W - self.column * wide)
        self.high = np.minimum(high, self.H - self.row * high)
        self.deep = np.minimum(deep, self.K - self.at * deep) if self.K else np.zeros_like(self.at)

    def _check_depth(self) -> None:
        wide, _, deep = self.step.tile
        depths = {self.w.depth(op) for op in self.products}
        if len(self.products) > 2 and depths != {wide} | {deep}:
            raise NotValid("more than two products need one depth, which is the tiles' width and depth")
        if self.steps == 1:
            return
        if len(self.products) > 1 and not self.pair:
            raise NotValid("products side by side need their whole depth")
        made = {self.w.output[op] for op in self.pointwise}
        if any(t in made for op in self.products for t in self.w.inputs[op]):
            raise NotValid("what a pointwise op makes is read in whole depth only")

    def _uses(self) -> list[_Use]:
        """Of tensors that come from slow memory, in the order of the ops."""
        found = [use for op in self.step.ops for use in
                 (self._of_product(op) if self.w.is_matmul[op] else self._of_pointwise(op))]  # fmt: skip
        found = [use for use in found if use.tensor not in self.passing and use.tensor not in self.fast]
        if self.pair:
            head = {*self.w.inputs[self.pair[0]]} - self.passing - self.fast
            seen = [use.tensor for use in found]
            if any(seen.count(t) > 1 for t in head):
                raise NotValid("a chain reads one tensor twice")
        return found

    def _of_pointwise(self, op: int) -> list[_Use]:
        wide, high, _ = self.step.tile
        once = np.where(self.at == 0, self.row * self.W + self.column, NOT_NOW)
        return [_Use(tensor, "tiles", once, self.wide * self.high, wide * high) for tensor in self.w.inputs[op]]

    def _of_product(self, op: int) -> list[_Use]:
        wide, high, _ = self.step.tile
        left, right = self.w.inputs[op]
        if self.pair and op == self.pair[0]:
            return self._of_head(left, right)
        own = self.w.depth(op)
        slice_depth = min(self.step.tile[2], self.K) if self.steps > 1 or self.pair else own
        deep = self.deep if self.steps > 1 or self.pair else np.full_like(self.at, own)
        return [
            _Use(left, "rows", self.row * self.steps + self.at, self.high * deep, high * slice_depth),
            _Use(right, "columns", self.column * self.steps + self.at, self.wide * deep, wide * slice_depth),
        ]

    def _of_head(self, left: int, right: int) -> list[_Use]:
        """Of the first product of a chain: its result is a slice as deep as the second one's step."""
        assert self.pair
        wide, high, deep = self.step.tile
        own = self.w.depth(self.pair[0])
        passes = (self.at, own * self.deep, own * min(deep, self.K))
        if self.pair[2] == 0:
            stays = (np.where(self.at == 0, self.row, NOT_NOW), own * self.high, own * high)
            return [_Use(left, "rows", *stays), _Use(right, "passing", *passes)]
        stays = (np.where(self.at == 0, self.column, NOT_NOW), own * self.wide, own * wide)
        return [_Use(left, "passing", *passes), _Use(right, "columns", *stays)]

    def latency(self) -> float:
        uses = self._uses()
        self._check_room(uses)
        evicted = sum(t not in self.step.retain for t in self.results)
        moved = np.where(self.at == self.steps - 1, evicted * self.wide * self.high, 0)
        for tensor in {use.tensor for use in uses}:
            moved = moved + _loaded([use for use in uses if use.tensor == tensor])
        return self._slower(moved)

    def _check_room(self, uses: list[_Use]) -> None:
        wide, high, _ = self.step.tile
        distinct = {(use.tensor, use.cut): use.room for use in uses}
        rooms = [*distinct.values()] if self.w.shared_slices == "once" else [use.room for use in uses]
        room = sum(rooms) + sum(self.w.elements(t) for t in {*self.fast} | {*self.step.retain})
        room += wide * high * sum(t not in self.step.retain for t in self.results)
        if room > self.w.capacity:
            raise NotValid(f"{room} elements do not fit into {self.w.capacity}")

    def _slower(self, moved: Series) -> float:
        """Sum over moments of the slower of computing and moving, in whole numbers where they suffice."""
        products = sum(self.w.base_costs[op] for op in self.products)
        pointwise = sum(self.w.base_costs[op] for op in self.pointwise)
        scale, bandwidth = lcm(self.K or 1), self.w.bandwidth
        parts = products * self.deep + np.where(self.at == 0, pointwise * scale, 0)
        compute, transfer = parts * bandwidth, moved * scale
        slower = np.maximum(compute, transfer)
        if slower.dtype.kind == "i" and float(slower.max()) * len(slower) < 2**62:
            return int(slower.sum()) / (scale * bandwidth)
        return float(slower.astype(np.float64).sum() / (scale * bandwidth))


def _loaded(uses: list[_Use]) -> Series:
    """[M] elements of one tensor that are loaded. Where its slices are of one shape, one stays until another is needed;
    of a tensor that is cut in several ways none stays."""
    distinct = [use for i, use in enumerate(uses) if use.cut not in {other.cut for other in uses[:i]}]
    if len(distinct) > 1:
        return sum((np.where(use.need == NOT_NOW, 0, use.size) for use in distinct), np.zeros_like(uses[0].need))
    need, size = uses[0].need, uses[0].size
    asked = np.flatnonzero(need != NOT_NOW)
    fresh = asked[np.concatenate([[True], np.diff(need[asked]) != 0])]
    loaded = np.zeros_like(size)
    loaded[fresh] = size[fresh]
    return loaded
