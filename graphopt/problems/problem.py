"""The contracts of one solve, for every kind of decision.

A `Task` declares the possible decisions and opens a `Problem`: one graph, all that an optimiser sees. It meters the
budget and keeps the best. A solve ends with a `Solution`. `Decided` is the content of its file: a codec for one kind of
decision, readable without the graph. A kind is one module: `assignment.py`, `rewrite/rewrite_problem.py`,
`contests/tiling/tiling_task.py`.
"""

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.oracles import check
from graphopt.core.plan import Head, Plans, Role
from graphopt.core.utils.compiled import compiling_processor_seconds, compiling_seconds
from graphopt.problems.answer_format import Arrays
from graphopt.problems.cost_model import CostModel, Objective, Price, better, price_of


@dataclass(frozen=True, slots=True)
class Equality:
    """When two programs count as equal: on so many draws of weights and inputs, no output differs by more than
    `tolerance` of its largest value, in double precision."""

    draws: int = 5
    tolerance: float = 1e-9


@dataclass(frozen=True, eq=False)
class Decided(ABC):
    """The decision about a graph, as a file holds it."""

    header: dict[str, Any]  # of a file; before a file is written, only fields of this kind of decision
    trace: NDArray[np.float64]  # [S, 3] evaluations, seconds, best cost, a line per improvement

    format: ClassVar[str]  # of files

    @classmethod
    @abstractmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        """From a file. Raises UserError where it is damaged."""

    @classmethod
    def from_text(cls, content: bytes, source: str) -> tuple[Self, Sequence[float]]:
        """(the decision, costs that it claims) of a text file of the problem's own format. Raises UserError where there
        is no such format, or the file is not of it."""
        raise Unreadable(f"{source}: answers of this task are .npz files, as runs store them")

    def departs(self, original: "Decided", task: Any, equality: Equality) -> str:
        """Why it does not answer the same program as another answer to the same graph; empty where it does."""
        return ""

    @abstractmethod
    def arrays(self) -> Arrays:
        """Arrays of its file beside header and trace."""

    @abstractmethod
    def plans(self, graph: Graph, task: Any) -> Plans:
        """The executable plan, a batch of one; task: of this kind of decision."""

    @abstractmethod
    def default_plans(self, graph: Graph, task: Any) -> Plans:
        """The default's plan, a batch of one."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """(label, text) of facts besides the prices."""

    def source(self, op: str) -> str:
        """The op's place in the model's code, `MODULE, FILE:LINE`; empty where it is unknown, as of gradients."""
        return ", ".join(part for part in self.header.get("sources", {}).get(op, ()) if part)

    @property
    def prices(self) -> dict[str, float]:
        """initial, searched, judged, noise."""
        return {key: float(value) for key, value in self.header["prices"].items()}

    @property
    def heads(self) -> dict[str, int]:
        """Number of choices of every head; none where no op is given choices."""
        return {}

    @property
    def described(self) -> tuple[str, ...]:
        """Heads whose choices describe the answer."""
        return ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rewriting rules that were applied, in order."""
        return ()

    @property
    def replaced(self) -> tuple[str, ...]:
        """Names of the model's ops that rewriting replaced, in the order in which they ran."""
        return ()

    def operators(self) -> tuple[Counter[str], Counter[str]]:
        """How many ops of each operator run by default and in the answer, where these differ in their ops."""
        return Counter(), Counter()

    def must_fit(self, graph: Graph, task: Any, source: str) -> None:  # noqa: B027
        """Raises DecisionError where a file, called `source`, does not fit its graph and its task."""

    def price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        """By a cost model; plans: those of the answer, for whoever prices plans."""
        return price_of(plans(), cost)

    def default_price(self, cost: CostModel, plans: Callable[[], Plans]) -> Price:
        """Of the default, likewise."""
        return price_of(plans(), cost)

    def violations(self) -> list[str]:
        """Errors that independent checks find, besides those of the plan."""
        return []

    def deliver(self, task: Any, path: Path) -> list[str] | None:
        """Writes the model that was made, for its user; what is wrong with it. None: no model was made."""
        return None


