"""Saved sets: the searches against all sets of small steps, budgets, and segments as an option of the frame."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import random_step

from graphopt.core.machine import Device, Machine
from graphopt.core.split import footprint, step_of
from graphopt.costs.step import StepCost
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.recomputing import Recompute
from graphopt.search.heuristics.schedules import Default
from graphopt.search.saved_sets import SegmentSearch, choose, search, segmented

MACHINE = Machine(name="m", devices=(Device(name="d", vector_flops=1e9),))


@pytest.mark.parametrize("seed", range(6))
def test_the_front_has_the_optimum_of_every_budget(seed: int) -> None:
    step, work = step_of(random_step(seed, 9)), np.random.default_rng(seed).random(18)
    ops = np.flatnonzero(step.choice)
    front, top = search(step, work, [step.saved], evals=20000, seed=0)
    every = []
    for flags in product([False, True], repeat=len(ops)):
        saved = np.zeros(len(step.late), np.bool_)
        saved[ops] = flags
        every.append(footprint(step, saved, work))
    lowest = min(found.peak for found in every)
    assert front.sets[0][0].peak == lowest
    for budget in (0.0, 0.05, 0.2, 0.5):
        limit = lowest + budget * (top - lowest)
        least = min(found.again for found in every if found.peak <= limit)
        assert choose(front, top, budget)[0].again == pytest.approx(least)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_lower_budget_never_has_a_higher_peak(seed: int) -> None:
    step = step_of(random_step(seed))
    front, top = search(step, np.ones(len(step.late)), [step.saved], evals=50, seed=seed)
    peaks = [choose(front, top, budget)[0].peak for budget in (1.0, 0.5, 0.2, 0.1, 0.05, 0.0)]
    assert peaks == sorted(peaks, reverse=True) and peaks[0] <= top


def test_equal_seeds_give_equal_fronts() -> None:
    step = step_of(random_step(3, 20))
    runs = [search(step, np.ones(len(step.late)), [step.saved], evals=500, seed=1)[0] for _ in range(2)]
    assert [found for found, _ in runs[0].sets] == [found for found, _ in runs[1].sets]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_segments_save_only_what_there_is_a_choice_about(seed: int) -> None:
    step = step_of(random_step(seed))
    for saved in segmented(step):
        assert not (saved & ~step.choice).any()


@pytest.mark.parametrize("objective", ["peak_memory", "runtime"])
def test_segments_find_a_better_split_within_the_limit(objective: str) -> None:
    cost = StepCost(name="step", machine=MACHINE, objective=objective, budget=0.9, most_again=1.0)  # type: ignore[arg-type]
    task = Recompute(name="recompute", machine=MACHINE)
    gains = []
    for seed in range(8):
        graph = random_step(seed, 20)
        found, _ = solve(SegmentSearch(name="segments"), graph, task, cost, evals=300)
        default, _ = solve(Default(name="default"), graph, task, cost, evals=0)
        assert found.evals <= 300
        assert found.best_cost <= default.best_cost
        kept = task.canonical(graph, found.best)
        assert np.array_equal(kept, task.canonical(graph, kept))
        gains.append(found.best_cost < default.best_cost)
    assert any(gains)


def test_what_is_over_the_limit_is_infeasible_by_how_much() -> None:
    graph = random_step(1, 20)
    task = Recompute(name="recompute", machine=MACHINE)
    plans = task.realise(graph, np.zeros((1, graph.num_ops, 1), np.int16))
    loose, tight = (
        StepCost(name="step", machine=MACHINE, objective="peak_memory", budget=1.0, most_again=m).price(plans)
        for m in (1.0, 0.01)
    )
    assert np.isfinite(loose.cost).all() and loose.excess[0] == 0
    assert np.isinf(tight.cost).all() and tight.excess[0] > 0
