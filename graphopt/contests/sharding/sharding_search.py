"""`sharding_search`: strategies by message passing, prices of memory, and regions solved exactly.

The instance is reduced to a smaller pairwise model with the same optimum. Lagrangian prices of memory over time and
messages (TRW-S) give a bound and first labels; walks from these and from the best solve regions exactly beside their
neighbours and take labels that are cheaper and fit. Annealing from the best takes a share of the time that grows where
it wins, as it does where interactions are dense. States that can be part of no better answer are cut where they are
many. The search prices inside; the best is billed, one evaluation each time, a hundred at most, and the bound is noted.
"""

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import numpy as np

from graphopt.contests.sharding.annealing import HeatBath
from graphopt.contests.sharding.dual import ASCENTS, MemoryDual
from graphopt.contests.sharding.memory_profile import memory_profile, moved_prices
from graphopt.contests.sharding.pairwise import Empty, Pairwise
from graphopt.contests.sharding.reducing import closed, reduced, without_dear
from graphopt.contests.sharding.region_walk import RegionWalk
from graphopt.contests.sharding.sharding_task import Sharding
from graphopt.core.auto_sharding.strategies import StrategyTables, tables_of
from graphopt.core.graph import F64, I64
from graphopt.core.utils.marks import Positive, Share, Workers
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer

BILLED = 0.01  # share of the time between two evaluations that are billed
LEFT = 0.99  # share of the time for the search: the rest is for the last evaluation
PREPARE = 0.2  # share of the time for prices alone
WALK = 0.06  # share of the time of a walk that does not win
EXPLORE = 0.4  # share of walks from labels of message passing, at first; none at the end
DUAL = 0.3  # of the time of walks for prices, on one thread
AT_BOUND = 0.7  # share of walks at the prices of the best bound, not at the latest
ENTRIES = 4096  # of the largest table of a region
CHUNK = 64  # regions between looks at the clock
ANNEAL = 0.06  # share of the time of the first annealing; one that wins doubles it, one that does not halves it
MOST, LEAST = 0.25, 0.02  # of these shares: below the least no more is annealed
COLD = 1e-3  # last temperature over the first
VISITS = 4096  # variables between looks at the clock
CUT = 0.1  # share of states or entries that must have become too dear for the model to be made anew
ROUNDING = 1e-9  # of costs: sums of an equal model are not exact


class ShardingSearch(Optimizer):
    """yaml: conf/algo/sharding_search.yaml. seconds: of wall clock, at most the problem's remaining ones; None: these
    alone. unlimited: seconds where nothing says how many. threads: 2: one passes messages while the other walks.
    unpriced: share of regions that are solved as if memory had no price."""

    accepts = (Sharding,)

    def __init__(self, *, name: str, seconds: Positive | None, unlimited: Positive, threads: Workers,
                 unpriced: Share) -> None:  # fmt: skip
        self.name, self.seconds, self.unlimited, self.threads = name, seconds, unlimited, threads
        self.unpriced = unpriced

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        seconds = self.limit(problem)
        search = PrimalSearch(tables_of(problem.graph), self.unpriced, problem.rng,
                              lambda: problem.seconds / (LEFT * seconds))  # fmt: skip
        search.start(problem.initial[:, 0].astype(np.int64))
        billed, last = problem.initial_cost, -1.0

        def bill() -> None:
            """Prices the best; OutOfBudget passes through."""
            nonlocal billed, last
            billed, last = search.best_cost, search.spent()
            problem.cost(search.best[None, :, None].astype(np.int16))

        def improved() -> None:
            if problem.remaining > 1 and search.spent() - last >= BILLED:
                bill()

        try:
            search.run(self.threads, improved)
        finally:
            if search.best_cost < billed and problem.open:
                bill()
            if math.isfinite(search.bound):
                problem.prove(search.bound)

    def limit(self, problem: AssignProblem) -> float:
        """Seconds of a solve."""
        seconds = min(problem.seconds_cap, self.seconds or math.inf)
        return seconds if math.isfinite(seconds) else self.unlimited


# The search: prices of memory and labels from the dual, and walks that begin from these labels or go on from the best.
# Two threads may share it: one passes messages, the other walks. Both are compiled code without the interpreter's lock.


