"""Answers of fusion rules: from flags per op to a decision under the task's heads, priced once."""

import numpy as np
from numpy.typing import NDArray

from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision


def answer(problem: AssignProblem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> None:
    """Answers with the flags `inline` [N]: one evaluation, or a commitment where there is no budget.

    rank: [N] order in which the rule inlined the ops, from 0.
    """
    decision = as_decision(problem, inline, rank)
    if problem.open:
        problem.cost(decision[None])
    else:
        problem.commit(decision)


def as_decision(problem: AssignProblem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> Decision:
    """[N, H] the initial decision with its fusion head replaced where an op has a choice.

    With K choices stored ops get 0, inlined ones K-1 (inlined first) to 1. Raises Incompatible when the task decides no
    fusion.
    """
    column = problem.task.column(Role.FUSION)
    most = problem.task.heads[column].count - 1
    order = np.argsort(np.argsort(np.where(inline, rank, np.iinfo(np.int64).max), kind="stable"), kind="stable")
    choices = np.where(inline, most - order * most // max(1, int(inline.sum())), 0)
    decision = problem.initial.copy()
    free = problem.task.mask(problem.graph)[:, column]
    decision[free, column] = choices[free]
    return decision
