"""`Optimizer`: solves problems. One method, so classical and learned optimisers compete through one code path."""

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from graphopt.problem import Problem
from graphopt.rewrite_problem import RewriteProblem
from graphopt.tasks.base import AssignTask, RewriteTask, Task

AnyProblem = TypeVar("AnyProblem")


class Solver(ABC, Generic[AnyProblem]):
    """Solves problems of one kind.

    accepts: the classes of task it can solve. needs_heads: heads that the task must have (empty: any).
    needs_one_of: heads of which it must have at least one (empty: none).
    """

    name: str
    accepts: ClassVar[tuple[type[Task], ...]]
    needs_heads: ClassVar[frozenset[str]] = frozenset()
    needs_one_of: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def solve(self, problem: AnyProblem) -> None:
        """Spends at most the problem's budget. The answer is `problem.best`; OutOfBudget may pass through."""


class Optimizer(Solver[Problem]):
    """Assigns a choice to every op."""

    accepts = (AssignTask,)


class Rewriter(Solver[RewriteProblem]):
    """Finds an equivalent program."""

    accepts = (RewriteTask,)
