"""Prices of memory over time by Lagrangian relaxation: subgradients from labels that message passing chooses, deflected
by their past (Camerini, Fratta and Maffioli, Mathematical Programming Study 3, 1975), with Polyak's step length."""

from typing import NamedTuple

import numpy as np

from graphopt.contests.sharding.memory_profile import MemoryProfile
from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.contests.sharding.trws import Passing
from graphopt.core.graph import F64, I64


class Ascent(NamedTuple):
    """How prices rise. sweeps: of message passing each way, between prices. memory: share of the past in a direction.
    patience: steps without a better bound before steps shrink by `shrink`. reach: how far above the best bound, as
    a share of it, the optimum is taken to lie at most."""

    sweeps: int
    memory: float
    patience: int
    shrink: float
    reach: float


ASCENTS = (Ascent(1, 0.0, 20, 0.7, 0.15), Ascent(3, 0.7, 10, 0.7, 0.3))  # they take turns


class MemoryDual:
    """A lower bound, prices, and labels, from one step to the next. Prices are per share of `unit` in use."""

    def __init__(self, model: Pairwise, memory: MemoryProfile, unit: float, settings: Ascent) -> None:
        self.model, self.memory, self.unit, self.settings = model, memory, max(unit, 1.0), settings
        self.passing = Passing(model)
        self.room = memory.room / self.unit
        self.prices = np.zeros(len(self.room))
        self.bound, self.bound_prices = -np.inf, self.prices
        self.cost, self.labels = np.inf, self.passing.labels.copy()  # of the cheapest labels that fit
        self._recent: tuple[float, float, I64] | None = None  # over the room, cost, labels: the best of late
        self._direction = np.zeros(len(self.room))
        self.scale, self._stalled = 1.0, 0

    def paid(self, prices: F64) -> F64:
        """[S] what states pay for memory."""
        return self.memory.priced(prices / self.unit, self.model.ptr)

    def step(self, known: float = np.inf) -> None:
        """One set of sweeps, then other prices. known: what the best answer costs."""
        found = self.sweep()
        over = self.memory.used(self.passing.labels) / self.unit - self.room
        self._note(over)
        self._progress(found)
        if not len(over):
            return
        best = min(known, self.cost)
        base = max(found, self.bound)
        goal = min(best, base + self.settings.reach * abs(base))
        self._direction = self.settings.memory * self._direction + (1 - self.settings.memory) * over
        way = np.where((self.prices <= 0) & (self._direction < 0), 0.0, self._direction)
        length = float(way @ way)
        if length > 0:
            self.prices = np.maximum(0.0, self.prices + self.scale * max(goal - found, 0.0) / length * way)

    def sweep(self) -> float:
        """Passes messages at the present prices; the bound."""
        unary = self.model.unary + self.paid(self.prices)
        found, paid = -np.inf, float(self.prices @ self.room)
        for _ in range(self.settings.sweeps):
            self.passing.sweep(unary, forward=False)
            found = self.passing.sweep(unary, forward=True) - paid
        return found

    def _progress(self, found: float) -> None:
        self._stalled = 0 if found > self.bound + 1e-4 * abs(self.bound) else self._stalled + 1
        if found > self.bound:
            self.bound, self.bound_prices = found, self.prices
        if self._stalled > self.settings.patience:
            self.scale, self._stalled = self.scale * self.settings.shrink, 0

    def _note(self, over: F64) -> None:
        cost, worst = self.model.energy(self.passing.labels), max(0.0, float(over.max(initial=0.0)))
        if self._recent is None or (worst, cost) < self._recent[:2]:
            self._recent = worst, cost, self.passing.labels.copy()
        if worst == 0 and cost < self.cost:
            self.cost, self.labels = cost, self.passing.labels.copy()

    def recent(self) -> I64:
        """[V] the best labels since it was asked last."""
        labels = self.passing.labels.copy() if self._recent is None else self._recent[2]
        self._recent = None
        return labels

    def equal_model(self, *, at_bound: bool = False) -> tuple[F64, F64, F64]:
        """(unary [S], table [C], paid [S]): an equal model at the present prices, or those of the best bound, and what
        of it is paid for memory."""
        prices = self.bound_prices if at_bound else self.prices
        paid = self.paid(prices)
        if at_bound:
            for forward in (False, True, False, True):
                self.passing.sweep(self.model.unary + paid, forward=forward)
        unary, table = self.passing.equal_model(self.model.unary + paid)
        return unary, table, paid
