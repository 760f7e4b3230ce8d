"""Properties of the simulator: every run keeps the rules, ranks are stable, deltas equal full prices."""

import numpy as np
import pytest
from fusion_graphs import DEVICES, GPU, LIMITS, PLAIN, RICH, random_graph, random_requests
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_graph as random_ops
from random_plans import random_machine, random_plans

from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check, check_trace
from graphopt.costs.flips import FusionFlips
from graphopt.costs.queues import rank_by_priority
from graphopt.costs.simulator import Simulator
from graphopt.tasks.fusion import on_first_device

# --- Every simulated run keeps the rules, by an independent oracle, on random graphs, machines and plans.


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), ops=st.integers(1, 30))
def test_a_run_keeps_the_rules(seed, ops):
    rng = np.random.default_rng(seed)
    graph, machine = random_ops(rng, ops), random_machine(rng)
    plan = random_plans(rng, graph, machine, 1)
    assert check(plan, machine) == []
    trace = Simulator(name="s", machine=machine, objective="peak_memory", threads=1).simulate(plan)
    assert check_trace(trace, plan, machine) == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_prices_are_those_of_the_traces_and_do_not_depend_on_threads_or_batches(seed):
    rng = np.random.default_rng(seed)
    graph, machine = random_ops(rng, 40), random_machine(rng)
    plans = random_plans(rng, graph, machine, 12)
    plans.inline[4:] = plans.inline[4]
    for objective in ("runtime", "peak_memory"):
        one = Simulator(name="s", machine=machine, objective=objective, threads=1)
        two = Simulator(name="s", machine=machine, objective=objective, threads=2)
        two._chunks = lambda plans: [np.arange(i, i + 1) for i in range(12)]
        prices = one.price(plans).cost
        assert np.array_equal(prices, two.price(plans).cost)
        assert np.array_equal(prices, [float(one.price(plans[b]).cost[0]) for b in range(12)])
        traces = [one.simulate(plans[b]) for b in range(12)]
        expected = [t.makespan if objective == "runtime" else t.peak_bytes.max() for t in traces]
        assert np.array_equal(prices, expected)


@pytest.mark.parametrize("seed", range(3))
def test_more_ops_than_one_level_of_the_rank_sets(seed):
    rng = np.random.default_rng(seed)
    graph, machine = random_ops(rng, 300), random_machine(rng)
    plan = random_plans(rng, graph, machine, 1)
    trace = Simulator(name="s", machine=machine, objective="runtime", threads=1).simulate(plan)
    assert check_trace(trace, plan, machine) == []


# --- Ranks by priority are those of a stable sort: where leading bits decide, where they do not, and where all tie.

