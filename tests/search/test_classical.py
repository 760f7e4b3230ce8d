"""Classical searches, walks, and the proposals they make."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from cells import fusion, opened
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc
from test_compiler_rules import GPU, chain
from toy import ToyCost, ToyTask, toy_graph, toy_problem

from graphopt.core.errors import UserError
from graphopt.core.machine import Machine
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.genetic.evolution import beta_keys, beta_parameters, uniform_keys
from graphopt.search.heuristics.schedules import Default
from graphopt.search.walks.local import Annealing, LocalSearch, RandomSearch, Scan, local_search
from graphopt.search.walks.moves import slots_of, start_walk

# --- Classical optimisers against brute force, budgets and determinism, on toy problems.

OPTIMISERS: dict[str, Callable[[], Optimizer]] = {
    "default": lambda: Default(name="default"),
    "random": lambda: RandomSearch(name="random", change=1.0),
    "random_near": lambda: RandomSearch(name="random", change=0.2),
    "local": lambda: LocalSearch(name="local", start="initial", hops=0),
    "local_random": lambda: LocalSearch(name="local", start="random", hops=0),
    "local_hop": lambda: LocalSearch(name="local", start="initial", hops=1),
    "scan": lambda: Scan(name="scan", start="initial"),
    "scan_random": lambda: Scan(name="scan", start="random"),
    "annealing": lambda: Annealing(name="annealing", start="initial", hot=0.05, cold=0.03),
}
SEARCHERS = [name for name in OPTIMISERS if name != "default"]
HEADS = [{"inline": 2}, {"device": 3}, {"device": 2, "priority": 4}]


def solve(name: str, problem: AssignProblem) -> None:
    with contextlib.suppress(OutOfBudget):
        OPTIMISERS[name]().solve(problem)


@pytest.mark.parametrize("name", OPTIMISERS)
@settings(max_examples=15, deadline=None)
@given(evals=st.sampled_from([0, 1, 2, 3, 17, 60]), heads=st.sampled_from(HEADS), seed=st.integers(0, 99))  # fmt: skip
def test_budget_is_never_exceeded(name: str, evals: int, heads: dict[str, int], seed: int) -> None:
    problem, cost = toy_problem(7, heads, evals, seed=seed)
    solve(name, problem)
    assert cost.calls == problem.evals <= evals
    assert problem.best_cost == cost.totals(problem.task.realise(problem.graph, problem.best[None]).device)[0]
    assert problem.best_cost <= problem.initial_cost


@pytest.mark.parametrize("name", OPTIMISERS)
def test_masked_ops_keep_their_choice(name: str) -> None:
    free = np.array([True, False] * 4)
    problem, _ = toy_problem(8, {"device": 3}, 60, free=free, seed=3)
    solve(name, problem)
    assert np.array_equal(problem.best[~free], problem.initial[~free])


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
    local_search(problem, slots, start_walk(problem, slots, "initial"), lambda decision: 4, 0)
    assert set(np.flatnonzero((problem.best != problem.initial)[:, 0])) <= {4}


def test_infeasible_start_is_left() -> None:
    """From an infeasible initial decision the searches follow the excess down to feasible ones."""
    graph = toy_graph(12, 1)
    for name in ("local", "scan", "annealing"):
        cost = ToyCost(graph, 2, seed=1)
        cost.unary[:, 0], cost.unary[:, 1], cost.bound = 1.0, 0.25, 4.0
        problem = AssignProblem(graph, ToyTask({"device": 2}), cost, evals=400, seed=0)
        assert problem.initial_cost == np.inf
        solve(name, problem)
        assert np.isfinite(problem.best_cost)


def test_refused_requests_stay_until_they_are_legal() -> None:
    """Four ops, at most two per kernel, everything stored. Inlining op 2 fills its kernel, so op 1 is refused: same
    price. Scores are the prices of decisions."""
    problem = opened(chain(4), fusion(Machine(name="m", devices=(GPU,)), max_ops=2), evals=50)
    walk = start_walk(problem, slots_of(problem), "zero")
    seen = [walk.score]
    for op in (2, 1, 0):
        walk.take(op, 0, 1, walk.price_one(op, 0, 1))
        seen.append(walk.score)
        assert problem.cost(walk.decision[None])[0] == walk.score
    assert seen[0] > seen[1] == seen[2] > seen[3]  # the last joins op 1
    walk.take(2, 0, 0, walk.price_one(2, 0, 0))  # room for op 1 in the kernel of op 2: a remembered request takes it
    assert walk.decision[:, 0].tolist() == [1, 1, 0, 0]


# --- Beta keys: the right distribution, from shared uniform numbers.

SHAPES = [(1 / 32, 1 / 32), (0.5, 0.1), (0.9, 3.1), (2.0, 2.0), (15.0, 1.0), (3.0, 60.0)]


def test_keys_invert_the_distribution_function() -> None:
    """F(key) is the uniform number that the key was drawn from, to the width of a table cell."""
    alpha, beta = np.repeat(np.array(SHAPES, np.float32), 500, axis=0).T
    keys = beta_keys(alpha, beta)(np.random.default_rng(1), 40)
    uniform = np.random.default_rng(1).random(keys.shape, np.float32)
    inside = (keys > 1e-6) & (keys < 1 - 1e-6)  # beyond, float32 keys pile up at the ends
    assert np.abs(betainc(alpha, beta, keys) - uniform)[inside].max() < 1 / 1024
    assert inside[:, alpha >= 0.5].mean() > 0.95


def test_all_ones_are_the_uniform_numbers_themselves() -> None:
    ones = np.ones(17, np.float32)
    drawn, uniform = (sampler(np.random.default_rng(5), 9) for sampler in (beta_keys(ones, ones), uniform_keys(17)))
    assert np.array_equal(drawn, uniform)


def test_a_larger_mean_gives_no_smaller_key_from_equal_random_numbers() -> None:
    means = np.array([0.25, 0.5, 0.75])
    low, middle, high = (
        beta_keys(*beta_parameters(np.full(300, mean), np.full(300, 4.0)))(np.random.default_rng(2), 10)
        for mean in means
    )
    assert (low <= middle).all() and (middle <= high).all()
    assert abs(high.mean() - 0.75) < 0.02


def test_keys_are_below_one_so_that_a_choice_exists_and_their_parameters_positive() -> None:
    keys = beta_keys(np.full(1000, 0.2, np.float32), np.full(1000, 0.01, np.float32))(np.random.default_rng(0), 20)
    assert keys.max() < 1.0 and keys.min() >= 0.0
    with pytest.raises(UserError, match="positive"):
        beta_keys(np.array([1.0, 0.0], np.float32), np.ones(2, np.float32))
