"""`Optimizer`: solves problems. One method, so classical and learned optimisers compete through one code path."""

from abc import ABC, abstractmethod
from typing import ClassVar

from graphopt.problem import Problem
from graphopt.tasks.base import AssignTask, Task


class Optimizer(ABC):
    """Solves problems.

    accepts: the classes of task it can solve. needs_heads: heads that the task must have (empty: any).
    needs_one_of: heads of which it must have at least one (empty: none).
    """

    name: str
    accepts: ClassVar[tuple[type[Task], ...]] = (AssignTask,)
    needs_heads: ClassVar[frozenset[str]] = frozenset()
    needs_one_of: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def solve(self, problem: Problem) -> None:
        """Spends at most the problem's budget. The answer is `problem.best`; OutOfBudget may pass through."""