class PrimalSearch:
    """The state of a search. unpriced: share of regions that are solved as if memory had no price. spent: says which
    share of the time is over."""

    def __init__(self, tables: StrategyTables, unpriced: float, rng: np.random.Generator,
                 spent: Callable[[], float]) -> None:  # fmt: skip
        self.tables, self.unpriced, self.rng, self.spent = tables, unpriced, rng, spent
        self.best_cost, self.best = np.inf, np.zeros(tables.num_nodes, np.int64)
        self.bound, self._proved = -np.inf, False
        self._anneal_share = ANNEAL
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._enter(reduced(tables))

    def _enter(self, model: Pairwise) -> None:
        self.model, self.memory = model, memory_profile(model, self.tables)
        self.duals = [MemoryDual(model, self.memory, float(self.tables.limit), ascent) for ascent in ASCENTS]
        self._reached = np.full(len(self.duals), np.inf)  # by walks from each one's labels
        self._walker: RegionWalk | None = None
        self._annealing: HeatBath | None = None

    @property
    def done(self) -> bool:
        """Whether the best is proved; costs are whole numbers."""
        return self._proved or self.bound > self.best_cost - 1.0 + ROUNDING * abs(self.best_cost)

    def start(self, choice: I64) -> None:
        """A decision [N] to begin with."""
        self._offer(self.model.labels(choice))

    def run(self, threads: int, improved: Callable[[], None]) -> None:
        """Until the time is over or the best is proved. improved: is called after every improvement."""
        self._improved = improved
        self._step()
        while self.spent() < PREPARE and not self.done:
            self._step()
        while self.spent() < 1.0 and not self.done:
            self._cut()
            before = self.spent()
            with self._messages_beside() if threads > 1 else nullcontext():
                self._walk()
                if self._anneal_share >= LEAST and self.best_cost < np.inf:
                    self._anneal()
            if threads == 1 and not self.done:
                end = self.spent() + (self.spent() - before) * DUAL
                while self.spent() < min(end, 1.0) and not self.done:
                    self._step()

    def _step(self) -> None:
        """One step of each dual."""
        known = self.best_cost
        for dual in self.duals:
            dual.step(known)
            self._look(dual)
            if self.spent() >= 1.0:
                return

    def _look(self, dual: MemoryDual) -> None:
        """Takes over the results of a dual."""
        self.bound = max(self.bound, dual.bound)
        if dual.cost < self.best_cost and self._offer(dual.labels):
            self._improved()

    def _walk(self) -> None:
        """One walk from the best, or from labels of a dual."""
        fresh = self.best_cost == np.inf or self.rng.random() < EXPLORE * (1.0 - self.spent())
        which = self._some_dual()
        with self._lock:
            labels = self.duals[which].recent() if fresh else self.model.labels(self.best)
            prices = self.duals[which].equal_model(at_bound=bool(self.rng.random() < AT_BOUND))
        if self._walker is None:
            self._walker = RegionWalk(self.model, self.memory, labels, ENTRIES, self.unpriced)
        walker, end = self._walker, self.spent() + WALK
        walker.begin(labels)
        while self.spent() < min(1.0, end):
            walker.go(*prices, CHUNK, int(self.rng.integers(2**31)))
            if walker.best_cost < self.best_cost:
                self._offer(walker.moving.best)
                self._improved()
                end = self.spent() + WALK  # as long as it wins
        self._reached[which] = min(self._reached[which], walker.best_cost)
        with self._lock:
            for dual in self.duals:
                self._look(dual)

    def _anneal(self) -> None:
        """One annealing from the best."""
        if self._annealing is None:
            self._annealing = HeatBath(self.model, self.memory)
        begin, share, annealing = self.spent(), min(self._anneal_share, 1.0 - self.spent()), self._annealing
        annealing.begin(self.model.labels(self.best))
        while (over := (self.spent() - begin) / max(share, 1e-9)) < 1.0 and not self.done:
            annealing.go(COLD**over, VISITS, int(self.rng.integers(2**31)))
        won = self._offer(annealing.now.best)
        self._anneal_share = min(MOST, 2 * self._anneal_share) if won else self._anneal_share / 2
        if won:
            self._improved()

    def _some_dual(self) -> int:
        """Mostly that from whose labels walks have come furthest."""
        untried = np.flatnonzero(np.isinf(self._reached))
        if len(untried):
            return int(untried[0])
        return int(np.argmin(self._reached)) if self.rng.random() < 0.6 else int(self.rng.integers(len(self.duals)))

    def _offer(self, labels: I64) -> bool:
        """Makes labels the best if they are and fit; whether they are."""
        cost = self.model.energy(labels)
        used = self.memory.used(labels)
        if cost < self.best_cost and (not len(used) or float((used - self.memory.room).max()) <= 0):
            self.best_cost, self.best = cost, self.model.choice(labels)
            return True
        return False

    def _cut(self) -> None:
        """A smaller model, where much can be part of no better answer."""
        if self.best_cost == np.inf or self.done:
            return
        dual = max(self.duals, key=lambda each: each.bound)
        unary, table, _ = dual.equal_model(at_bound=True)
        gap = self.best_cost - (_least_parts(self.model, unary, table) - float(dual.bound_prices @ dual.room))
        smaller = without_dear(self.model, unary, table, gap + ROUNDING * abs(self.best_cost))
        there = np.isfinite(self.model.table)
        newly = float((np.isinf(smaller.table) & there).sum()) / max(1, int(there.sum()))
        gone = np.isinf(smaller.unary).mean(), newly
        if max(gone) < CUT:
            return
        try:
            model = closed(smaller, self.tables)
        except Empty:  # nothing is better than the best
            self.bound, self._proved = self.best_cost, True
            return
        before, old = self.memory, self.duals
        self._enter(model)
        for new, was in zip(self.duals, old, strict=True):
            new.prices, new.scale = moved_prices(was.prices, before, self.memory), was.scale
            for _ in range(5):
                new.sweep()

    def _pass_messages(self) -> None:
        turn = 0
        while not self._stop.is_set() and self.spent() < 1.0:
            best = int(np.argmin(self._reached))
            with self._lock:
                self.duals[turn // 2 % len(self.duals) if turn % 2 else best].step(self.best_cost)
            turn += 1
            self._stop.wait(1e-4)  # the other thread may have the lock

    @contextmanager
    def _messages_beside(self) -> Iterator[None]:
        """While it is open, a thread passes messages."""
        thread = threading.Thread(target=self._pass_messages)
        self._stop.clear()
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def _least_parts(model: Pairwise, unary: F64, table: F64) -> float:
    """The bound that an equal model shows."""
    least = float(np.minimum.reduceat(unary, model.ptr[:-1]).sum())
    return least + (float(np.minimum.reduceat(table, model.table_ptr[:-1]).sum()) if len(table) else 0.0)
