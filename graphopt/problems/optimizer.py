"""`Optimizer`: solves problems. One method, so classical and learned optimisers compete through one code path."""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from graphopt.core.errors import Unsolved
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Role
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.problem import OutOfBudget, Problem, Task

AnyProblem = TypeVar("AnyProblem", bound=Problem)


class Solver(ABC, Generic[AnyProblem]):
    """Solves problems of one kind.

    accepts: the classes of task it can solve. needs_roles: roles that heads of the task must have (empty: any).
    needs_one_of: roles of which it must have at least one (empty: none). knows_roles: roles beyond which it can solve
    nothing (empty: it can with any). needs: required parts of graphs, as those of cost models. objectives: those that
    it can optimise (empty: any). needs_cost: required offers of a cost model beside prices.
    """

    name: str
    accepts: ClassVar[tuple[type[Task], ...]]
    needs_roles: ClassVar[frozenset[Role]] = frozenset()
    needs_one_of: ClassVar[frozenset[Role]] = frozenset()
    knows_roles: ClassVar[frozenset[Role]] = frozenset()
    needs: ClassVar[frozenset[str]] = frozenset()
    objectives: ClassVar[frozenset[Objective]] = frozenset()
    needs_cost: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def unfit(cls, machine: Machine, task: Mapping[str, Any], decides: Collection[Role], objective: Objective | None
              ) -> str:  # fmt: skip
        """Requirements that a machine does not meet for a task of these settings and roles; empty when it meets all."""
        return ""

    @abstractmethod
    def solve(self, problem: AnyProblem) -> None:
        """Searches until it has nothing more to try or the budget is spent.

        Args:
            problem: a graph, a task, a cost model and a budget. Its `best` is the answer.
        Raises: OutOfBudget may pass through.
        """


class Optimizer(Solver[AssignProblem]):
    """Assigns a choice to every op."""

    accepts: ClassVar[tuple[type[Task], ...]] = (AssignTask,)


def unpriced(algo: type[Solver[Any]], cost: type[CostModel], objective: Objective | None) -> str:
    """Requirements of an algorithm that a cost model does not meet; empty when it meets all."""
    if algo.objectives and objective is not None and objective not in algo.objectives:
        words = (f"cost.objective={one} judge.objective={one}" for one in sorted(algo.objectives))
        return f"needs {' or '.join(words)}, not {objective}"
    missing = algo.needs_cost - cost.provides
    return f"needs a cost model that provides {', '.join(sorted(missing))}" if missing else ""


def solve(optimizer: Solver[AnyProblem], graph: Graph, task: Task, cost: CostModel, *, evals: int,
          seconds: float | None = None, seed: int = 0) -> tuple[AnyProblem, float]:  # fmt: skip
    """(the solved problem, seconds it took). The answer to a budget of 0 is priced here, unbilled. Raises Unsolved."""
    wrong = unpriced(type(optimizer), type(cost), cost.objective)
    if wrong:
        raise Unsolved(f"algo={optimizer.name} {wrong}")
    problem: Any = task.open(graph, cost, evals=evals, seconds=math.inf if seconds is None else seconds, seed=seed)
    with contextlib.suppress(OutOfBudget):
        optimizer.solve(problem)
    spent = problem.seconds
    if evals == 0:
        problem.best_cost = problem.solution().price(cost).cost
    return problem, spent
