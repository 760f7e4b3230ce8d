"""The simulator: runs keep the rules, ranks are stable, deltas equal full prices, loads of a pipeline."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cells import option, simulator
from check_data import check_data
from fusion_graphs import DEVICES, GPU, LIMITS, PLAIN, RICH, random_graph, random_requests
from hypothesis import example, given, settings
from hypothesis import strategies as st
from random_plans import random_graph as random_ops
from random_plans import random_machine, random_plans

from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.oracles import check
from graphopt.core.plan import Plans
from graphopt.costs.one_kernel.flips import FusionFlips
from graphopt.costs.queues import rank_by_priority
from graphopt.graphs.readers.formats.task_graphs import read_layer_graph
from graphopt.problems.assignment import AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.tasks.fusion import on_first_device
from tests.trace_oracle import check_trace

# --- Every simulated run keeps the rules, by an independent oracle, on random graphs, machines and plans.


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), ops=st.integers(1, 30))
def test_a_run_keeps_the_rules(seed, ops):
    assert_a_run_keeps_the_rules(seed, ops)


def assert_a_run_keeps_the_rules(seed: int, ops: int) -> None:
    rng = np.random.default_rng(seed)
    graph, machine = random_ops(rng, ops), random_machine(rng)
    plan = random_plans(rng, graph, machine, 1)
    assert check(plan, machine) == []
    assert check_trace(simulator(machine, "peak_memory").simulate(plan), plan, machine) == []


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 2**31), usual=st.booleans(), speed=st.sampled_from([1.0, 1.0, 2e-3]))
def test_prices_are_those_of_the_traces_and_do_not_depend_on_threads_or_batches(seed, usual, speed):
    """The usual machine has a loop of its own; slow devices take longer than its clock counts."""
    rng = np.random.default_rng(seed)
    graph, machine = random_ops(rng, 40), random_machine(rng)
    if usual:
        devices = tuple(replace(d, vector_flops=speed, contraction_flops=d.vector_flops) for d in machine.devices)
        machine = replace(machine, devices=devices, transfer=TransferRule())
    plans = random_plans(rng, graph, machine, 12)
    plans.inline[4:] = plans.inline[4]
    for objective in ("runtime", "peak_memory"):
        one, two = (simulator(machine, objective, threads) for threads in (1, 2))
        two._chunks = lambda plans: [np.arange(i, i + 1) for i in range(12)]
        prices = one.price(plans).cost
        assert np.array_equal(prices, two.price(plans).cost)
        assert np.array_equal(prices, [float(one.price(plans[b]).cost[0]) for b in range(12)])
        traces = [one.simulate(plans[b]) for b in range(12)]
        expected = [t.makespan if objective == "runtime" else t.peak_bytes.max() for t in traces]
        assert np.array_equal(prices, expected)


@pytest.mark.parametrize("seed", range(3))
def test_more_ops_than_one_level_of_the_rank_sets(seed):
    assert_a_run_keeps_the_rules(seed, 300)


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
    cost = simulator(Machine(name="one", devices=(device,)))
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


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, steps=st.integers(1, 45), limits=st.sampled_from(LIMITS), device=st.sampled_from(DEVICES),
       share=st.sampled_from([0.0, 0.5, 0.8, 1.0]))  # fmt: skip
def test_every_flip_is_exact(seed, steps, limits, device, share) -> None:
    graph = random_graph(seed, steps)
    start = legalise(graph, random_requests(graph, seed, 1, share), limits)[0]
    assert_exact(graph, FusionFlips(graph, start, device, limits), device, limits)


@pytest.mark.parametrize("limits", LIMITS[1:3])
def test_changes_that_spread_are_exact(limits: KernelLimits) -> None:
    """Tight caps: storing one op frees or fills kernels, so others must be stored as well."""
    spread = 0
    for seed in range(3):
        graph = random_graph(seed, 120)
        for start in (default_inline(graph, limits), legalise(graph, random_requests(graph, seed, 1, 0.9), limits)[0]):
            spread += assert_exact(graph, FusionFlips(graph, start, RICH, limits), RICH, limits)
    assert spread > 10


def test_a_change_that_touches_many_kernels_is_exact() -> None:
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
    """Thousands of members in one kernel."""
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


def test_the_start_is_legalised_and_what_has_no_choice_does_not_change() -> None:
    """Flags that the caps forbid are a request, not a state; flipping a view, an output or an opaque op is refused."""
    graph, limits = random_graph(2, 60), LIMITS[2]
    asked = fusible(graph).op["can_inline"] | view_inline(graph)
    flips = FusionFlips(graph, asked, GPU, limits)
    assert np.array_equal(flips.inline, legalise(graph, asked[None].astype(np.uint8), limits)[0])
    fixed = np.flatnonzero(~fusible(graph).op["can_inline"])
    assert len(fixed) > 5 and set(flips.price(fixed).tolist()) == {flips.cost}


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
    assert_exact(graph, flips, device, limits)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, limits=st.sampled_from(LIMITS), device=st.sampled_from(DEVICES))
def test_following_requests_is_the_decoder(seed: int, limits: KernelLimits, device: Device) -> None:
    """Requests near a base, near each other and far from both, refused ones among them; then every flip from there."""
    graph, draw = random_graph(seed, 90), np.random.default_rng(seed)
    base = (random_requests(graph, seed, 1, 0.7)[0] > 0).astype(np.uint8)
    flips = FusionFlips(graph, default_inline(graph, limits), device, limits)
    for _ in range(30):
        asked = base.copy()
        asked[draw.choice(graph.num_ops, int(draw.choice([1, 3, 9, 60])) % graph.num_ops)] ^= 1
        state = legalise(graph, asked[None], limits)[0]
        assert flips.follow(asked) == full(graph, state, device)
        assert np.array_equal(flips.inline, state)
        base = asked if draw.random() < 0.3 else base
    flips.restore(flips.saved())
    assert_exact(graph, flips, device, limits)


# --- Loads of a pipeline: by hand, against the definition, and against published splits and optima.

GRAPHS = ("bert24_inference", "bert24_training", "gnmt_inference")


def two_and_a_host(capacity: float = float("inf")) -> Machine:
    """Two devices that pay for transfers (1 s + 1 s per 10 bytes) and one that does not and is ten times slower."""
    fast = Device(capacity=capacity)
    slow = Device(vector_flops=0.1, contraction_flops=0.1, pays_transfers=False)
    return Machine(name="m", devices=(fast, fast, slow), link_bandwidth=10.0, link_latency=1.0)


def price(graph: Graph, machine: Machine, device: list[int]) -> float:
    plan = Plans(graph, np.array([device], np.int16), np.zeros((1, graph.num_ops)), np.zeros((1, graph.num_ops), bool))
    return float(simulator(machine, "max_load").price(plan).cost[0])


def fan(kept: int = 0) -> Graph:
    """An op of 4 s whose 20 bytes are read by two ops of 3 s and one of 2 s, each with weights."""
    b = GraphBuilder("fan")
    x = b.tensor((1,), num_bytes=20)
    b.op("opaque", [b.tensor((1,))], [x], flops=4.0)
    for flops in (3.0, 3.0, 2.0):
        y = b.tensor((1,), num_bytes=0)
        b.op("opaque", [x, b.tensor((1,), weight=True, num_bytes=kept)], [y], flops=flops)
        b.output(y)
    return b.build()


@pytest.mark.parametrize(("device", "seconds"), [
    ([0, 0, 0, 0], 12.0),
    ([0, 1, 1, 1], 11.0),  # 3 + 3 + 2, and 3 to receive once what all three read
    ([0, 0, 1, 1], 10.0),  # device 0: 4 + 3, and 3 to send
    ([0, 0, 1, 2], 20.0),  # the host: 2 x 10, receiving is free; device 0 sends once
    ([2, 0, 1, 1], 40.0),  # the host: 4 x 10, sending is free
])  # fmt: skip
def test_loads_by_hand(device: list[int], seconds: float) -> None:
    assert price(fan(), two_and_a_host(), device) == seconds


def test_memory_is_that_of_weights() -> None:
    graph, tight, none = fan(kept=100), two_and_a_host(capacity=200.0), two_and_a_host(0.0)
    assert price(graph, tight, [0, 0, 0, 1]) < float("inf")
    assert price(graph, tight, [0, 0, 0, 0]) == float("inf")  # 300 bytes
    assert price(graph, tight, [2, 2, 2, 2]) < float("inf")
    assert price(fan(kept=5), none, [0, 0, 0, 0]) == float("inf")
    assert price(fan(kept=5), none, [2, 2, 2, 2]) == 120.0


def plain_loads(graph: Graph, machine: Machine, device: list[int]) -> list[float]:
    """The definition, op by op."""
    load = [0.0] * machine.num_devices
    latency, bandwidth = machine.link_latency_DD, machine.link_bandwidth_DD
    for n, here in enumerate(device):
        load[here] += graph.flops[n] / machine.devices[here].vector_flops
        for tensor in graph.results(n):
            others = {device[r] for r in range(graph.num_ops) if tensor in graph.operands(r)} - {here}
            travel = {d: latency[here, d] + graph.tensor_bytes[tensor] / bandwidth[here, d] for d in others}
            for d in others:
                load[d] += travel[d] * machine.devices[d].pays_transfers
            load[here] += max(travel.values(), default=0.0) * machine.devices[here].pays_transfers
    return load


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20))
def test_loads_are_the_definition(seed: int, ops: int) -> None:
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made = [b.tensor((1,), num_bytes=7)]
    for n in range(ops):
        results = [b.tensor((1,), num_bytes=int(rng.integers(1, 50))) for _ in range(int(rng.integers(1, 3)))]
        reads = rng.choice(len(made), min(len(made), int(rng.integers(1, 4))), replace=False)
        b.op("opaque", [made[i] for i in reads], results, flops=float(rng.integers(1, 9)), name=f"op{n}")
        made += results
    graph, device = b.build(), rng.integers(0, 3, ops).tolist()
    assert price(graph, two_and_a_host(), device) == pytest.approx(
        max(plain_loads(graph, two_and_a_host(), device)), rel=1e-9
    )


def published(name: str) -> tuple[Graph, AssignTask, CostModel, dict[str, float]]:
    machine = option("machine", "accelerators6")
    task, cost = option("task", "placement", {"machine": machine}), simulator(machine, "max_load")
    known = json.loads(check_data("placement/known.json").read_text())["max_load_ms"][f"LayerGraphs_{name}"]
    return read_layer_graph(check_data(f"placement/LayerGraphs_{name}.json")), task, cost, known


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("split", ["expert", "dp"])
def test_published_splits_have_their_published_loads(name: str, split: str) -> None:
    graph, task, cost, known = published(name)
    file = f"{name}_expert.json" if split == "expert" else f"tput_LayerGraphs_{name}_dp.json"
    groups = json.loads(check_data(f"placement/{file}").read_text())
    cpu = len(task.machine.devices) - 1
    device = {str(n): d for d, part in enumerate(groups["fpgas"]) for n in part["nodes"]}
    device |= {str(n): cpu for part in groups["cpus"] for n in part["nodes"]}
    decision = np.array([[device[label]] for label in graph.op_names], np.int16)
    assert 1e3 * cost.price(task.realise(graph, decision[None])).cost[0] == pytest.approx(known[split], rel=1e-5)


def walk(rng: np.random.Generator, start: np.ndarray, steps: int, kinds: int) -> np.ndarray:
    """[steps, N] plans of which each has 0 to 3 ops elsewhere than the one before, now and then all."""
    plans = [start]
    for _ in range(steps - 1):
        here = plans[-1].copy()
        moved = rng.choice(len(here), len(here) if rng.random() < 0.05 else int(rng.integers(0, 4)), replace=False)
        here[moved] = rng.integers(0, kinds, len(moved))
        plans.append(here)
    return np.stack(plans)


@settings(max_examples=25, deadline=None)
@example(seed=0, longest=1.0)
@given(seed=st.integers(0, 10**6), longest=st.sampled_from([1.0, 3000.0]))
def test_plans_that_follow_from_others_cost_what_they_cost_alone(seed: int, longest: float) -> None:
    """To the last bit: loads of odd seconds, also beyond 8192 s, ops that run on one kind of device only, shared
    weights, memory that runs out; priced one by one with new cost models, in batches, and in turn."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made, shared = [b.tensor((1,), num_bytes=7)], b.tensor((1,), weight=True, num_bytes=50)
    for n in range(40):
        reads = [made[i] for i in rng.choice(len(made), min(len(made), 3), replace=False)]
        own = b.tensor((1,), weight=True, num_bytes=int(rng.integers(1, 20)))
        results = [b.tensor((1,), num_bytes=int(rng.integers(0, 50))) for _ in range(2)]
        seconds = {"fast": longest * rng.random(), "slow": 9.0 * rng.random()}
        seconds["fast"] = float("inf") if n == 5 and seed % 2 else seconds["fast"]
        b.op("opaque", [*reads, own, shared], results, flops=1.0, seconds=seconds, name=f"op{n}")
        made += results
    fast = Device(kind="fast", capacity=rng.choice([200.0, 400.0]))
    machine = Machine(
        name="m", devices=(fast, fast, Device(kind="slow", pays_transfers=False)), link_bandwidth=10.0, link_latency=0.3
    )
    graph = b.build()
    device = walk(rng, rng.integers(0, 3, 40), 60, 3).astype(np.int16)

    def plans(rows: np.ndarray) -> Plans:
        return Plans(graph, rows, np.zeros(rows.shape), np.zeros(rows.shape, bool))

    alone = [simulator(machine, "max_load").price(plans(row[None])) for row in device]
    together, one = (simulator(machine, "max_load") for _ in range(2))
    batches = [together.price(plans(device[i : i + 7])) for i in range(0, 60, 7)]
    turns = [one.price(plans(row[None])) for row in device]
    for other in (batches, turns):
        assert np.concatenate([p.cost for p in other]).tolist() == [p.cost[0] for p in alone]
        assert np.concatenate([p.excess for p in other]).tolist() == [p.excess[0] for p in alone]
    assert seed or np.isfinite([p.cost[0] for p in alone]).any()  # of other seeds memory may be too short for all
