"""Parts of every search: the configurable slots of a graph, scores of decisions, a walk over single changes, and
classes of alike ops (Weisfeiler-Leman). Blocks of a network repeat, so one evaluation that changes an op everywhere
tells more than one that changes it once.

Shape legend: B decisions, K changes, N ops, H heads, M slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.colours import colours, largest_result
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.plan import Decision, Decisions
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.search.heuristics.starts import heuristic_decisions

INFEASIBLE = 1e30  # every infeasible score is beyond it, ordered by its excess
BATCH_ENTRIES = 1 << 21  # decisions are priced in batches of about this many int16 entries

Start = Literal["initial", "random", "zero", "heuristic"]


@dataclass(frozen=True, slots=True)
class Slots:
    """The M pairs (op, head) that have a choice, by op."""

    op: I64  # [M]
    head: I64  # [M]
    choices: I64  # [M] number of choices
    first: I64  # [N+1] slots of op n are first[n] .. first[n+1]-1

    def __len__(self) -> int:
        return len(self.op)

    def of_ops(self, ops: I64) -> I64:
        """The slots of some ops."""
        return np.concatenate([np.arange(self.first[op], self.first[op + 1]) for op in ops])


def slots_of(problem: AssignProblem) -> Slots:
    """The configurable slots of a problem; empty when nothing can be decided."""
    return slots_in(problem.task, problem.graph)


def slots_in(task: AssignTask, graph: Graph) -> Slots:
    """The configurable slots of a graph under a task; empty when nothing can be decided."""
    counts = task.counts(graph)
    op, head = np.nonzero(counts > 1)
    first = np.searchsorted(op, np.arange(graph.num_ops + 1))
    return Slots(op.astype(np.int64), head.astype(np.int64), counts[op, head], first.astype(np.int64))


def scores(problem: AssignProblem, decisions: Decisions) -> F64:
    """[B] prices, billed; an infeasible decision scores beyond every feasible one, the worse the larger its excess."""
    return penalised(problem.cost(decisions), problem.last_excess)


def penalised(cost: F64, excess: F64) -> F64:
    """Costs, infeasible ones beyond every feasible one, the worse the larger their excess."""
    return np.where(np.isfinite(cost), cost, INFEASIBLE * (1.0 + excess))


def batch_size(problem: AssignProblem) -> int:
    """Decisions to price in one call: bounded by memory and by the rest of the budget."""
    return max(1, min(problem.remaining, BATCH_ENTRIES // (problem.graph.num_ops * len(problem.task.heads))))


def progress(problem: AssignProblem) -> float:
    """Share of the budget that is spent, in [0, 1]: of evaluations or of seconds, whichever is further."""
    return min(1.0, max(problem.evals / max(1, problem.evals_cap), problem.seconds / problem.seconds_cap))


def uniform(problem: AssignProblem, slots: Slots, count: int) -> Decisions:
    """[count, N, H] the initial decision with every slot redrawn uniformly."""
    decisions = np.repeat(problem.initial[None], count, 0)
    decisions[:, slots.op, slots.head] = problem.rng.integers(0, slots.choices, (count, len(slots)))
    return decisions


def other_choice(rng: np.random.Generator, current: int, choices: int) -> int:
    """A choice that differs from the current one, uniformly."""
    return int((current + rng.integers(1, choices)) % choices)


def neighbourhood(graph: Graph, op: int, hops: int) -> I64:
    """Ops within `hops` edges of `op`, either way, itself included, ascending."""
    ways, found, frontier = (graph.predecessors, graph.successors), {op}, {op}
    for _ in range(min(hops, graph.num_ops)):
        beside = (column[ptr[at] : ptr[at + 1]].tolist() for at in frontier for ptr, column in ways)
        frontier = {n for ops in beside for n in ops} - found
        found |= frontier
    return np.array(sorted(found), np.int64)


class Walk:
    """A current decision and its score, and the scores of decisions that differ from it in one slot.

    The start must have been priced, or be the initial decision. A request that fusion refuses stays in the decision and
    takes effect as soon as it becomes legal, which makes better searches.
    """

    def __init__(self, problem: AssignProblem, start: Decision, score: float) -> None:
        self._problem, self.decision, self.score = problem, start.copy(), score

    def price(self, op: I64, head: I64, choice: I64) -> F64:
        """[K] scores after each change alone; billed K evaluations, OutOfBudget when the budget ends before."""
        chunks, step = [], batch_size(self._problem)
        for start in range(0, len(op), step):
            rows = slice(start, start + step)
            decisions = np.repeat(self.decision[None], len(op[rows]), 0)
            decisions[np.arange(len(decisions)), op[rows], head[rows]] = choice[rows]
            chunks.append(scores(self._problem, decisions))
        return np.concatenate(chunks) if chunks else np.zeros(0)

    def price_one(self, op: int, head: int, choice: int) -> float:
        """Score after one change; one evaluation."""
        return float(self.price(np.array([op]), np.array([head]), np.array([choice]))[0])

    def take(self, op: int, head: int, choice: int, score: float) -> None:
        """Makes a priced change the current decision; free."""
        self.decision[op, head] = choice
        self.score = score

    def move_to(self, decision: Decision, score: float) -> None:
        """Makes any priced decision the current one."""
        self.decision, self.score = decision, score


def start_walk(problem: AssignProblem, slots: Slots, start: Start) -> Walk:
    """A walk from the `initial` decision (free), from a `random` one, or from choice 0 everywhere (`zero`). It may also
    begin at the best of all heuristics for devices and priorities (`heuristic`), each of which is an evaluation. All
    but the first are billed."""
    if start == "initial":
        return Walk(problem, problem.initial, problem.initial_cost)
    if start == "heuristic":
        decisions, step = heuristic_decisions(problem), batch_size(problem)
        for first in range(0, len(decisions), step):
            problem.cost(decisions[first : first + step])
        return Walk(problem, problem.best, problem.best_cost)
    decision = uniform(problem, slots, 1)[0]
    if start == "zero":
        decision[slots.op, slots.head] = 0
    return Walk(problem, decision, float(scores(problem, decision[None])[0]))


def alike(graph: Graph, free: NDArray[np.bool_], depth: int) -> Iterator[list[I64]]:
    """For 0 .. depth hops: the classes of at least two ops that are alike so far, each ascending, the largest first.

    Alike are free ops (free [N]) of one colour: the same operator and elements of the largest result, and from one hop
    on alike inputs and readers. A class that a smaller number of hops has given already is left out.
    """
    given: set[tuple[int, ...]] = set()
    ops = np.flatnonzero(free)
    for colour in islice(colours(graph, graph.kind, largest_result(graph), free), depth + 1):
        by_colour = ops[np.argsort(colour[ops], kind="stable")]
        parts = np.split(by_colour, np.flatnonzero(np.diff(colour[by_colour])) + 1)
        classes = [part for part in parts if len(part) > 1 and tuple(part.tolist()) not in given]
        given.update(tuple(part.tolist()) for part in classes)
        yield sorted(classes, key=lambda part: (-len(part), int(part[0])))


def try_decision(problem: AssignProblem, walk: Walk, candidate: Decision) -> bool:
    """Prices a decision that is another one and keeps it if it is better; whether it was."""
    if (candidate == walk.decision).all():
        return False
    score = float(scores(problem, candidate[None])[0])
    if score >= walk.score:
        return False
    walk.move_to(candidate, score)
    return True
