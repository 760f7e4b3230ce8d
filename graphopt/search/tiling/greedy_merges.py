"""`TileMerge`: groups grow by the merge that gains most, until none gains."""

from collections.abc import Iterator

from graphopt.search.tiling.groupings import Grouping, Wiring, apart, changed
from graphopt.tiling.tile_costs import TileCosts, bits
from graphopt.tiling.tiler import Tiler
from graphopt.tiling.tiling_problem import TilingProblem

GAIN = 1e-9


class TileMerge(Tiler):
    """Starts from one op a group. A merge fuses an op into its readers, or puts two groups together."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: TilingProblem) -> None:
        if problem.open:
            merged(problem, apart(Wiring(TileCosts(problem.workload))), float("inf"))


def merged(problem: TilingProblem, now: Grouping, seconds: float) -> Grouping:
    """Passes over all ops; at each the best merge that gains is made. Ends after a pass without one, or after `seconds`
    of the problem's clock. Every merge that is looked at is billed."""
    gained = True
    while gained:
        gained = False
        for op in range(now.wiring.workload.num_ops):
            best = now
            for found in _merges(now, op):
                problem.propose(found.cost, found.schedule)
                if found.cost < best.cost - GAIN:
                    best = found
            gained |= best is not now
            now = best
            if problem.seconds > seconds:
                return now
    return now


def _merges(now: Grouping, op: int) -> Iterator[Grouping]:
    """What can be made of a grouping around a stored op."""
    if now.fused >> op & 1:
        return
    wiring, home = now.wiring, now.group_of(op)
    stored = now.groups[home].stored
    if wiring.after[op]:
        fused = changed(now, [home], [stored & ~(1 << op)], now.fused | 1 << op)
        if fused is not None:
            yield fused
    near = {now.group_of(other) for other in wiring.alike[op] if not now.fused >> other & 1} - {home}
    for number in sorted(near):
        other = now.groups[number].stored
        both = changed(now, [home, number], [stored | other], now.fused)
        if both is not None:
            yield both
        lone = sum(1 << o for o in bits(stored) if wiring.after[o] and not wiring.after[o] & ~now.groups[number].ops)
        if lone:
            absorbed = changed(now, [home, number], [stored & ~lone | other], now.fused | lone)
            if absorbed is not None:
                yield absorbed
