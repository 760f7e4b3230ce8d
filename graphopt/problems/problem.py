"""`Problem`: one graph to be solved, all that an optimiser sees. It meters the budget, keeps the best and the trace."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.utils.compiled import compiling_processor_seconds, compiling_seconds
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.finalists import Finalists
from graphopt.problems.solution import Solution

if TYPE_CHECKING:
    from graphopt.problems.task import Task


Clock = Literal["wall", "processor"]  # processor: of this process, all threads together; where others share the machine


class OutOfBudget(Exception):
    """The budget is spent. Optimisers may let it pass: the harness catches it and keeps the best."""


@dataclass(frozen=True)
class Incumbent:
    """One improvement: after `evals` evaluations and `seconds`, the best cost was `cost`."""

    evals: int
    seconds: float
    cost: float


class Problem(ABC):
    """Graph + task + cost + budget, of evaluations and of seconds. What a decision is, subclasses say.

    The default heuristic's decision (`initial`) and its price are known to everybody and are not billed; it is the
    first `best`, so no method with a budget of at least one evaluation ends worse than it. Every other price is billed:
    one per decision, repeated ones too.
    """

    initial: Any
    best: Any
    finalists: "Finalists | None"

    def __init__(self, graph: Graph, task: "Task", cost: CostModel, *, evals: int, seconds: float = float("inf"),
                 seed: int = 0) -> None:  # fmt: skip
        self.graph, self.task, self._cost = graph, task, cost
        self.rng = np.random.default_rng(seed)
        self.evals_cap, self.seconds_cap = evals, seconds
        self.evals = 0
        self.initial_cost = self.best_cost = self._prepared()
        self.bound = 0.0  # no decision costs less than this: what a solver has proved, 0 where nothing has
        self.notes: list[str] = []  # sentences about how the answer came about, for its row
        self._seen: set[int] = set()
        self.finalists = None if cost.deterministic else Finalists(self.solution)
        self._known: tuple[tuple[Any, ...], Solution] | None = None
        self.tell_time_by("wall")
        self.trace: list[Incumbent] = [Incumbent(0, 0.0, self.initial_cost)]
        self.approach: list[Incumbent] = []  # of what was billed, as long as it was no better than the default

    @abstractmethod
    def _prepared(self) -> float:
        """Sets `initial`, `best` and what else the kind needs, before the clock starts; the default's price."""

    @property
    def objective(self) -> Objective:
        """What a cost is."""
        return self._cost.objective

    @abstractmethod
    def _solution(self) -> Solution:
        """The best so far."""

    @abstractmethod
    def _best(self) -> tuple[Any, ...]:
        """What changes when a better one is found."""

    def solution(self) -> Solution:
        """What the solve has ended with: the best so far, made anew only where a better one was found since."""
        now = self._best()
        if self._known is None or any(a is not b for a, b in zip(self._known[0], now, strict=True)):
            self._known = now, self._solution()
        return self._known[1]

    def trace_array(self) -> NDArray[np.float64]:
        """[S, 3] evaluations, seconds, best cost, of every improvement."""
        return np.array([[s.evals, s.seconds, s.cost] for s in self.trace], np.float64).reshape(-1, 3)

    @property
    def seconds(self) -> float:
        """Seconds since the problem was opened; those in which code was compiled do not count."""
        return self._now() - self._start

    def tell_time_by(self, clock: Clock) -> None:
        """From now on; seconds begin at 0."""
        self._clock = clock
        self._start = self._now()

    def _now(self) -> float:
        return _clock() if self._clock == "wall" else _processor_clock()

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

    def bill(self, cost: NDArray[np.float64], digests: Sequence[int], state_at: Callable[[int], Any]) -> None:
        """Counts a batch of prices; takes the lowest if it is the new best. state_at: what `take` takes, of each."""
        now = self.seconds
        if self.best_cost == self.initial_cost:
            own = self.approach[-1].cost if self.approach else np.inf
            self.approach += [step for step in self._better(cost, own, now) if step.cost >= self.initial_cost]
        self.trace += self._better(cost, self.best_cost, now)
        self.evals += len(cost)
        self._seen.update(digests)
        if self.finalists is not None:
            self.finalists.offer(cost, digests, state_at)
        winner = int(np.argmin(cost))
        if cost[winner] < self.best_cost:
            self.best_cost = float(cost[winner])
            self.take_best(state_at(winner))

    @abstractmethod
    def take_best(self, state: Any) -> None:
        """Makes it the best."""

    def settle(self, judge: CostModel) -> None:
        """Where prices are measured, the lowest of many is low by luck as well: the judge prices the best few again and
        the lowest of these is the answer; the default where none is shown to be better than it."""
        if self.finalists is not None:
            winner = self.finalists.winner(judge, self.take_best)
            if winner is None:
                self.notes.append("no answer was shown to be better than the default")
            self.take_best(self.default_state() if winner is None else winner.state)
            self.best_cost = self.initial_cost if winner is None else winner.cost

    @abstractmethod
    def default_state(self) -> Any:
        """The default heuristic's, as `take_best` takes it."""

    def _better(self, cost: NDArray[np.float64], before: float, now: float) -> list[Incumbent]:
        """The new bests in a batch that is about to be counted."""
        best_so_far = np.minimum.accumulate(np.append(before, cost))
        better = np.flatnonzero(best_so_far[1:] < best_so_far[:-1])
        return [Incumbent(self.evals + int(i) + 1, now, float(cost[i])) for i in better]


def _clock() -> float:
    return time.perf_counter() - compiling_seconds()


def _processor_clock() -> float:
    return time.process_time() - compiling_processor_seconds()
