"""`TileRuns`: dynamic programming over contiguous runs of a topological order, around choices of what is recomputed."""

from graphopt.problems.problem import OutOfBudget
from graphopt.search.tiling.groupings import NO_AGAIN, Grouping, TileGroup, Wiring, linked
from graphopt.tiling.tile_costs import TileCosts
from graphopt.tiling.tiler import Tiler
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.utils.ranges import Count


class TileRuns(Tiler):
    """With a set of fused ops given, the others stand in a topological order, and dynamic programming cuts it into
    groups of neighbours at least cost. Ops are fused, or stored again, one after the other as long as that gains; what
    several groups read and is fused is recomputed in each. longest: of a group's stored ops."""

    def __init__(self, *, name: str, longest: Count) -> None:
        self.name, self.longest = name, longest

    def solve(self, problem: TilingProblem) -> None:
        wiring = Wiring(TileCosts(problem.workload))
        order = sorted(range(problem.workload.num_ops), key=problem.workload.rank.__getitem__)
        fused = 0
        best = self._cut(problem, wiring, order, fused)
        gained = True
        while gained:
            gained = False
            for op in order:
                if not wiring.after[op]:
                    continue
                cost = self._cut(problem, wiring, order, fused ^ 1 << op)
                if cost < best:
                    best, fused, gained = cost, fused ^ 1 << op, True

    def _cut(self, problem: TilingProblem, wiring: Wiring, order: list[int], fused: int) -> float:
        """The cost of the best cut, without links; it is proposed with those that pay."""
        if not problem.remaining:
            raise OutOfBudget
        cut = runs(wiring, [op for op in order if not fused >> op & 1], fused, self.longest)
        if cut is None:
            return float("inf")
        cost, groups = cut
        numbered = dict(enumerate(groups))
        found = linked(Grouping(wiring, numbered, {}, fused, cost, len(groups), NO_AGAIN), numbered)
        problem.propose(found.cost, found.schedule)
        return cost


def runs(wiring: Wiring, stored: list[int], fused: int, longest: int) -> tuple[float, list[TileGroup]] | None:
    """(cost, groups) of the cut of stored ops, in their order, into runs of at most so many; None where none fits."""
    best: list[tuple[float, TileGroup | None, int]] = [(0.0, None, 0)]
    for end in range(1, len(stored) + 1):
        found: tuple[float, TileGroup | None, int] = (float("inf"), None, 0)
        ops = 0
        for start in range(end - 1, max(-1, end - 1 - longest), -1):
            ops |= 1 << stored[start]
            group = wiring.group(ops, fused)
            if best[start][0] < found[0] and wiring.alone(group):
                cost = best[start][0] + wiring.cost(group)
                if cost < found[0]:
                    found = cost, group, start
        best.append(found)
    groups = list[TileGroup]()
    end = len(stored)
    if best[end][0] == float("inf"):
        return None
    while end:
        _, last, end = best[end]
        assert last is not None
        groups.append(last)
    return best[-1][0], groups[::-1]
