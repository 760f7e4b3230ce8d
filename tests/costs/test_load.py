"""Loads of a pipeline: by hand, against the definition, and against published splits and optima."""

import json

import numpy as np
import pytest
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.problems.task import AssignTask
from graphopt.readers.formats.layer_graphs import read_layer_graph
from graphopt.utils import registry

GRAPHS = ("bert24_inference", "bert24_training", "gnmt_inference")


def two_and_a_host(capacity: float = float("inf")) -> Machine:
    """Two devices that pay for transfers (1 s + 1 s per 10 bytes) and one that does not and is ten times slower."""
    fast = Device(capacity=capacity)
    slow = Device(vector_flops=0.1, contraction_flops=0.1, pays_transfers=False)
    return Machine(name="m", devices=(fast, fast, slow), link_bandwidth=10.0, link_latency=1.0)


def price(graph: Graph, machine: Machine, device: list[int]) -> float:
    plan = Plans(graph, np.array([device], np.int16), np.zeros((1, graph.num_ops)), np.zeros((1, graph.num_ops), bool))
    return float(Simulator(name="s", machine=machine, objective="max_load", threads=1).price(plan).cost[0])


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


@pytest.mark.parametrize(
    ("device", "seconds"),
    [
        ([0, 0, 0, 0], 12.0),
        ([0, 1, 1, 1], 11.0),  # 3 + 3 + 2, and 3 to receive once what all three read
        ([0, 0, 1, 1], 10.0),  # device 0: 4 + 3, and 3 to send
        ([0, 0, 1, 2], 20.0),  # the host: 2 x 10, receiving is free; device 0 sends once
        ([2, 0, 1, 1], 40.0),  # the host: 4 x 10, sending is free
    ],
)
def test_loads_by_hand(device: list[int], seconds: float) -> None:
    assert price(fan(), two_and_a_host(), device) == seconds


def test_memory_is_that_of_weights() -> None:
    graph, tight = fan(kept=100), two_and_a_host(capacity=200.0)
    assert price(graph, tight, [0, 0, 0, 1]) < float("inf")
    assert price(graph, tight, [0, 0, 0, 0]) == float("inf")  # 300 bytes
    assert price(graph, tight, [2, 2, 2, 2]) < float("inf")


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
    machine = construct(registry.option("machine", "accelerators6"), "machine")
    task = construct(registry.option("task", "placement"), "task", {"machine": machine})
    node = registry.option("cost", "simulator") | {"objective": "max_load", "threads": 1}
    cost = construct(node, "cost", {"machine": machine})
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


@pytest.mark.parametrize("name", GRAPHS)
def test_local_search_is_no_worse_than_the_best_contiguous_split(name: str) -> None:
    graph, task, cost, known = published(name)
    algo = construct(registry.option("algo", "regal_local_heuristic"), "algo", {})
    problem, _ = solve(algo, graph, task, cost, evals=4000)
    assert 1e3 * problem.best_cost <= 1.02 * known["dp"]
    plan = problem.plans()
    assert check(plan, task.machine) == []  # what has to share a device does
    kept = [sum(int(graph.weight_bytes[n]) for n in np.flatnonzero(plan.device[0] == d)) for d in range(7)]
    assert all(held <= device.capacity for held, device in zip(kept, task.machine.devices, strict=True))


def test_a_device_that_holds_nothing_refuses_all_weights() -> None:
    """Accelerators without memory, of which one is not used."""
    assert price(fan(kept=5), two_and_a_host(0.0), [0, 0, 0, 0]) == float("inf")
    assert price(fan(kept=5), two_and_a_host(0.0), [2, 2, 2, 2]) == 120.0


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

    def cost() -> Simulator:
        return Simulator(name="s", machine=machine, objective="max_load", threads=1)

    alone = [cost().price(plans(row[None])) for row in device]
    together, one = cost(), cost()
    batches = [together.price(plans(device[i : i + 7])) for i in range(0, 60, 7)]
    turns = [one.price(plans(row[None])) for row in device]
    for other in (batches, turns):
        assert np.concatenate([p.cost for p in other]).tolist() == [p.cost[0] for p in alone]
        assert np.concatenate([p.excess for p in other]).tolist() == [p.excess[0] for p in alone]
    assert seed % 2 or np.isfinite([p.cost[0] for p in alone]).any()
