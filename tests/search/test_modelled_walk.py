"""Compound moves by a model of kernels, and the walk that evaluates them."""

from typing import Any

import numpy as np
import pytest
from cells import fusion, simulator
from fusion_graphs import GPU, RICH, random_graph

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.one_kernel.flips import FusionFlips
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import Pricing
from graphopt.search.fusion.modelled_scan import Compound, CompoundMoves, walk_by_model

MACHINE, TRUE = Machine(name="model", devices=(RICH,)), Machine(name="true", devices=(GPU,))
FUSION = fusion(TRUE, max_ops=24, max_inputs=8, max_duplicates=4)
MODEL, COST = simulator(MACHINE), simulator(TRUE)


def opened(graph: Graph, evals: int = 0, cost: Simulator = COST) -> Any:
    return FUSION.open(graph, cost, evals=evals, seconds=np.inf, seed=0)


def moves_in(graph: Graph, problem: Any) -> CompoundMoves:
    moves = CompoundMoves.around(problem, MODEL, FUSION.canonical(graph, FUSION.initial(graph)))
    assert moves is not None
    return moves


def modelled(graph: Graph, decision: np.ndarray) -> float:
    return float(Pricing(graph, FUSION, MODEL).decisions(decision[None]).cost[0])


@pytest.mark.parametrize("seed", range(4))
def test_a_move_costs_what_the_model_says_of_the_decision_it_makes(seed: int) -> None:
    graph = random_graph(seed, 50)
    moves = moves_in(graph, opened(graph))
    start = modelled(graph, moves.decision)
    for op in moves.ops.tolist():
        made = moves.forced(np.array([op]))
        if made is not None:
            after = moves.decision.copy()
            after[made.ops, 0] = 1 - after[made.ops, 0]
            assert made.seconds == pytest.approx(modelled(graph, after) - start, rel=1e-6, abs=1e-12)
            whole = moves.whole(after)
            assert whole is not None and whole.ops.tolist() == made.ops.tolist()
            assert whole.seconds == pytest.approx(made.seconds, rel=1e-6, abs=1e-12) and whole.touched > 0


def test_moves_go_where_no_single_flip_does() -> None:
    """From local optima of single flips; of some graphs at least."""
    further = 0
    for seed in range(8):
        graph = random_graph(seed, 60)
        moves = moves_in(graph, opened(graph))
        start, ops = FUSION.realise(graph, moves.decision[None]).inline[0], moves.ops
        flips = FusionFlips(graph, start, RICH, FUSION.limits)
        while (prices := flips.price(ops)).min() < flips.cost * (1 - 1e-9):
            flips.apply(int(ops[prices.argmin()]))
        stuck = (flips.inline & FUSION.mask(graph)[:, 0])[:, None].astype(np.int16)
        moves.move_to(stuck)
        end = moves.descend(1000)
        assert modelled(graph, end) <= modelled(graph, stuck)
        further += modelled(graph, end) < modelled(graph, stuck) * (1 - 1e-6)
    assert further >= 2


def test_what_is_sure_and_what_is_uncertain_is_expected_to_help() -> None:
    ops = np.array([0])
    assert Compound(ops, -1.0, 1e-9).expected == pytest.approx(1.0)
    assert Compound(ops, 1.0, 1e-9).expected == 0.0
    assert Compound(ops, 0.01, 4.0).expected > Compound(ops, 0.01, 1.0).expected > 0.0


class Unmoved:
    """A model that learns nothing."""

    def saw(self, decision: np.ndarray, cost: float) -> None: ...

    def machine(self) -> Machine:
        return MACHINE


@pytest.mark.parametrize("fitted", [None, Unmoved()])
@pytest.mark.parametrize("seed", range(3))
def test_a_walk_evaluates_nothing_twice_and_ends(seed: int, fitted: Unmoved | None) -> None:
    graph = random_graph(seed, 12)
    problem = opened(graph, 5000)
    walk_by_model(problem, moves_in(graph, problem), 2, fitted)
    assert problem.evals < 5000 and problem.best_cost <= problem.initial_cost
    solution = problem.solution()
    assert solution.price(COST).cost == problem.best_cost
    assert problem.distinct == problem.evals