class Solution:
    """The result of a solve: a graph, its task and the decision. Plans are made once, when they are first asked for."""

    def __init__(self, graph: Graph, task: Any, decided: Decided, plans: Plans | None = None,
                 default_plans: Plans | None = None) -> None:  # fmt: skip
        self.graph, self.task, self.decided = graph, task, decided
        self._known: Mapping[str, Plans | None] = {"plans": plans, "default": default_plans}

    @cached_property
    def plans(self) -> Plans:
        """The executable plan, a batch of one. For a rewritten program it is the plan of its own graph."""
        return self._known["plans"] or self.decided.plans(self.graph, self.task)

    @cached_property
    def default_plans(self) -> Plans:
        """The default's plan, likewise."""
        return self._known["default"] or self.decided.default_plans(self.graph, self.task)

    def price(self, cost: CostModel) -> Price:
        """By a cost model."""
        return self.decided.price(cost, lambda: self.plans)

    def default_price(self, cost: CostModel) -> Price:
        """Of the default."""
        return self.decided.default_price(cost, lambda: self.default_plans)

    def violations(self) -> list[str]:
        """Errors that independent checks find."""
        found: list[str] = check(self.plans, self.task.machine) + self.task.objections(self.plans)
        return found + self.decided.violations()

    def deliver(self, path: Path) -> list[str] | None:
        """Writes the model that was made, for its user; what is wrong with it. None: no model was made."""
        return self.decided.deliver(self.task, path)


KEPT = 6


class Candidate(NamedTuple):
    cost: float  # by the search's cost model
    state: Any  # a problem's best


class Finalists:
    """The few (`kept`) lowest prices of different decisions: of those of one price, which for measured ones means one
    code, the first. solution: of the problem's best."""

    def __init__(self, solution: Callable[[], Solution], kept: int = KEPT) -> None:
        self._solution, self._kept = solution, kept
        self._of: dict[int, Candidate] = {}  # digest ->
        self._pinned: dict[int, Candidate] = {}

    def offer(self, cost: NDArray[np.float64], digests: Sequence[int], state_at: Callable[[int], Any]) -> None:
        """Keeps those of a batch that belong to the lowest."""
        _, first = np.unique(cost, return_index=True)  # the lowest first
        for i in first[: self._kept].tolist():
            known, held = self._of.get(digests[i]), {candidate.cost for candidate in self._of.values()}
            if np.isfinite(cost[i]) and (known is None or cost[i] < known.cost) and float(cost[i]) not in held:
                self._of[digests[i]] = Candidate(float(cost[i]), state_at(i))
        lowest = sorted(self._of.items(), key=lambda item: item[1].cost)[: self._kept]
        self._of = dict(lowest)

    def pin(self, cost: float, digest: int, state: Any) -> None:
        """Keeps a decision, whatever its rank."""
        self._pinned[digest] = Candidate(cost, state)

    @property
    def states(self) -> list[Any]:
        """Theirs: pinned ones, then the lowest first."""
        return [candidate.state for candidate in self.candidates]

    @property
    def candidates(self) -> list[Candidate]:
        """In the order of `states`."""
        return list((self._pinned | self._of).values())

    def winner(self, judge: CostModel, take: Callable[[Any], None]) -> Candidate | None:
        """The decision with the judge's lowest price, None where none is shown to be better than the default."""
        found, lowest = None, float("inf")
        for candidate in self.candidates:
            take(candidate.state)
            solution = self._solution()
            price = solution.price(judge)
            if price.cost < lowest and better(price, solution.default_price(judge)):
                found, lowest = candidate, price.cost
        return found


Clock = Literal["wall", "processor"]  # processor: of this process, all threads together; where others share the machine


class OutOfBudget(Exception):
    """The budget is spent. Optimisers may let it pass: the harness catches it and keeps the best."""


