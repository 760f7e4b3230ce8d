"""The problem's book-keeping: what is billed, what is kept, when it ends; prices."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyCost, ToyTask, toy_graph, toy_problem

import graphopt.problems.problem
from graphopt.core.plan import Decisions
from graphopt.problems.assignment import AssignProblem, Pricing
from graphopt.problems.cost_model import SURE, Price, Prices, better
from graphopt.problems.problem import OutOfBudget

# --- The problem's book-keeping: what is billed, what is kept, when it ends.

BINARY, DEVICES = {"inline": 2}, {"device": 3, "priority": 4}


def draws(problem: AssignProblem, rows: int, seed: int = 0) -> Decisions:
    counts = [head.count for head in problem.task.heads]
    shape = (rows, problem.graph.num_ops, len(counts))
    return np.random.default_rng(seed).integers(0, counts, shape).astype(np.int16)


def test_the_initial_decision_is_free_and_already_the_best() -> None:
    problem, cost = toy_problem(6, DEVICES, 5)
    assert (problem.evals, problem.distinct, cost.calls, problem.remaining) == (0, 0, 0, 5)
    assert np.array_equal(problem.best, problem.initial)
    assert problem.best_cost == problem.initial_cost == cost.totals(np.zeros((1, 6), np.int16))[0]
    assert [(s.evals, s.cost) for s in problem.trace] == [(0, problem.initial_cost)]


@settings(max_examples=80, deadline=None)
@given(batches=st.lists(st.integers(0, 7), max_size=8), cap=st.integers(0, 20), keys=st.booleans())
def test_every_price_is_billed_and_none_beyond_the_budget(batches: list[int], cap: int, keys: bool) -> None:
    """Batches are priced in order; the one that crosses the cap is priced up to it and then refused."""
    problem, cost = toy_problem(5, DEVICES, cap)
    asked = 0
    for rows in batches:
        decisions, fits = draws(problem, rows, rows), rows == 0 or asked + rows <= cap
        ask = problem.cost if not keys else problem.cost_keys
        argument = decisions if not keys else np.random.default_rng(rows).random((rows, 10))
        if fits:
            assert len(ask(argument)) == rows
        else:
            with pytest.raises(OutOfBudget):
                ask(argument)
        asked += rows
        assert problem.evals == cost.calls == min(asked, cap)
        assert problem.open == (asked < cap)
        assert problem.remaining == max(0, cap - asked)


def test_what_was_priced_before_the_budget_ended_counts() -> None:
    """The best of three lies in the part that fits; a better one behind the cap is not seen."""
    problem, cost = toy_problem(6, {"device": 3}, 2, seed=1)
    decisions = draws(problem, 60)
    prices = cost.totals(decisions[:, :, 0])
    worst, middle, best = (decisions[i] for i in np.argsort(prices)[[-1, 1, 0]])
    problem.initial_cost = problem.best_cost = np.inf
    with pytest.raises(OutOfBudget):
        problem.cost(np.stack([worst, middle, best]))
    assert np.array_equal(problem.best, middle)
    assert problem.best_cost == np.sort(prices)[1]


def test_repeated_decisions_are_billed_but_not_distinct() -> None:
    problem, _ = toy_problem(5, DEVICES, 100)
    decisions = draws(problem, 6)
    problem.cost(np.concatenate([decisions, decisions[::-1]]))
    problem.cost(decisions[:3])
    assert (problem.evals, problem.distinct) == (15, 6)


def test_different_decisions_have_different_digests() -> None:
    """All of 3^5 x 2 head settings, and their digests do not depend on the batch."""
    problem, _ = toy_problem(5, {"device": 3, "priority": 2}, 0)
    every = np.array(list(itertools.product(range(3), repeat=5)), np.int16)
    decisions = np.concatenate([np.stack([every, np.full_like(every, p)], -1) for p in range(2)])
    digests = problem.digest(decisions)
    assert len(set(digests.tolist())) == len(decisions)
    assert [int(problem.digest(d[None])[0]) for d in decisions[::50]] == digests[::50].tolist()


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_the_trace_holds_every_improvement_at_its_evaluation(seed: int, sizes: list[int]) -> None:
    """Also within a batch: as if the decisions had been priced one by one."""
    problem, cost = toy_problem(5, DEVICES, 100, seed=seed)
    decisions = draws(problem, sum(sizes), seed)
    for part in np.split(decisions, np.cumsum(sizes)[:-1]):
        problem.cost(part)
    expected, best = [(0, problem.initial_cost)], problem.initial_cost
    approach, own = [], np.inf
    for i, price in enumerate(cost.totals(decisions[:, :, 0] * 4 + decisions[:, :, 1])):
        if price < best:
            best = float(price)
            expected.append((i + 1, best))
        elif price < own and best == problem.initial_cost:
            own = float(price)
            approach.append((i + 1, own))
    assert [(s.evals, s.cost) for s in problem.trace] == expected
    assert [(s.evals, s.cost) for s in problem.approach] == approach
    assert problem.best_cost == best
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(problem.trace))


def test_infeasible_decisions_are_billed_and_never_the_best() -> None:
    graph = toy_graph(4)
    cost = ToyCost(graph, 2, bound=2.0)
    cost.unary[:, 0], cost.unary[:, 1] = 0.5, 1.0
    problem = AssignProblem(graph, ToyTask(BINARY), cost, evals=9)
    one = np.ones((1, 4, 1), np.int16)
    assert problem.cost(one)[0] == np.inf
    assert problem.last_excess.tolist() == [2.0]
    assert (problem.evals, len(problem.trace)) == (1, 1)
    assert np.array_equal(problem.best, problem.initial)


@pytest.mark.parametrize(("cap", "spent", "counts"), [(0, 0, True), (3, 0, False), (3, 2, False), (3, 3, False)])
def test_commit_answers_only_where_nothing_may_be_priced(cap: int, spent: int, counts: bool) -> None:
    problem, _ = toy_problem(5, {"device": 3}, cap)
    problem.cost(np.zeros((spent, 5, 1), np.int16))
    answer = np.full((5, 1), 2, np.int16)
    problem.commit(answer)
    assert np.array_equal(problem.best, answer) == counts
    assert len(problem.trace) == 1


def test_seconds_end_the_budget_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(graphopt.problems.problem, "_clock", lambda: now[0])
    graph = toy_graph(5)
    cost = ToyCost(graph, 2, deltas=True)
    problem = AssignProblem(graph, ToyTask(BINARY), cost, evals=10, seconds=2.0)
    now[0] = 101.5
    problem.cost(draws(problem, 3))
    assert (problem.seconds, problem.remaining, problem.open) == (1.5, 7, True)
    now[0] = 102.0
    assert (problem.remaining, problem.open, problem.evals) == (0, False, 3)
    for ask in (lambda: problem.cost(draws(problem, 1)), lambda: problem.cost_keys(np.zeros((1, 5)))):
        with pytest.raises(OutOfBudget):
            ask()
    assert problem.evals == 3


def test_keys_keep_their_plan_until_a_decision_beats_it() -> None:
    problem, cost = toy_problem(4, {"device": 3}, 1000, seed=2)
    every = np.array(list(itertools.product(range(3), repeat=4)), np.int16)
    order = np.argsort(cost.totals(every), kind="stable")
    good, best = every[order[3]], every[order[0]]
    assert problem.cost_keys(((good + 0.5) / 3)[None])[0] == problem.best_cost < problem.initial_cost
    assert problem.best_plan is not None
    assert np.array_equal(problem.best_plan.device[0], good)
    problem.cost(every[order[5]][None, :, None])
    assert problem.best_plan is not None  # not beaten
    problem.cost(best[None, :, None])
    assert problem.best_plan is None
    assert np.array_equal(problem.best[:, 0], best)


@pytest.mark.parametrize(
    ("heads", "deltas"), [(BINARY, False), ({"device": 2}, True), ({"inline": 2, "device": 2}, True)]
)
def test_no_delta_prices_without_a_binary_task_and_a_cost_that_has_them(heads: dict[str, int], deltas: bool) -> None:
    problem, cost = toy_problem(5, heads, 10, deltas=deltas)
    assert Pricing(problem.graph, problem.task, cost).flips(problem.initial) is None


def test_prices_of_a_batch_have_each_its_own_noise() -> None:
    prices = Prices(np.array([2.0, 3.0]), np.zeros(2), np.array([0.01, 0.0]), np.array([7, 0]))
    assert (prices.of(0), prices.of(1)) == (Price(2.0, 0.01, 7), Price(3.0))
    assert Prices(np.array([2.0, 3.0]), np.zeros(2), 0.5, 4).of(1) == Price(3.0, 0.5, 4)
    assert Prices(np.array([2.0]), np.zeros(1)).of(0) == Price(2.0, 0.0, 0)


@pytest.mark.parametrize(
    ("a", "b", "shown"),
    [
        (Price(1.0), Price(1.0), False),
        (Price(math.nextafter(1.0, 0.0)), Price(1.0), True),  # computed: any difference
        (Price(0.9, 0.05), Price(1.0, 0.05), False),  # 0.1 of two errors of 0.067
        (Price(0.8, 0.05), Price(1.0, 0.05), True),  # 0.2 of 0.064
        (Price(0.95, 0.0), Price(1.0, 0.02), True),
        (Price(0.97, 0.0), Price(1.0, 0.02), False),
        (Price(1.0, 0.9), Price(math.inf), True),
        (Price(math.inf), Price(math.inf), False),
    ],
)
def test_what_is_shown_to_be_better(a: Price, b: Price, shown: bool) -> None:
    assert better(a, b) is shown
    assert not (better(a, b) and better(b, a))


def test_of_equal_plans_none_is_better_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    measured = 1.0 + rng.normal(0, 0.03, (4000, 2))
    said = [better(Price(a, 0.03), Price(b, 0.03)) or better(Price(b, 0.03), Price(a, 0.03)) for a, b in measured]
    assert SURE == 2.0 and 0.03 < np.mean(said) < 0.07
