"""Local search that moves what decides the price: weighted moves, what a simulated run says, starts, budgets."""

from typing import Any

import numpy as np
import pytest
from cells import option
from test_key_walks import NONE, open_problem

from graphopt.core.utils import registry
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.walks.hot_local import INDEX, RunColumns
from graphopt.search.walks.key_moves import KINDS, Moves, WeightedMoves

ROLES = {"device": KeyRole.AFFINITY, "block": KeyRole.AFFINITY, "swap": KeyRole.PRIORITY, "shift": KeyRole.PRIORITY,
         "transfer": KeyRole.TRANSFER}  # fmt: skip


def problem_of(objective: str = "peak_memory", evals: int = 100) -> AssignProblem:
    return open_problem(60, devices=2, evals=evals, objective=objective)


def solved(problem: AssignProblem, modelled: int, evals: int) -> Any:
    algo = option("algo", "hot_local", walk=registry.option("algo", "hot_local")["walk"] | {"modelled": modelled})
    return solve(algo, problem.graph, problem.task, problem._cost, evals=evals)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_weighted_move_changes_the_op_that_it_was_drawn_for(kind: str) -> None:
    problem, rng = problem_of(), np.random.default_rng(3)
    layout, moves = problem.layout, WeightedMoves(problem, Moves(**(NONE | {kind: 1.0})))
    keys, number = rng.random(len(layout), np.float32), KINDS.index(kind)
    assert moves.base.sum() == pytest.approx(1.0) and not np.delete(moves.base, number, 0).any()
    one = int(rng.choice(np.flatnonzero(moves.base[number])))
    weight = np.zeros_like(moves.base)
    weight[number, one] = 2.0
    drawn = moves.drawn(weight, 50, rng)
    assert (drawn.kind == number).all() and (drawn.op == one).all()
    changed = moves.made(keys, drawn, rng) != keys
    assert changed.any() and set(layout.role[changed.any(0)]) == {ROLES[kind]}
    assert all(one in layout.op[row] for row in changed if row.any())
    assert moves.made(keys, drawn, rng, together=True).shape == (1, len(keys))


def test_a_run_on_more_devices_than_ops() -> None:
    problem = open_problem(20, devices=62)
    keys = np.random.default_rng(0).random(len(problem.layout), np.float32)
    found = RunColumns(problem).of(keys)
    assert np.isfinite(found).all() and found[:, INDEX["critical"]].any()


def test_what_a_run_says_of_ops() -> None:
    """Results that live at the peak are a part of it; the chain that ends last spans the run."""
    problem = problem_of()
    columns = RunColumns(problem)
    for keys in heuristic_keys(problem):
        said = columns.of(keys)
        assert np.isfinite(said).all() and (said >= -1e-6).all()
        live = said[:, INDEX["live"]].sum() + said[:, INDEX["held"]].sum()
        assert 0.0 < live <= 1.0 + 1e-6
        assert not (said[:, INDEX["live"]] * (1.0 - said[:, INDEX["full"]])).any()  # on the fullest device
        chain = said[:, INDEX["critical"]] > 0
        assert said[chain, INDEX["begins"]].min() == pytest.approx(0.0, abs=1e-6)
        assert said[chain, INDEX["ends"]].max() == pytest.approx(1.0)


@pytest.mark.parametrize("objective", ["peak_memory", "runtime"])
def test_it_starts_from_the_best_heuristic_and_spends_the_budget(objective: str) -> None:
    problem = problem_of(objective, evals=400)
    least = problem.cost_keys(heuristic_keys(problem)).min()
    found = solved(problem, 0, 400)
    assert found.evals == 400 and found.best_cost <= least and found.best_cost < problem.initial_cost


def test_simulated_runs_are_no_evaluations() -> None:
    problem = problem_of()
    for evals in (0, 1, 30):
        found = solved(problem, 300, evals)
        assert found.evals == evals and found.best_cost < problem.initial_cost
    assert solved(problem, 0, 0).best_cost == problem.initial_cost
