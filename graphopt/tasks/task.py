"""The task's contract. A task owns the meaning of decisions; it never sees a price.

Shape legend: B decisions, N ops, H heads (kinds of choice per op), K choices of a head.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.errors import UserError
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.rules.rule import RuleSet
from graphopt.tasks.keys import KeyLayout, Keys

MOST_LEVELS = 2**15 - 1  # decisions are 16-bit numbers
Decisions = NDArray[np.int16]  # [B, N, H]
Decision = NDArray[np.int16]  # [N, H]


def checked_levels(levels: int) -> int:
    """Raises UserError unless so many levels fit into a decision."""
    if not 1 <= levels <= MOST_LEVELS:
        raise UserError(f"task.levels={levels} must be from 1 to {MOST_LEVELS:,}")
    return levels


class Task(ABC):
    """What may be decided about a graph on a machine."""

    name: str
    machine: Machine
    noun: ClassVar[str] = "a task"  # what kind of task, for messages
    needs: ClassVar[frozenset[str]] = frozenset()  # what a graph must carry
    head_names: ClassVar[frozenset[str]] = frozenset()  # what it decides, whatever its settings

    @classmethod
    def heads_of(cls, settings: Mapping[str, Any]) -> frozenset[str]:
        """What it decides with these settings, those of its yaml file; known before anything is built."""
        return cls.head_names


class AssignTask(Task):
    """One choice per op and head. `heads` maps each head to its number of choices, in the order of the last axis."""

    noun = "a task that assigns a choice to every op"
    heads: dict[str, int]
    limits: KernelLimits | None = None  # caps on kernels, where the task decides fusion

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
    def layout(self, graph: Graph) -> KeyLayout:
        """What each random key decides."""

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


class RewriteTask(Task):
    """A decision is an equivalent program: what verified rules make of the original."""

    noun = "a task that rewrites the graph"
    needs = frozenset({"terms"})
    rules: RuleSet
    growth: float  # programs of more than this many times the original's ops are not looked at
    export: bool  # write the best program of an ONNX model as one

    @abstractmethod
    def initial(self, graph: Graph) -> Program:
        """The program as it was given."""

    @abstractmethod
    def realise(self, graph: Graph, program: Program) -> Plans:
        """The plan of a program equivalent to the graph's: a batch of one, of its own rewritten graph."""
