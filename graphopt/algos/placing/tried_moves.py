"""Moves that were tried along a search, with what was known of them and whether they made the plan cheaper.

Shape legend: N ops, F columns, I inputs, R moves.
"""

import contextlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.problem import OutOfBudget
from graphopt.problems.task import AssignTask
from graphopt.search.genetic.evolution import F32, priced_by
from graphopt.search.walks.hot_local import COLUMNS, GuidedWalk, RunColumns
from graphopt.search.walks.key_moves import Descent, Drawn, WeightedMoves, first_plan

LEAST = 1e-9  # relative gain that counts as one


@dataclass(frozen=True)
class Tried:
    """inputs: [R, I]. kind: [R]. better: [R] 1 where the plan became cheaper. evals: what trying them cost."""

    inputs: F32
    kind: I64
    better: F32
    evals: int


def seen(columns: NDArray[np.float32], around: RunColumns, neighbours: bool) -> F32:
    """[N, I] columns [N, F] of an op; with neighbours also their means over its makers, its readers and the graph."""
    if not neighbours:
        return columns
    makers = _mean(columns, around.source, around.reader)
    readers = _mean(columns, around.reader, around.source)
    return np.concatenate([columns, makers, readers, np.broadcast_to(columns.mean(0), columns.shape)], 1)


def _mean(columns: NDArray[np.float32], said: I64, heard: I64) -> F32:
    total = np.zeros_like(columns)
    np.add.at(total, heard, columns[said])
    count = np.maximum(np.bincount(heard, minlength=len(columns)), 1)[:, None]
    return np.asarray(total / count, np.float32)


def tried_moves(graph: Graph, task: AssignTask, cost: CostModel, walk: GuidedWalk, *, evals: int, probes: int,
                neighbours: bool, seed: int) -> Tried:  # fmt: skip
    """Moves by chance along a local search from the best heuristic; of ops that may teach."""
    problem = AssignProblem(graph, task, cost, evals=evals, seed=(seed * 1_000_003 + int(graph.hash[:7], 16)) % 2**31)
    columns, moves, rows = RunColumns(problem), WeightedMoves(problem, walk.moves), []
    with contextlib.suppress(OutOfBudget):
        for keys, drawn, better in _along(problem, moves, walk, probes):
            kept = graph.taught[drawn.op]
            own = seen(columns.of(keys), columns, neighbours)[drawn.op]
            rows.append((own[kept], drawn.kind[kept], better[kept].astype(np.float32)))
    empty = np.zeros((0, len(COLUMNS) * (4 if neighbours else 1)), np.float32)
    rows.append((empty, np.zeros(0, np.int64), np.zeros(0, np.float32)))
    inputs, kind, gained = (np.concatenate(part) for part in zip(*rows, strict=True))
    return Tried(inputs, kind, gained, problem.evals)


def _along(problem: AssignProblem, moves: WeightedMoves, walk: GuidedWalk, probes: int):  # type: ignore[no-untyped-def]
    """(keys [K], moves from there, [probes] whether each made the plan cheaper), until OutOfBudget."""
    price, rng = priced_by(problem), problem.rng
    at = Descent(*first_plan(problem, "heuristic", price))
    while moves.base.any():
        drawn: Drawn = moves.drawn(moves.base, probes, rng)
        batch = moves.made(at.here, drawn, rng)
        found = price(batch)
        yield at.here, drawn, found < at.cost * (1.0 - LEAST)
        at.step(batch, found)
        if at.since >= walk.patience:
            keys = moves.made(at.best, moves.drawn(moves.base, walk.kick, rng), rng, together=True)[0]
            at.restart(keys, float(price(keys[None])[0]))