@dataclass(frozen=True)
class Incumbent:
    """One improvement: after `evals` evaluations and `seconds`, the best cost was `cost`."""

    evals: int
    seconds: float
    cost: float


class Task(ABC):
    """A kind of decision about a graph on a machine."""

    name: str
    machine: Machine
    noun: ClassVar[str] = "a task"  # the kind of task, for messages
    needs: ClassVar[frozenset[str]] = frozenset()  # required parts of a graph
    roles: ClassVar[Mapping[str, Role]] = {}  # roles of its heads by name, for all settings
    decided: ClassVar[type[Decided]]  # the class of its answers, which reads and writes files
    heads: tuple[Head, ...] = ()  # kinds of choice that ops are given
    makes_programs: ClassVar[bool] = False  # its answers are programs, not only plans of one

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        """Roles of its heads with these settings, those of its yaml file; known before anything is built."""
        return cls.roles

    @abstractmethod
    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> "Problem":  # fmt: skip
        """The problem of a graph, with the budget of one solve."""

    def objections(self, plans: Plans) -> list[str]:
        """Errors that the task's own check finds in a plan (a batch of one), beside the checks of every plan."""
        return []


class Problem(ABC):
    """Graph + task + cost + budget, of evaluations and of seconds. Subclasses define decisions.

    The default heuristic's decision (`initial`) and its price are known to everybody and are not billed; it is the
    first `best`, so no method with a budget of at least one evaluation ends worse than it. Every other price is billed:
    one per decision, repeated ones too.
    """

    initial: Any
    best: Any
    finalists: Finalists | None

    def __init__(self, graph: Graph, task: Task, cost: CostModel, *, evals: int, seconds: float = float("inf"),
                 seed: int = 0) -> None:  # fmt: skip
        self.graph, self.task, self._cost = graph, task, cost
        self.rng = np.random.default_rng(seed)
        self.evals_cap, self.seconds_cap = evals, seconds
        self.evals = 0
        self.initial_cost = self.best_cost = self._prepared()
        self.bound = 0.0  # no decision costs less than this, as a solver has proved; 0 without a proof
        self.notes: list[str] = []  # sentences about how the answer came about, for its row
        self._seen: set[int] = set()
        self.finalists = None if cost.deterministic else Finalists(self.solution)
        self._known: tuple[tuple[Any, ...], Solution] | None = None
        self.tell_time_by("wall")
        self.trace: list[Incumbent] = [Incumbent(0, 0.0, self.initial_cost)]
        self.approach: list[Incumbent] = []  # of billed decisions, while none was better than the default

    @abstractmethod
    def _prepared(self) -> float:
        """Sets `initial`, `best` and further state, before the clock starts; returns the default's price."""

    @property
    def objective(self) -> Objective:
        """The meaning of a cost."""
        return self._cost.objective

    @abstractmethod
    def _solution(self) -> Solution:
        """The best so far."""

    @abstractmethod
    def _best(self) -> tuple[Any, ...]:
        """Updates after a better decision was found."""

    def solution(self) -> Solution:
        """The result of the solve: the best so far, made anew only where a better one was found since."""
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
        """Counts a batch of prices; takes the lowest if it is the new best. state_at: argument of `take`, of each."""
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
        the lowest of these is the answer; the default where none is shown to be better than it. A decision without any
        price stands, unless its price is infinite."""
        if self.finalists is not None and self.finalists.candidates:
            winner = self.finalists.winner(judge, self.take_best)
            if winner is None:
                self.notes.append("no answer was shown to be better than the default")
            self.take_best(self.default_state() if winner is None else winner.state)
            self.best_cost = self.initial_cost if winner is None else winner.cost
        elif self.finalists is not None and math.isinf(self.solution().price(judge).cost):
            self.notes.append("what was decided without any price cannot be used, so the default is the answer")
            self.take_best(self.default_state())
            self.best_cost = self.initial_cost

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
