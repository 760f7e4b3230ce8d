"""`TileWalk`: simulated annealing over groupings, in rounds, each from the best that is known."""

import math
from collections.abc import Iterator

from graphopt.problems.problem import OutOfBudget
from graphopt.search.tiling.greedy_merges import merged
from graphopt.search.tiling.groupings import Grouping, Wiring, apart, linked
from graphopt.search.tiling.ordered_descent import MoveOrder, descended
from graphopt.search.tiling.tile_moves import Draw, propose
from graphopt.tiling.tile_costs import TileCosts
from graphopt.tiling.tiler import Tiler
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.utils.ranges import Few, Positive, Share
from graphopt.utils.share_network import ShareNetwork

# Ops up to which the contest's limits were 2, 5, 15, 30, 60 seconds; beyond, 120.
CONTEST_SECONDS = ((8, 2.0), (24, 5.0), (48, 15.0), (80, 30.0), (110, 60.0))
BETWEEN_CLOCKS = 16  # moves


class TileWalk(Tiler):
    """Moves around random ops (`tile_moves`), worse ones accepted with a falling probability (Metropolis).

    seconds: of a solve, where the problem has no less; null: what the contest gave for so many ops. share: of these
    that is used. rounds: of annealing, each half as hot as the one before. hot: the first temperature, as a share of a
    group's mean latency. cold: last temperature of a round / first. greedy: start from groups that were
    merged as long as that gains; order: of the moves that do it.
    """

    def __init__(self, *, name: str, seconds: Positive | None, share: Share, rounds: Few, hot: Positive, cold: Share,
                 greedy: bool, order: MoveOrder) -> None:  # fmt: skip
        self.name, self.seconds, self.share, self.order = name, seconds, share, order
        self.rounds, self.hot, self.cold, self.greedy = rounds, hot, cold, greedy

    def solve(self, problem: TilingProblem) -> None:
        self.run(problem)

    def run(self, problem: TilingProblem, network: ShareNetwork | None = None) -> None:
        """Solves a problem. network: says what moves promise, where an order asks for that."""
        start, draw = apart(Wiring(TileCosts(problem.workload))), Draw(problem.rng)
        clock = _Clock(problem, self.limit(problem))
        if self.greedy and self.order.by == "passes":
            start = merged(problem, start, clock.ends)
        elif self.greedy:
            start = descended(problem, start, self.order, draw, clock.ends, network)
        best = _linked(problem, start)
        for number, (begin, end) in enumerate(clock.rounds(self.rounds)):
            hot = self.hot * 0.5**number * start.cost / len(start.groups)
            best = _linked(problem, _annealed(problem, best, draw, clock, (begin, end), (hot, self.cold)))

    def limit(self, problem: TilingProblem) -> float:
        """Seconds of a solve."""
        own = contest_seconds(problem.workload.num_ops) if self.seconds is None else self.seconds
        return self.share * min(own, problem.seconds_cap)


def contest_seconds(ops: int) -> float:
    """The contest's limit for a graph of so many ops."""
    return next((seconds for most, seconds in CONTEST_SECONDS if ops <= most), 120.0)


class _Clock:
    """How much of the budget is spent, of seconds or of evaluations, whichever is scarcer."""

    def __init__(self, problem: TilingProblem, limit: float) -> None:
        self._problem, self._limit = problem, limit
        self.ends = limit

    def progress(self) -> float:
        """0 to 1."""
        problem = self._problem
        return max(problem.seconds / self._limit, problem.evals / max(problem.evals_cap, 1))

    def rounds(self, count: int) -> Iterator[tuple[float, float]]:
        """(begin, end) of each round, in progress; the first takes as long as all others."""
        begin = min(self.progress(), 1.0)
        left = 1.0 - begin
        for number in range(count):
            end = 1.0 if number == count - 1 else begin + left * 0.5
            yield begin, end
            begin, left = end, 1.0 - end


def _linked(problem: TilingProblem, now: Grouping) -> Grouping:
    """With all links that pay; moves make those around what they change."""
    found = linked(now, now.groups)
    if found is not now:
        problem.propose(found.cost, found.schedule)
    return found


def _annealed(problem: TilingProblem, now: Grouping, draw: Draw, clock: _Clock, span: tuple[float, float],
              heat: tuple[float, float]) -> Grouping:  # fmt: skip
    """The best grouping of a round."""
    best, (begin, end), (hot, cold) = now, span, heat
    tries = 0
    temperature = hot
    while True:
        if tries % BETWEEN_CLOCKS == 0:
            done = (clock.progress() - begin) / max(end - begin, 1e-9)
            if done >= 1.0:
                return best
            temperature = hot * cold ** max(done, 0.0)
        tries += 1
        found = propose(now, draw)
        if found is None:
            if not problem.remaining:
                raise OutOfBudget
            continue
        problem.propose(found.cost, found.schedule)
        loss = found.cost - now.cost
        if loss <= 0 or draw.unit() < math.exp(-loss / temperature):
            now = found
            if now.cost < best.cost:
                best = now
