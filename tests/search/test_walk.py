"""What a walk remembers: refused requests stay without deltas, and are forgotten with them."""

import numpy as np
import pytest
from test_compiler_rules import GPU, chain

from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.problems.problem import Problem
from graphopt.search.walks.moves import Walk, slots_of, start_walk
from graphopt.tasks.fusion import Fusion


def capped_chain(deltas: bool) -> tuple[Problem, Walk]:
    """Four ops, at most two per kernel, everything stored."""
    machine = Machine(name="m", devices=(GPU,))
    task = Fusion(
        name="fusion", machine=machine, decision="binary", levels=2, max_ops=2, max_inputs=16, max_duplicates=8
    )
    cost = Simulator(name="simulator", machine=machine, objective="runtime", threads=1)
    problem = Problem(chain(4), task, cost, evals=50)
    return problem, start_walk(problem, slots_of(problem), "zero", deltas=deltas)


def try_flip(walk: Walk, op: int) -> float:
    choice = 1 - int(walk.decision[op, 0])
    score = walk.price_one(op, 0, choice)
    if score <= walk.score:
        walk.take(op, 0, choice, score)
    return score


@pytest.mark.parametrize("deltas", [False, True])
def test_refused_requests(deltas: bool) -> None:
    """Inlining op 2 fills its kernel, so op 1 is refused: same price."""
    _, walk = capped_chain(deltas)
    stored = walk.score
    one = try_flip(walk, 2)
    assert one < stored
    assert try_flip(walk, 1) == one
    assert walk.decision[:, 0].tolist() == ([0, 0, 1, 0] if deltas else [0, 1, 1, 0])
    two = try_flip(walk, 0)  # joins op 1
    assert two < one
    assert walk.decision[:, 0].tolist() == ([1, 0, 1, 0] if deltas else [1, 1, 1, 0])
    walk.take(2, 0, 0, walk.price_one(2, 0, 0))  # room for op 1 in the kernel of op 2: a remembered request takes it
    expected = {False: 2, True: 1}[deltas]
    assert walk.decision[:, 0].sum() == expected


@pytest.mark.parametrize("deltas", [False, True])
def test_scores_are_the_prices_of_decisions(deltas: bool) -> None:
    problem, walk = capped_chain(deltas)
    for op in (2, 0, 2, 1):
        score = walk.price_one(op, 0, 1 - int(walk.decision[op, 0]))
        walk.take(op, 0, 1 - int(walk.decision[op, 0]), score)
        assert problem.cost(walk.decision[None])[0] == walk.score
    assert np.isfinite(walk.score)
