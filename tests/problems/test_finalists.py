"""Measured prices: what is lowest in a search is judged again before it is the answer."""

import numpy as np
import pytest
from small_graphs import chain, fusion_on

from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel, Prices


class Measured(CostModel):
    """1 + the sum of what each inlined op brings, and an error that a search sees and a judge does not."""

    name, objective, deterministic = "measured", "runtime", False

    def __init__(self, brings: np.ndarray, luck: dict[int, float], noise: float) -> None:
        self.brings, self.luck, self.noise = brings, luck, noise

    def price(self, plans: Plans) -> Prices:
        inline = plans.inline[:, : len(self.brings)]
        cost = 10.0 + inline @ self.brings
        cost += [self.luck.get(int(np.flatnonzero(row)[0]) if row.sum() == 1 else -1, 0.0) for row in inline]
        return Prices(cost, np.zeros(len(cost)), np.full(len(cost), self.noise), np.full(len(cost), 5))


def opened(brings: list[float], luck: dict[int, float], noise: float, evals: int = 100):  # type: ignore[no-untyped-def]
    task, _ = fusion_on(Machine(name="one", devices=(Device(),)))
    problem = task.open(chain(len(brings) + 1), Measured(np.array(brings), luck, noise), evals=evals)
    return problem, Measured(np.array(brings), {}, noise)


def priced(problem) -> None:  # type: ignore[no-untyped-def]
    """Each op stored alone, of a default that inlines all of them, would be one flip: from a decision of none."""
    count = problem.graph.num_ops
    decisions = np.zeros((count - 1, count, 1), np.int16)
    decisions[np.arange(count - 1), np.arange(count - 1), 0] = 1
    problem.cost(decisions)


def inlined(problem) -> list[int]:  # type: ignore[no-untyped-def]
    return np.flatnonzero(problem.solution().plans.inline[0]).tolist()


def test_the_judge_picks_among_the_lowest() -> None:
    """The search's lowest, op 3, was lucky; op 1 is lower in truth."""
    brings = [6.0, -9.0, 6.0, -8.5, 6.0]
    problem, judge = opened(brings, {3: -1.0}, noise=0.001)
    priced(problem)
    assert inlined(problem) == [3]
    assert problem.best_cost == 10.0 - 8.5 - 1.0
    problem.settle(judge)
    assert inlined(problem) == [1] and problem.best_cost == 10.0 - 9.0


def test_what_costs_the_same_takes_one_place() -> None:
    """Eight decisions lead to the code that is lowest by luck; op 8, behind them, is lower in truth."""
    problem, judge = opened([6.0] * 8 + [4.0], dict.fromkeys(range(8), -9.0), noise=0.001)
    priced(problem)
    assert inlined(problem) == [0] and len(problem.finalists.states) == 2
    problem.settle(judge)
    assert inlined(problem) == [8]


def test_what_is_not_shown_to_be_better_than_the_default_is_not_the_answer() -> None:
    """The default inlines all: 10 + 0. Inlining op 0 alone seems to cost 8, and costs 9.9 with noise of 5 %."""
    problem, judge = opened([-0.1, 0.1], {0: -2.0}, noise=0.05)
    priced(problem)
    assert inlined(problem) == [0]
    problem.settle(judge)
    assert inlined(problem) == [0, 1] and problem.best_cost == problem.initial_cost
    assert problem.notes == ["no answer was shown to be better than the default"]


def test_what_was_decided_unpriced_stands_unless_its_price_is_infinite() -> None:
    for last, answer in ((6.0, [1]), (np.inf, [0, 1])):
        problem, _ = opened([6.0, 6.0], {}, noise=0.001, evals=0)
        decision = problem.initial.copy()
        decision[0, 0] = 0
        problem.commit(decision)
        problem.settle(Measured(np.array([6.0, 6.0]), {1: last}, 0.001))
        assert inlined(problem) == answer
    assert problem.best_cost == problem.initial_cost
    assert problem.notes == ["what was decided without any price cannot be used, so the default is the answer"]


def test_computed_prices_are_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measured, "deterministic", True)
    problem, judge = opened([-0.1, 0.1], {0: -2.0}, noise=0.0)
    priced(problem)
    problem.settle(judge)
    assert inlined(problem) == [0]
