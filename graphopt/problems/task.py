"""The task's contract. A task owns the meaning of decisions and opens problems about them; it never sees a price.

Shape legend: B decisions, N ops, H heads (kinds of choice per op), K choices of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Incompatible
from graphopt.core.graph import I64, Graph
from graphopt.core.head import Head, Role
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.choices import Choices
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.keys import KeyLayout, KeyRole, Keys, choices, layout
from graphopt.problems.problem import Problem
from graphopt.problems.solution import Decided


class Task(ABC):
    """What may be decided about a graph on a machine."""

    name: str
    machine: Machine
    noun: ClassVar[str] = "a task"  # what kind of task, for messages
    needs: ClassVar[frozenset[str]] = frozenset()  # what a graph must carry
    roles: ClassVar[Mapping[str, Role]] = {}  # what it decides by the names of its heads, whatever its settings
    decided: ClassVar[type[Decided]]  # what its answers hold, and how they are read from files
    heads: tuple[Head, ...] = ()  # kinds of choice that ops are given
    makes_programs: ClassVar[bool] = False  # its answers are programs, not only plans of one

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        """What it decides with these settings, those of its yaml file; known before anything is built."""
        return cls.roles

    @abstractmethod
    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> Problem:  # fmt: skip
        """The problem of a graph, with the budget of one solve."""

    def objections(self, plans: Plans) -> list[str]:
        """What a check of the task's own finds wrong with a plan (a batch of one), beside those of every plan."""
        return []


class AssignTask(Task):
    """One choice per op and head; `heads` are in the order of the last axis of decisions."""

    noun = "a task that assigns a choice to every op"
    decided = Choices
    heads: tuple[Head, ...]
    limits: KernelLimits | None = None  # caps on kernels, where the task decides fusion

    @abstractmethod
    def initial(self, graph: Graph) -> Decision:
        """[N, H] the default heuristic's decision: what a user gets without any search."""

    @abstractmethod
    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        """[N, H] True where the op has a choice under that head (the configurable nodes)."""

    def counts(self, graph: Graph) -> I64:
        """[N, H] how many choices an op has under a head, 1 where it has none. A task in which ops differ overrides it:
        the choices of an op are the first of its head's."""
        return np.where(self.mask(graph), [head.count for head in self.heads], 1)

    def decides(self, role: Role) -> bool:
        """Whether one of its heads has that role."""
        return any(head.role is role for head in self.heads)

    def column(self, role: Role) -> int:
        """The position of its first head of that role. Raises Incompatible without one."""
        if not self.decides(role):
            names = ", ".join(head.name for head in self.heads)
            raise Incompatible(f"choose a task that decides {role.value}; task={self.name} decides {names}")
        return next(column for column, head in enumerate(self.heads) if head.role is role)

    @abstractmethod
    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        """Plans of all decisions. Illegal requests are resolved deterministically, never refused."""

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Plans of random keys: `keys` is [B, K] in [0, 1] with K = `key_count(graph)` (for random-key methods). Unless
        overridden, a CHOICE key for every op under the first head, then under the second, ..."""
        parts = np.split(keys, len(self.heads), axis=1)
        chosen = [choices(part, head.count) for part, head in zip(parts, self.heads, strict=True)]
        return self.realise(graph, np.stack(chosen, 2))

    def layout(self, graph: Graph) -> KeyLayout:
        """What each random key decides."""
        return layout(graph, 1, *((KeyRole.CHOICE, column) for column in range(len(self.heads))))

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> AssignProblem:  # fmt: skip
        return AssignProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)

    def key_count(self, graph: Graph) -> int:
        """Number of random keys that describe one plan."""
        return len(self.layout(graph))

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        """The decision with refused requests removed: same plan, and what it says is what happens. plan: its plan (a
        batch of one), where that is known."""
        return decision

    @property
    def num_choices(self) -> int:
        """Largest number of choices over the heads."""
        return max(head.count for head in self.heads)
