"""Classical optimisers against brute force, budgets and determinism, on toy problems."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyCost, ToyTask, toy_graph, toy_problem

from graphopt.problems.metering import OutOfBudget
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import Problem
from graphopt.search.heuristics.default import Default
from graphopt.search.walks.annealing import Annealing
from graphopt.search.walks.greedy import Greedy
from graphopt.search.walks.local import LocalSearch, local_search
from graphopt.search.walks.moves import neighbourhood, slots_of, start_walk
from graphopt.search.walks.random import RandomSearch
from graphopt.search.walks.scan import Scan

OPTIMISERS: dict[str, Callable[[], Optimizer]] = {
    "default": lambda: Default(name="default"),
    "random": lambda: RandomSearch(name="random", change=1.0),
    "random_near": lambda: RandomSearch(name="random", change=0.2),
    "local": lambda: LocalSearch(name="local", start="initial", hops=0, deltas=True),
    "local_random": lambda: LocalSearch(name="local", start="random", hops=0, deltas=True),
    "local_hop": lambda: LocalSearch(name="local", start="initial", hops=1, deltas=False),
    "scan": lambda: Scan(name="scan", start="initial", deltas=True),
    "scan_random": lambda: Scan(name="scan", start="random", deltas=True),
    "greedy": lambda: Greedy(name="greedy", start="zero"),
    "annealing": lambda: Annealing(name="annealing", start="initial", hot=0.05, cold=0.03, deltas=True),
}
SEARCHERS = [name for name in OPTIMISERS if name != "default"]
HEADS = [{"inline": 2}, {"device": 3}, {"device": 2, "priority": 4}]


def solve(name: str, problem: Problem) -> None:
    with contextlib.suppress(OutOfBudget):
        OPTIMISERS[name]().solve(problem)


@pytest.mark.parametrize("name", OPTIMISERS)
@settings(max_examples=15, deadline=None)
@given(
    evals=st.sampled_from([0, 1, 2, 3, 17, 60]),
    heads=st.sampled_from(HEADS),
    deltas=st.booleans(),
    seed=st.integers(0, 99),
)
def test_budget_is_never_exceeded(name: str, evals: int, heads: dict[str, int], deltas: bool, seed: int) -> None:
    problem, cost = toy_problem(7, heads, evals, seed=seed, deltas=deltas)
    solve(name, problem)
    assert cost.calls == problem.evals <= evals
    assert problem.best_cost == cost.totals(problem.task.realise(problem.graph, problem.best[None]).device)[0]
    assert problem.best_cost <= problem.initial_cost


@pytest.mark.parametrize("name", OPTIMISERS)
def test_nothing_configurable_terminates(name: str) -> None:
    problem, _ = toy_problem(5, {"inline": 2}, 50, free=np.zeros(5, bool))
    solve(name, problem)
    assert np.array_equal(problem.best, problem.initial)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_masked_ops_keep_their_choice(name: str) -> None:
    free = np.array([True, False] * 4)
    problem, _ = toy_problem(8, {"device": 3}, 60, free=free, seed=3)
    solve(name, problem)
    assert np.array_equal(problem.best[~free], problem.initial[~free])


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_same_seed_same_trace(name: str, deltas: bool) -> None:
    first, second = (toy_problem(12, {"inline": 2}, 80, seed=5, deltas=deltas)[0] for _ in range(2))
    solve(name, first)
    solve(name, second)
    assert [(s.evals, s.cost) for s in first.trace] == [(s.evals, s.cost) for s in second.trace]
    assert np.array_equal(first.best, second.best)


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("heads", HEADS[:2])
def test_separable_optimum(name: str, heads: dict[str, int]) -> None:
    """Without interactions every single-change method reaches the optimum; samplers on few ops."""
    ops = 4 if name.startswith("random") else 10
    problem, cost = toy_problem(ops, heads, 30_000 if ops == 4 else 3_000, pair_weight=0.0, seed=1)
    solve(name, problem)
    assert problem.best_cost == cost.separable_optimum()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["random", "annealing", "local_hop"])
def test_brute_force_with_interactions(name: str, seed: int) -> None:
    problem, cost = toy_problem(8, {"inline": 2}, 4_000, pair_weight=1.0, seed=seed)
    solve(name, problem)
    assert problem.best_cost == cost.optimum()


def test_deltas_and_full_prices_walk_alike() -> None:
    """Exact flips are a faster way to the same prices, so the search takes the same path."""
    for name in ("local", "scan", "annealing", "greedy"):
        full, exact = (toy_problem(20, {"inline": 2}, 150, seed=2, deltas=deltas)[0] for deltas in (False, True))
        solve(name, full)
        solve(name, exact)
        assert [(s.evals, s.cost) for s in full.trace] == [(s.evals, s.cost) for s in exact.trace]
        assert full.evals == exact.evals


def test_scan_keeps_only_improvements_and_stops_at_a_local_optimum() -> None:
    problem, cost = toy_problem(10, {"device": 3}, 10_000, seed=4)
    solve("scan", problem)
    assert problem.evals < 10_000
    codes = problem.best[:, 0]
    for op in range(10):
        for choice in range(3):
            changed = codes.copy()
            changed[op] = choice
            assert cost.totals(changed[None])[0] >= problem.best_cost
    costs = [step.cost for step in problem.trace]
    assert costs == sorted(costs, reverse=True)


def test_local_search_asks_its_picker() -> None:
    problem, _ = toy_problem(9, {"inline": 2}, 40, seed=6)
    slots = slots_of(problem)
    local_search(problem, slots, start_walk(problem, slots, "initial", deltas=False), lambda decision: 4, 0)
    assert set(np.flatnonzero((problem.best != problem.initial)[:, 0])) <= {4}


def test_infeasible_start_is_left() -> None:
    """From an infeasible initial decision the searches follow the excess down to feasible ones."""
    graph = toy_graph(12, 1)
    for name in ("local", "scan", "annealing", "greedy"):
        cost = ToyCost(graph, 2, seed=1)
        cost.unary[:, 0], cost.unary[:, 1], cost.bound = 1.0, 0.25, 4.0
        problem = Problem(graph, ToyTask({"device": 2}), cost, evals=400, seed=0)
        assert problem.initial_cost == np.inf
        solve(name, problem)
        assert np.isfinite(problem.best_cost)


def test_neighbourhood_is_symmetric_and_grows() -> None:
    graph = toy_graph(15, 2)
    for op in range(15):
        one = neighbourhood(graph, op, 1)
        assert all(op in neighbourhood(graph, int(n), 1) for n in one)
        assert set(one) <= set(neighbourhood(graph, op, 2))
        assert list(neighbourhood(graph, op, 0)) == [op]


def test_unknown_start_is_refused() -> None:
    with pytest.raises(ValueError, match="use initial, random or zero"):
        LocalSearch(name="local", start="best", hops=0, deltas=False)
