"""`Solution`: what a solve of any task ends with, and `Decided`, what the file of one holds.

`Decided` can be read, listed and compared without the graph. With graph and task it is a `Solution`, which has plans,
is priced, checked and delivered. Kinds of task differ in their `Decided`, nowhere else.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph
from graphopt.core.oracles import check
from graphopt.core.plan import Plans
from graphopt.problems.answer_format import Arrays
from graphopt.problems.cost_model import CostModel, Price
from graphopt.problems.pricing import price_of


@dataclass(frozen=True, slots=True)
class Equality:
    """When two programs count as equal: on so many draws of weights and inputs, no output differs by more than
    `tolerance` of its largest value, in double precision."""

    draws: int = 5
    tolerance: float = 1e-9


@dataclass(frozen=True, eq=False)
class Decided(ABC):
    """What was decided about a graph."""

    header: dict[str, Any]  # of a file; before there is one, only what this kind of decision adds to it
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
        """Why it is no answer to what another answer to the same graph starts from; empty where it is."""
        return ""

    @abstractmethod
    def arrays(self) -> Arrays:
        """What its file holds beside header and trace."""

    @abstractmethod
    def plans(self, graph: Graph, task: Any) -> Plans:
        """What would run, a batch of one; task: of the kind that decides so."""

    @abstractmethod
    def default_plans(self, graph: Graph, task: Any) -> Plans:
        """The same of what a user gets without any search."""

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """(label, text) of what there is to know besides the prices."""

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
        """Heads under which single choices say what the answer does."""
        return ()

    @property
    def rules(self) -> tuple[str, ...]:
        """Names of the rewriting rules that were applied, in order."""
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
        """What independent checks find wrong besides the plan."""
        return []

    def deliver(self, task: Any, path: Path) -> list[str] | None:
        """Writes the model that was made, for its user; what is wrong with it. None: no model was made."""
        return None


class Solution:
    """What was decided about a graph under a task. Plans are made once, when they are first asked for."""

    def __init__(self, graph: Graph, task: Any, decided: Decided, plans: Plans | None = None,
                 default_plans: Plans | None = None) -> None:  # fmt: skip
        self.graph, self.task, self.decided = graph, task, decided
        self._known: Mapping[str, Plans | None] = {"plans": plans, "default": default_plans}

    @cached_property
    def plans(self) -> Plans:
        """What would run, a batch of one. Of a rewritten program it is the plan of its own graph."""
        return self._known["plans"] or self.decided.plans(self.graph, self.task)

    @cached_property
    def default_plans(self) -> Plans:
        """What would run without any search, likewise."""
        return self._known["default"] or self.decided.default_plans(self.graph, self.task)

    def price(self, cost: CostModel) -> Price:
        """By a cost model."""
        return self.decided.price(cost, lambda: self.plans)

    def default_price(self, cost: CostModel) -> Price:
        """Of the default."""
        return self.decided.default_price(cost, lambda: self.default_plans)

    def violations(self) -> list[str]:
        """What independent checks find wrong."""
        found: list[str] = check(self.plans, self.task.machine) + self.task.objections(self.plans)
        return found + self.decided.violations()

    def deliver(self, path: Path) -> list[str] | None:
        """Writes the model that was made, for its user; what is wrong with it. None: no model was made."""
        return self.decided.deliver(self.task, path)
