"""The cost of a schedule by the rules of docs/contests.md, exactly: sums of fractions, rounded once at the end.

Steps are priced one by one, each in closed form over the kinds of tile that its order makes. `referee` prices the same
by going through every tile, and shares nothing with this file but the workload.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from graphopt.contests.tiling.footprint import NOTHING, TileFootprint, footprint
from graphopt.contests.tiling.tile_latency import working_set
from graphopt.contests.tiling.tile_workload import TileSchedule, TileStep, TileWorkload

Kind = tuple[int, int, bool, bool, bool]  # width, height, new row, new column, first of the walk


@dataclass(frozen=True, slots=True)
class Verdict:
    """latencies: of every step; empty where the schedule is not valid. wrong: why, a sentence, else empty. excess: of
    the first step that does not fit, its bytes over the capacity, as a share of it; 1 for other errors."""

    latencies: tuple[float, ...]
    cost: float
    wrong: str
    excess: float


def judge(workload: TileWorkload, schedule: TileSchedule) -> Verdict:
    """The price of a schedule."""
    stored, resident, exact = set[int](), NOTHING, list[Fraction]()
    for place, step in enumerate(schedule.steps):
        wrong = _unknown(workload, step) or _unavailable(workload, step, stored | resident)
        foot = wrong or footprint(workload, step.ops, resident, {*step.retain})
        if isinstance(foot, str):
            return _invalid(place, foot)
        wrong = _bad_tile(workload, step, foot)
        over = 0.0 if wrong else working_set(foot, *step.tile) - workload.capacity
        if wrong or over > 0:
            wrong = wrong or f"its working set is {over:g} elements over the capacity of {workload.capacity:g}"
            return _invalid(place, wrong, over / workload.capacity or 1.0)
        exact.append(latency(workload, foot, step))
        resident = frozenset(step.retain)
        made = {workload.output[op] for op in step.ops}
        stored |= {tensor for tensor in made if {*step.ops}.isdisjoint(workload.readers[tensor])} - {*step.retain}
    missing = {*range(workload.num_ops)} - {op for step in schedule.steps for op in step.ops}
    lost = [t for t in workload.output if not workload.readers[t] and t not in stored]
    if missing or lost:
        what = f"op {min(missing)} runs in no subgraph" if missing else f"output {lost[0]} never reaches slow memory"
        return Verdict((), float("inf"), what, 1.0)
    return Verdict(tuple(map(float, exact)), float(sum(exact)), "", 0.0)


def _invalid(place: int, wrong: str, excess: float = 1.0) -> Verdict:
    return Verdict((), float("inf"), f"subgraph {place}: {wrong}", excess)


def _unknown(workload: TileWorkload, step: TileStep) -> str:
    """Why these are no ops in an order in which they can run."""
    if not step.ops or len({*step.ops}) < len(step.ops):
        return "it has an op twice" if step.ops else "it has no op"
    if not all(0 <= op < workload.num_ops for op in step.ops):
        return f"it names ops beyond {workload.num_ops - 1}"
    if not all(0 <= tensor < workload.num_tensors for tensor in step.retain) or len({*step.retain}) < len(step.retain):
        return "it retains tensors that are not there, or one twice"
    place = {workload.output[op]: i for i, op in enumerate(step.ops)}
    late = [op for i, op in enumerate(step.ops) if any(place.get(t, -1) >= i for t in workload.inputs[op])]
    return f"op {late[0]} stands before an op whose result it reads" if late else ""


def _unavailable(workload: TileWorkload, step: TileStep, there: Set[int]) -> str:
    """Why it cannot run yet."""
    own = {workload.output[op] for op in step.ops}
    for op in step.ops:
        for tensor in workload.inputs[op]:
            if workload.producer[tensor] >= 0 and tensor not in own and tensor not in there:
                return f"tensor {tensor}, which op {op} reads, is neither in slow memory nor was it retained"
    return ""


def _bad_tile(workload: TileWorkload, step: TileStep, foot: TileFootprint) -> str:
    width, height, depth = step.tile
    if not (0 < width <= workload.native[0] and 0 < height <= workload.native[1] and depth > 0):
        most = "x".join(map(str, workload.native))
        return f"tiles of {width}x{height}x{depth}; they have at least 1 in each direction and are at most {most}"
    if foot.depth > depth and not foot.may_split:
        return f"its ops need the whole depth of {foot.depth} at once, not steps of {depth}"
    if foot.square and (width, depth) != (foot.square, foot.square):
        return f"three MatMuls or more need tiles as wide and as deep as their depth, {foot.square}"
    tiles = -(-foot.width // width) * -(-foot.height // height)
    if step.order is not None and (len(step.order) != tiles or {*step.order} != {*range(tiles)}):
        return f"its traversal order is no permutation of its {tiles} tiles"
    return ""


def latency(workload: TileWorkload, foot: TileFootprint, step: TileStep) -> Fraction:
    """Of one step that is valid."""
    width, height, _ = step.tile
    columns = -(-foot.width // width)
    tiles = columns * -(-foot.height // height)
    order = np.arange(tiles) if step.order is None else np.array(step.order)
    row, column = order // columns, order % columns
    new_row, new_column = (np.concatenate([[True], np.diff(line) != 0]) for line in (row, column))
    wide, high = np.minimum(width, foot.width - column * width), np.minimum(height, foot.height - row * height)
    first = np.arange(tiles) == 0
    kinds = Counter(zip(*(a.tolist() for a in (wide, high, new_row, new_column, first)), strict=True))
    return sum((_tile(workload, foot, kind, step.tile[2]) * n for kind, n in kinds.items()), Fraction(0))


def _tile(workload: TileWorkload, foot: TileFootprint, kind: Kind, depth: int) -> Fraction:
    """Of one tile, all its steps."""
    steps = -(-foot.depth // depth) if foot.depth else 1
    last = foot.depth - (steps - 1) * depth
    if steps == 1:
        return _moment(workload, foot, kind, foot.depth, start=True, end=True, whole=True)
    start = _moment(workload, foot, kind, depth, start=True, end=False, whole=False)
    middle = _moment(workload, foot, kind, depth, start=False, end=False, whole=False) if steps > 2 else Fraction(0)
    return start + (steps - 2) * middle + _moment(workload, foot, kind, last, start=False, end=True, whole=False)


def _moment(workload: TileWorkload, foot: TileFootprint, kind: Kind, deep: int, *, start: bool, end: bool,
            whole: bool) -> Fraction:  # fmt: skip
    """The slower of computing and moving in one step. whole: the only step of its tile."""
    width, height, new_row, new_column, first = kind
    compute = Fraction(foot.product_cost) * deep / foot.depth if foot.depth else Fraction(0)
    compute += Fraction(foot.pointwise_cost) if start else 0
    moved = foot.tiles_read * width * height if start else 0.0
    moved += (foot.row_fixed * height * new_row + foot.column_fixed * width * new_column) if start else 0.0
    moved += foot.made * width * height if end else 0.0
    if whole:
        moved += height * (foot.row_again_depth + foot.row_depth * new_row)
        moved += width * (foot.column_again_depth + foot.column_depth * new_column) + foot.streamed * deep * first
    else:
        moved += deep * (height * (foot.row_slices + foot.row_again) + foot.streamed)
        moved += deep * width * (foot.column_slices + foot.column_again)
    return max(compute, Fraction(moved) / Fraction(workload.bandwidth))