RNG = np.random.default_rng(0)
CASES = {
    "uniform": RNG.random(3000),
    "signed": RNG.standard_normal(3000),
    "levels": RNG.integers(0, 5, 3000).astype(np.float64),
    "constant": np.full(3000, 7.0),
    "zeros of both signs": np.where(RNG.random(3000) < 0.5, 0.0, -0.0),
    "last bits of a large number": 1e9 + RNG.integers(0, 50, 3000) * 2.0**-20,
    "one outlier hides the rest": np.append(-1e300, 1.0 + RNG.integers(0, 2**20, 3000) * 2.0**-52),
    "one op": np.array([3.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_those_of_a_stable_sort(name):
    priority = CASES[name]
    order, rank = np.empty(len(priority), np.int32), np.empty(len(priority), np.int32)
    rank_by_priority(priority, order, rank)
    assert np.array_equal(order, np.argsort(-priority, kind="stable"))
    assert np.array_equal(order[rank], np.arange(len(priority)))


# --- Delta prices of single flips: equal to pricing the legalised flipped request in full, to the last digit.

SEEDS = st.integers(0, 10**6)


def full(graph: Graph, inline: np.ndarray, device: Device) -> float:
    """The simulator's price of legal flags."""
    machine = Machine(name="one", devices=(device,))
    cost = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    return float(cost.price(on_first_device(graph, inline[None])).cost[0])


def flipped(graph: Graph, inline: np.ndarray, op: int, limits: KernelLimits) -> np.ndarray:
    request = inline.astype(np.uint8)
    request[op] ^= 1
    return legalise(graph, request[None], limits)[0]


def assert_exact(graph: Graph, flips: FusionFlips, device: Device, limits: KernelLimits) -> int:
    """Every flip of the present state; returns how many changed flags of other ops too."""
    state, before, spread = flips.inline.copy(), flips.cost, 0
    assert before == full(graph, state, device)
    every = np.arange(graph.num_ops)
    prices = flips.price(every)
    for op, price in zip(every.tolist(), prices.tolist()):
        after = flipped(graph, state, op, limits)
        assert price == full(graph, after, device), f"op {op}"
        spread += int((after != state).sum() > 1)
    assert np.array_equal(flips.inline, state)  # pricing leaves no trace
    assert flips.cost == before
    return spread


@settings(max_examples=200, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 45), limits=st.sampled_from(LIMITS), device=st.sampled_from(DEVICES),
       share=st.sampled_from([0.0, 0.5, 0.8, 1.0]))  # fmt: skip
def test_every_flip_is_exact_also_after_moves(seed, steps, limits, device, share) -> None:
    graph = random_graph(seed, steps)
    choices = np.flatnonzero(fusible(graph).op["can_inline"])
    flips = FusionFlips(graph, legalise(graph, random_requests(graph, seed, 1, share), limits)[0], device, limits)
    assert_exact(graph, flips, device, limits)
    for op in np.random.default_rng(seed).permutation(choices)[:2].tolist():
        expected, state = flips.price(np.array([op]))[0], flipped(graph, flips.inline, op, limits)
        flips.apply(op)
        assert np.array_equal(flips.inline, state)
        assert flips.cost == expected
        assert_exact(graph, flips, device, limits)


@pytest.mark.parametrize("limits", LIMITS[1:3])
def test_changes_that_spread_are_exact(limits: KernelLimits) -> None:
    """Tight caps: storing one op frees or fills kernels, so others must be stored as well."""
    spread = 0
    for seed in range(3):
        graph = random_graph(seed, 120)
        for start in (default_inline(graph, limits), legalise(graph, random_requests(graph, seed, 1, 0.9), limits)[0]):
            spread += assert_exact(graph, FusionFlips(graph, start, RICH, limits), RICH, limits)
    assert spread > 10


def test_a_change_that_touches_more_kernels_than_the_scratch_holds_is_exact() -> None:
    """One op read by two hundred kernels."""
    b = GraphBuilder("wide")
    x, y = b.tensor((4, 8)), b.tensor((4, 8))
    b.op("neg", [x], [y])
    for _ in range(200):
        made = b.tensor((4, 8))
        b.op("exp", [y], [made])
        b.output(made)
    graph, limits = b.build(), KernelLimits(64, 16, 300)
    for start in (view_inline(graph), default_inline(graph, limits)):
        assert_exact(graph, FusionFlips(graph, start, PLAIN, limits), PLAIN, limits)


def test_a_long_chain_is_exact() -> None:
    """Thousands of members in one kernel: beyond the scratch space for ops, the whole graph is priced again."""
    b = GraphBuilder("long")
    x = b.tensor((4,))
    for _ in range(2500):
        y = b.tensor((4,))
        b.op("neg", [x], [y])
        x = y
    b.output(x)
    graph, limits = b.build(), KernelLimits(3000, 16, 8)
    start = np.ones(graph.num_ops, bool)
    start[-1] = False
    flips = FusionFlips(graph, start, PLAIN, limits)
    for op in (0, 1200, 2498, 2499):
        assert flips.price(np.array([op]))[0] == full(graph, flipped(graph, start, op, limits), PLAIN)


def test_no_choice_no_change() -> None:
    """Flipping a view, an output or an opaque op is refused: the price stays."""
    graph = random_graph(11, 80)
    flips = FusionFlips(graph, default_inline(graph, LIMITS[0]), GPU, LIMITS[0])
    fixed = np.flatnonzero(~fusible(graph).op["can_inline"])
    assert len(fixed) > 5
    assert set(flips.price(fixed).tolist()) == {flips.cost}


def test_the_start_is_legalised() -> None:
    """Flags that the caps forbid are a request, not a state."""
    graph, limits = random_graph(2, 60), LIMITS[2]
    asked = fusible(graph).op["can_inline"] | view_inline(graph)
    flips = FusionFlips(graph, asked, GPU, limits)
    assert np.array_equal(flips.inline, legalise(graph, asked[None].astype(np.uint8), limits)[0])


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, limits=st.sampled_from(LIMITS), device=st.sampled_from(DEVICES))
def test_a_long_walk_of_applied_flips_is_the_decoders(seed: int, limits: KernelLimits, device: Device) -> None:
    """States and costs after every one of sixty moves, those that are refused or make others illegal among them."""
    graph = random_graph(seed, 40)
    flips = FusionFlips(graph, default_inline(graph, limits), device, limits)
    for op in np.random.default_rng(seed).integers(0, graph.num_ops, 60).tolist():
        state = flipped(graph, flips.inline, op, limits)
        flips.apply(op)
        assert np.array_equal(flips.inline, state)
        assert flips.cost == full(graph, state, device)
