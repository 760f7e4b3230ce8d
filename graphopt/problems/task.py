"""The task's contract. A task owns the meaning of decisions and opens problems about them; it never sees a price.

Shape legend: B decisions, N ops, H heads (kinds of choice per op), K choices of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.kernels import Limits
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.keys import Keys, Layout
from graphopt.problems.problem import Problem


class Task(ABC):
    """What may be decided about a graph on a machine."""

    name: str
    machine: Machine
    noun: ClassVar[str] = "a task"  # what kind of task, for messages
    needs: ClassVar[frozenset[str]] = frozenset()  # what a graph must carry
    head_names: ClassVar[frozenset[str]] = frozenset()  # what it decides, whatever its settings
    makes_programs: ClassVar[bool] = False  # its answers are programs, not only plans of one

    @classmethod
    def heads_of(cls, settings: Mapping[str, Any]) -> frozenset[str]:
        """What it decides with these settings, those of its yaml file; known before anything is built."""
        return cls.head_names

    @abstractmethod
    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> Problem:  # fmt: skip
        """The problem of a graph, with the budget of one solve."""


class AssignTask(Task):
    """One choice per op and head. `heads` maps each head to its number of choices, in the order of the last axis."""

    noun = "a task that assigns a choice to every op"
    heads: dict[str, int]
    limits: Limits | None = None  # caps on kernels, where the task decides fusion

    @abstractmethod
    def initial(self, graph: Graph) -> Decision:
        """[N, H] the default heuristic's decision: what a user gets without any search."""

    @abstractmethod
    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        """[N, H] True where the op has a choice under that head (the configurable nodes)."""

    @abstractmethod
    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        """Plans of all decisions. Illegal requests are resolved deterministically, never refused."""

    @abstractmethod
    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Plans of random keys: `keys` is [B, K] in [0, 1] with K = `key_count(graph)` (for random-key methods)."""

    @abstractmethod
    def layout(self, graph: Graph) -> Layout:
        """What each random key decides."""

    def open(self, graph: Graph, cost: CostModel, *, evals: int, seconds: float = float("inf"),
             seed: int = 0) -> AssignProblem:  # fmt: skip
        return AssignProblem(graph, self, cost, evals=evals, seconds=seconds, seed=seed)

    def key_count(self, graph: Graph) -> int:
        """Number of random keys that describe one plan."""
        return len(self.layout(graph))

    def canonical(self, graph: Graph, decision: Decision) -> Decision:
        """The decision with refused requests removed: same plan, and what it says is what happens."""
        return decision

    @property
    def num_choices(self) -> int:
        """Largest number of choices over the heads."""
        return max(self.heads.values())
