"""Gibbs sampling: its long-run frequencies, exact labels whichever way they are priced, and what is kept of a sweep."""

import itertools

import numpy as np
import pytest
from fusion_graphs import DEVICES, GPU, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from toy import ToyCost, ToyTask, toy_graph

from graphopt.advantages.gibbs import (
    DeltaPrices,
    FullPrices,
    Samples,
    draw,
    surroundings,
    survey,
    sweep,
    typical,
)
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.costs.cost_model import CostModel, Prices
from graphopt.costs.simulator import Simulator
from graphopt.problems.pricing import Pricing
from graphopt.search.walks.moves import slots_in
from graphopt.tasks.fusion import Fusion
from graphopt.tasks.joint import Joint
from graphopt.tasks.task import AssignTask

CAPS = {"max_ops": 12, "max_inputs": 8, "max_duplicates": 4}


class WithoutFlips(CostModel):
    """The same prices, but no exact flips."""

    def __init__(self, inner: CostModel) -> None:
        self.inner, self.name, self.objective = inner, inner.name, inner.objective

    def price(self, plans: Plans) -> Prices:
        return self.inner.price(plans)


def fusion(device: Device = GPU) -> tuple[Fusion, Simulator]:
    machine = Machine(name="m", devices=(device,))
    task = Fusion(name="fusion", machine=machine, decision="binary", levels=2, **CAPS)
    return task, Simulator(name="s", machine=machine, objective="runtime", threads=1)


def collected(graph: Graph, task: AssignTask, cost: CostModel, tau: float, sweeps: int) -> list[Samples]:
    slots = slots_in(task, graph)
    around = surroundings(Pricing(graph, task, cost), slots, task.initial(graph))
    rows, rng = np.arange(len(slots)), np.random.default_rng(0)
    return [survey(around, rows)] + [sweep(around, rows, tau, rng, surveyed=True) for _ in range(sweeps)]


# ---- the distribution


@pytest.mark.parametrize("heads", [{"inline": 2}, {"device": 3}], ids=str)
def test_long_run_frequencies_are_those_of_exact_enumeration(heads: dict[str, int]) -> None:
    """p(y) proportional to exp(-cost(y) / tau), over all decisions of five ops."""
    ops, codes, tau = 5, *heads.values(), 0.4
    graph, task = toy_graph(ops, 1), ToyTask(heads)
    cost = ToyCost(graph, codes, pair_weight=1.0, seed=2)
    every = np.array(list(itertools.product(range(codes), repeat=ops)), np.int16)
    weight = np.exp(-cost.totals(every) / tau)
    exact = np.stack([(weight[:, None] * (every == k)).sum(0) for k in range(codes)]) / weight.sum()
    around = FullPrices(Pricing(graph, task, cost), slots_in(task, graph), task.initial(graph))
    rng, rows, visits = np.random.default_rng(0), np.arange(ops), []
    for _ in range(4000):
        sweep(around, rows, tau, rng, surveyed=False)
        visits.append(around.decision[:, 0])
    found = np.stack([(np.stack(visits) == k).mean(0) for k in range(codes)])
    assert np.ptp(exact) > 0.4  # far from uniform
    np.testing.assert_allclose(found, exact, atol=0.03)


def test_impossible_choices_are_never_drawn() -> None:
    rng = np.random.default_rng(0)
    price = np.array([np.inf, 2.0, np.nan, 3.0])
    assert {draw(price, 100.0, rng) for _ in range(200)} == {1, 3}
    assert {draw(price, 1e-9, rng) for _ in range(50)} == {1}


# ---- exact labels


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 60), device=st.sampled_from(DEVICES))
def test_deltas_and_full_prices_give_the_same_samples_to_the_last_digit(seed: int, steps: int, device: Device) -> None:
    graph = random_graph(seed, steps)
    task, cost = fusion(device)
    slots = slots_in(task, graph)
    if not len(slots):
        return
    kinds = [
        type(surroundings(Pricing(graph, task, c), slots, task.initial(graph))) for c in (cost, WithoutFlips(cost))
    ]
    assert kinds == [DeltaPrices, FullPrices]
    tau = typical(collected(graph, task, cost, 1.0, 0)[0].price) or 1.0
    fast, slow = (collected(graph, task, c, tau, 2) for c in (cost, WithoutFlips(cost)))
    for a, b in zip(fast, slow, strict=True):
        for name in ("start", "row", "price", "changed_at", "changed_entry", "changed_to", "evals"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def machine_task() -> tuple[AssignTask, CostModel]:
    machine = Machine(name="m", devices=(GPU, GPU), link_bandwidth=20e9)
    task = Joint(name="joint", machine=machine, levels=3, fuse=True, **CAPS)
    return task, Simulator(name="s", machine=machine, objective="runtime", threads=1)


@pytest.mark.parametrize("parts", [fusion, machine_task], ids=["fusion", "joint"])
def test_every_price_is_that_of_the_decision_that_it_belongs_to(parts) -> None:  # type: ignore[no-untyped-def]
    """All choices of every visit, priced again around the decision that the samples say it was."""
    graph, (task, cost) = random_graph(4, 20), parts()
    slots, counts = slots_in(task, graph), [head.count for head in task.heads]
    for samples in collected(graph, task, cost, 2e-6, 1):
        for visit, row in enumerate(samples.row.tolist()):
            decision, (op, head) = samples.decision(visit), (slots.op[row], slots.head[row])
            changed = np.repeat(decision[None], counts[head], 0)
            changed[:, op, head] = np.arange(counts[head])
            priced = cost.price(task.realise(graph, changed)).cost
            np.testing.assert_array_equal(samples.price[visit, : counts[head]], priced)
            assert np.isnan(samples.price[visit, counts[head] :]).all()


def test_samples_follow_the_walk() -> None:
    """Moments are the runs without a change, in order, and the end is where the next sweep begins."""
    graph, (task, cost) = random_graph(4, 60), fusion()
    samples = collected(graph, task, cost, 1e-6, 3)
    assert sum(len(s.changed_at) for s in samples) > 10
    for now, then in itertools.pairwise(samples):
        assert np.array_equal(now.end(), then.start)
    for s in samples:
        runs = s.moments()
        assert [first for first, _ in runs[1:]] == [last for _, last in runs[:-1]]
        assert runs[0][0] == 0 and runs[-1][1] == len(s.row)
        for first, last in runs:
            assert all(np.array_equal(s.decision(v), s.decision(first)) for v in range(first, last))
        assert all(not np.array_equal(s.decision(a), s.decision(b)) for (a, _), (b, _) in itertools.pairwise(runs))
    slots = len(slots_in(task, graph))
    assert [s.evals for s in samples] == [slots] + [2 * slots] * 3


def test_the_typical_size_leaves_out_what_changes_nothing() -> None:
    price = np.array([[5.0, 5.0, np.nan], [5.0, 4.0, 7.0], [5.0, np.inf, 1.0]])
    assert typical(price) == 2.0
    assert typical(price[:1]) == 0.0
