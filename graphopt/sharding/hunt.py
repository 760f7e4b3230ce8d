"""The search: prices of memory and labels from the dual, and walks that begin from these labels or go on from the best.

Two threads may share it: one passes messages, the other walks. Both are compiled code without the interpreter's lock.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.core.strategies import StrategyTables
from graphopt.sharding.dual import Ascent, MemoryDual
from graphopt.sharding.occupancy import moved_prices, occupancy
from graphopt.sharding.pairwise import Empty, Pairwise
from graphopt.sharding.reducing import closed, without_dear
from graphopt.sharding.region_walk import RegionWalk

CHUNK = 64  # regions between looks at the clock


@dataclass(frozen=True, slots=True)
class HuntSettings:
    """prepare: share of the time for the dual alone. walk: share of the time of a walk. explore: share of walks that
    begin from the dual's labels. entries: of the largest table of a region. cut: states or entries, as a share, that
    must have become too dear for the model to be made anew. dual: share of the time that goes to the dual beside walks,
    on one thread."""

    prepare: float
    walk: float
    explore: float
    entries: int
    cut: float
    dual: float


class Hunt:
    """The state of a search. spent: says which share of the time is over."""

    def __init__(self, model: Pairwise, tables: StrategyTables, ascent: Ascent, settings: HuntSettings,
                 rng: np.random.Generator, spent: Callable[[], float]) -> None:  # fmt: skip
        self.tables, self.ascent, self.settings, self.rng, self.spent = tables, ascent, settings, rng, spent
        self.best_cost, self.best = np.inf, np.zeros(tables.num_nodes, np.int64)
        self.bound = -np.inf
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._enter(model)

    def _enter(self, model: Pairwise) -> None:
        self.model, self.memory = model, occupancy(model, self.tables)
        self.dual = MemoryDual(model, self.memory, float(self.tables.limit), self.ascent)

    @property
    def done(self) -> bool:
        """Whether the best is proved; costs are whole numbers."""
        return self.bound > self.best_cost - 1.0 + 1e-9 * abs(self.best_cost)

    def start(self, choice: I64) -> None:
        """A decision [N] to begin with."""
        self._offer(self.model.labels(choice))

    def run(self, threads: int, improved: Callable[[], None]) -> None:
        """Until the time is over or the best is proved. improved: is called after every improvement."""
        self._prepare(improved)
        walks = 0
        while self.spent() < 1.0 and not self.done:
            self._cut()
            with self._beside(threads > 1):
                before, share = self.spent(), self.settings.walk
                self._walk(walks, share, improved)
            if threads == 1 and not self.done:
                self._dual_until(self.spent() + (self.spent() - before) * self.settings.dual)
            walks += 1

    def _prepare(self, improved: Callable[[], None]) -> None:
        self.dual.step()
        known = self.best_cost
        self._look(improved)
        while self.spent() < self.settings.prepare and not self.done:
            self.dual.step(known)
            self._look(improved)

    def _look(self, improved: Callable[[], None]) -> None:
        """Takes over what the dual has found."""
        self.bound = max(self.bound, self.dual.bound)
        if self.dual.cost < self.best_cost and self._offer(self.dual.labels):
            improved()

    def _dual_until(self, share: float) -> None:
        while self.spent() < min(share, 1.0):
            self.dual.step(self.best_cost)
        self.bound = max(self.bound, self.dual.bound)

    def _walk(self, number: int, share: float, improved: Callable[[], None]) -> None:
        """One walk from the best, or from where the dual is."""
        with self._lock:
            unary, table, paid = self.dual.equal_model()
            fresh = self.best_cost == np.inf or self.rng.random() < self.settings.explore * (1.0 - self.spent())
            labels = self.dual.passing.labels.copy() if fresh else self.model.labels(self.best)
        if not hasattr(self, "_walker") or self._walker.model is not self.model:
            self._walker = RegionWalk(self.model, self.memory, labels, self.settings.entries)
        walker, end = self._walker, min(1.0, self.spent() + share)
        walker.restart(labels)
        walker.forget()
        while self.spent() < end:
            walker.go(unary, table, paid, CHUNK, int(self.rng.integers(2**31)))
            if walker.best_cost < self.best_cost:
                self._offer(walker.moving.best)
                improved()
                if not fresh:
                    end = min(1.0, self.spent() + share)  # as long as it wins
        with self._lock:
            self._look(improved)

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
        dual, gap = self.dual, self.best_cost - self.dual.bound
        unary, table, _ = dual.equal_model()
        parts = float(np.minimum.reduceat(unary, self.model.ptr[:-1]).sum())
        if len(table):
            parts += float(np.minimum.reduceat(table, self.model.table_ptr[:-1]).sum())
        gap = self.best_cost - (parts - float(dual.prices @ dual.room))
        smaller = without_dear(self.model, unary, table, gap * (1 + 1e-9) + 1e-6 * abs(self.best_cost) * 1e-3)
        gone = np.isinf(smaller.unary).mean(), _newly(smaller.table, self.model.table)
        if max(gone) < self.settings.cut:
            return
        try:
            model = closed(smaller, self.tables)
        except Empty:  # nothing is better than the best
            self.bound = self.best_cost
            return
        prices, before, scale = dual.prices, self.memory, dual.scale
        self._enter(model)
        self.dual.prices, self.dual.scale = moved_prices(prices, before, self.memory), scale
        for _ in range(5):
            self.dual.sweep()

    def _beside(self, wanted: bool) -> "_Beside":
        return _Beside(self if wanted else None)

    def _pass_messages(self) -> None:
        while not self._stop.is_set() and self.spent() < 1.0:
            with self._lock:
                self.dual.step(self.best_cost)
            self._stop.wait(1e-4)  # the other thread may have the lock


class _Beside:
    """While it is open, a thread passes messages."""

    def __init__(self, hunt: Hunt | None) -> None:
        self._hunt, self._thread = hunt, None if hunt is None else threading.Thread(target=hunt._pass_messages)

    def __enter__(self) -> None:
        if self._hunt is not None and self._thread is not None:
            self._hunt._stop.clear()
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        if self._hunt is not None and self._thread is not None:
            self._hunt._stop.set()
            self._thread.join()


def _newly(now: F64, before: F64) -> float:
    """Share of the entries that are impossible now and were not."""
    return float((np.isinf(now) & np.isfinite(before)).sum()) / max(1, int(np.isfinite(before).sum()))
