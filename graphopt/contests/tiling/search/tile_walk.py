"""`tile_walk`: simulated annealing over groupings; `tile_merge`: the merges that the walk starts from, alone."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from graphopt.contests.tiling.search.groupings import (
    LEAST_GAIN,
    Grouping,
    Wiring,
    absorb,
    apart,
    fuse,
    linked,
    merge,
    run_again,
    shift,
    split,
    store,
)
from graphopt.contests.tiling.tile_latency import TileCosts, bits
from graphopt.contests.tiling.tiling_task import Tiler, TilingProblem
from graphopt.core.utils.marks import Positive, Share
from graphopt.problems.problem import OutOfBudget

# Ops up to which the contest's limits were 2, 5, 15, 30, 60 seconds; beyond, 120.
CONTEST_SECONDS = ((8, 2.0), (24, 5.0), (48, 15.0), (80, 30.0), (110, 60.0))
ROUNDS = 3  # of annealing, each from the best, half as hot; the first takes as long as all others
HOT = 0.3  # first temperature / a group's mean latency at the start
COLD = 0.001  # last temperature of a round / first
BETWEEN_CLOCKS = 16  # moves


class TileMerge(Tiler):
    """Starts from one op a group; merges by the one that gains most around every op, until none gains."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: TilingProblem) -> None:
        if problem.open:
            merged(problem, apart(Wiring(TileCosts(problem.workload))), float("inf"))


class TileWalk(Tiler):
    """Random moves around random ops, from merged groups. Worse ones are accepted with a falling probability
    (Metropolis).

    seconds: of a solve, where the problem has no less; null: the contest's time for so many ops. share: of these that
    is used.
    """

    def __init__(self, *, name: str, seconds: Positive | None, share: Share) -> None:
        self.name, self.seconds, self.share = name, seconds, share

    def solve(self, problem: TilingProblem) -> None:
        ops = problem.workload.num_ops
        seconds = min(contest_seconds(ops) if self.seconds is None else self.seconds, problem.seconds_cap) * self.share

        def progress() -> float:
            """The spent share of seconds or of evaluations, whichever is scarcer."""
            return max(problem.seconds / seconds, problem.evals / max(problem.evals_cap, 1))

        draw = Draw(problem.rng)
        start = merged(problem, apart(Wiring(TileCosts(problem.workload))), seconds)
        best, begin = _linked(problem, start), min(progress(), 1.0)
        for number in range(ROUNDS):
            end = 1.0 if number == ROUNDS - 1 else begin + (1.0 - begin) * 0.5
            hot = HOT * 0.5**number * start.cost / len(start.groups)
            best = _linked(problem, _annealed(problem, best, draw, progress, (begin, end), hot))
            begin = end


def contest_seconds(ops: int) -> float:
    """The contest's limit for a graph of so many ops."""
    return next((seconds for most, seconds in CONTEST_SECONDS if ops <= most), 120.0)


def merged(problem: TilingProblem, now: Grouping, seconds: float) -> Grouping:
    """Passes over all ops; at each the best merge that gains is made. Ends after a pass without one, or after `seconds`
    of the problem's clock. Every merge that is looked at is billed."""
    gained = True
    while gained:
        gained = False
        for op in range(now.wiring.workload.num_ops):
            best = now
            for found in _merges(now, op):
                if found is not None:
                    problem.propose(found.cost, found.schedule)
                    if found.cost < best.cost - LEAST_GAIN:
                        best = found
            gained |= best is not now
            now = best
            if problem.seconds > seconds:
                return now
    return now


def _merges(now: Grouping, op: int) -> Iterator[Grouping | None]:
    """A stored op is fused into its readers, or its group is put together with one near it."""
    if now.fused >> op & 1:
        return
    yield fuse(now, op)
    home = now.group_of(op)
    near = {now.group_of(other) for other in now.wiring.alike[op] if not now.fused >> other & 1} - {home}
    for number in sorted(near):
        yield merge(now, op, number)
        if now.wiring.read_only_in(now.groups[home].stored, now.groups[number].ops):
            yield absorb(now, op, number)


def _linked(problem: TilingProblem, now: Grouping) -> Grouping:
    """With all links that pay; moves make those around their changes."""
    found = linked(now, now.groups)
    if found is not now:
        problem.propose(found.cost, found.schedule)
    return found


def _annealed(problem: TilingProblem, now: Grouping, draw: "Draw", progress: Callable[[], float],
              span: tuple[float, float], hot: float) -> Grouping:  # fmt: skip
    """The best grouping of a round, which lasts for this span of progress."""
    best, (begin, end) = now, span
    tries, temperature = 0, hot
    while True:
        if tries % BETWEEN_CLOCKS == 0:
            done = (progress() - begin) / max(end - begin, 1e-9)
            if done >= 1.0:
                return best
            temperature = hot * COLD ** max(done, 0.0)
        tries += 1
        found = moved(now, draw)
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


class Draw:
    """Random numbers in batches: one at a time they would take longer than a move."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ready: list[float] = []

    def unit(self) -> float:
        """In [0, 1)."""
        if not self._ready:
            self._ready = self._rng.random(1024).tolist()
        return self._ready.pop()

    def below(self, number: int) -> int:
        """0 to number - 1."""
        return int(self.unit() * number)


def moved(now: Grouping, draw: Draw) -> Grouping | None:
    """After a random move around a random op; None where that one cannot be made."""
    op = draw.below(now.wiring.workload.num_ops)
    if now.fused >> op & 1:
        return store(now, op, None if draw.unit() < 0.7 else [*now.groups][draw.below(len(now.groups))])
    kind = draw.unit()
    if kind < 0.38:
        return fuse(now, op)
    if kind < 0.52:
        readers = [number for number, group in now.groups.items() if group.needs >> op & 1]
        return absorb(now, op, readers[draw.below(len(readers))]) if readers else None
    if kind < 0.75:
        other = _near(now, op, draw)
        return None if other is None else (merge if kind < 0.64 else shift)(now, op, other)
    if kind < 0.93:
        return _split(now, op, draw)
    after = now.wiring.after[op]
    if not after & (after - 1):  # where one op reads it, it would be fused
        return None
    groups = [number for number, group in now.groups.items() if group.ops & after]
    number = groups[draw.below(len(groups))]
    return run_again(now, op, number, also=bool(now.groups[number].needs >> op & 1))


def _near(now: Grouping, op: int, draw: Draw) -> int | None:
    """A group with an op that is near a stored one, not its own."""
    others = [other for other in now.wiring.alike[op] if not now.fused >> other & 1]
    if not others:
        return None
    other = now.group_of(others[draw.below(len(others))])
    return None if other == now.group_of(op) else other


def _split(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """One op and the others, or any two parts."""
    stored = now.groups[now.group_of(op)].stored
    if not stored & (stored - 1):
        return None
    part = 1 << op if draw.unit() < 0.5 else sum(1 << other for other in bits(stored) if draw.unit() < 0.5)
    return split(now, op, part)
