"""`Metered`: the meter of a problem, whatever is decided. Evaluations and seconds spent, the best price, the trace."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.utils.compiled import compiling_seconds


class OutOfBudget(Exception):
    """The budget is spent. Optimisers may let it pass: the harness catches it and keeps the best."""


@dataclass(frozen=True)
class Incumbent:
    """One improvement: after `evals` evaluations and `seconds`, the best cost was `cost`."""

    evals: int
    seconds: float
    cost: float


class Metered:
    """Counts what is priced against a budget of evaluations and of seconds, and keeps the best price.

    The default's price is known to everybody and is not billed. Every other price is billed: one per decision,
    repeated ones too.
    """

    def __init__(self, *, evals: int, seconds: float, initial_cost: float) -> None:
        self.evals_cap, self.seconds_cap = evals, seconds
        self.evals = 0
        self.initial_cost = self.best_cost = initial_cost
        self.bound = 0.0  # no decision costs less than this: what a solver has proved, 0 where nothing has
        self.notes: list[str] = []  # sentences about how the answer came about, for its row
        self._seen: set[int] = set()
        self._start = _clock()
        self.trace: list[Incumbent] = [Incumbent(0, 0.0, initial_cost)]
        self.approach: list[
            Incumbent
        ] = []  # improvements of what was billed, as long as it was no better than the default

    @property
    def seconds(self) -> float:
        """Seconds since the problem was opened; those in which code was compiled do not count."""
        return _clock() - self._start

    @property
    def remaining(self) -> int:
        """Evaluations left (0 when the time is over)."""
        return max(0, self.evals_cap - self.evals) if self.seconds < self.seconds_cap else 0

    @property
    def open(self) -> bool:
        return self.remaining > 0

    def within(self, share: float) -> None:
        """Raises OutOfBudget when more than this share of the seconds has passed."""
        if self.seconds >= share * self.seconds_cap:
            raise OutOfBudget

    @property
    def distinct(self) -> int:
        """Number of different decisions priced so far."""
        return len(self._seen)

    def prove(self, bound: float) -> None:
        """Notes a lower bound on the cost of every decision, from an exact method. Free; the largest counts."""
        self.bound = max(self.bound, bound)

    def bill(self, cost: NDArray[np.float64], digests: Sequence[int]) -> int | None:
        """Counts a batch of prices; which of them is the new best, or None when none is."""
        now = self.seconds
        if self.best_cost == self.initial_cost:
            own = self.approach[-1].cost if self.approach else np.inf
            self.approach += [step for step in self._better(cost, own, now) if step.cost >= self.initial_cost]
        self.trace += self._better(cost, self.best_cost, now)
        self.evals += len(cost)
        self._seen.update(digests)
        winner = int(np.argmin(cost))
        if cost[winner] >= self.best_cost:
            return None
        self.best_cost = float(cost[winner])
        return winner

    def _better(self, cost: NDArray[np.float64], before: float, now: float) -> list[Incumbent]:
        """The new bests in a batch that is about to be counted."""
        best_so_far = np.minimum.accumulate(np.append(before, cost))
        better = np.flatnonzero(best_so_far[1:] < best_so_far[:-1])
        return [Incumbent(self.evals + int(i) + 1, now, float(cost[i])) for i in better]


def _clock() -> float:
    return time.perf_counter() - compiling_seconds()
