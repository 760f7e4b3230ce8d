"""Splits into stages and load balance: published figures, and the cost model."""

import json
from itertools import permutations

import numpy as np
import pytest
from cells import option, placement, simulator
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.errors import Unsolved
from graphopt.core.graph import F64, Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check
from graphopt.graphs.readers.formats.task_graphs import read_layer_graph
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.pipelines.load_balance import (
    LoadBalance,
    Pipeline,
    _LoadSearch,
    contiguous,
    pipeline_of,
    split_order,
)

GRAPHS = ("bert24_inference", "bert24_training", "gnmt_inference")


def machine(capacity: float = float("inf")) -> Machine:
    """Two devices that pay for transfers and a host that does not, and is slower."""
    fast = Device(capacity=capacity)
    slow = Device(vector_flops=0.4, contraction_flops=0.4, pays_transfers=False)
    return Machine(name="m", devices=(fast, fast, slow), link_bandwidth=10.0, link_latency=0.5)


def random_graph(seed: int, ops: int) -> Graph:
    """Ops of 0 to 8 s with weights, some of them shared; some groups; results of 0 to 60 bytes."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made, shared = [b.tensor((1,), num_bytes=7)], b.tensor((1,), weight=True, num_bytes=5)
    for n in range(ops):
        reads = [made[i] for i in rng.choice(len(made), min(len(made), int(rng.integers(1, 3))), replace=False)]
        own = b.tensor((1,), weight=True, num_bytes=int(rng.integers(1, 20)))
        result = b.tensor((1,), num_bytes=int(rng.choice([0, 10, 60])))
        group = f"group{rng.integers(3)}" if rng.random() < 0.3 else None
        reads += [own] if rng.random() < 0.7 else [shared]
        b.op("opaque", reads, [result], flops=float(rng.choice([0, 0, 2, 5, 8])), name=f"op{n}", together=group)
        made.append(result)
    return b.build()


def setting(graph: Graph, on: Machine) -> tuple[Pipeline, AssignTask, CostModel]:
    task = placement(on)
    return pipeline_of(SchedulingInstance(graph, task)), task, simulator(on, "max_load")


def price(graph: Graph, task: AssignTask, cost: CostModel, device: np.ndarray) -> F64:
    return cost.price(task.realise(graph, device[..., None].astype(np.int16))).cost


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_best_cuts_of_an_order(seed: int) -> None:
    """Any permutation of items, against all cuts and all devices of the runs."""
    graph = random_graph(seed, 6)
    line, task, cost = setting(graph, machine(40.0))
    order = np.random.default_rng(seed).permutation(line.num_items)
    cuts = [(0, i, j, len(order)) for i in range(len(order) + 1) for j in range(i, len(order) + 1)]
    runs = [np.repeat(devices, np.diff(cut)) for devices in permutations(range(3)) for cut in cuts]
    rows = np.empty((len(runs), len(order)), np.int64)
    rows[:, order] = np.array(runs)
    least = float(price(graph, task, cost, np.stack([line.devices(row) for row in rows])).min())
    assert split_order(line.stream, line.kinds, order, np.inf).load == least
    assert split_order(line.stream, line.kinds, order, least).load == np.inf  # only what is below the limit


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_loads_are_those_of_the_cost_model(seed: int) -> None:
    graph, rng = random_graph(seed, 12), np.random.default_rng(seed)
    line, task, cost = setting(graph, machine())
    search = _LoadSearch(AssignProblem(graph, task, cost, evals=1), line)
    rows = rng.integers(0, 3, (8, line.num_items))
    prices = cost.price(task.realise(graph, search.decisions(rows))).cost
    assert search.loads(rows).max(1).tolist() == prices.tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 20), room=st.sampled_from([25.0, float("inf")]))
def test_the_first_evaluation_is_a_split_that_fits(seed: int, ops: int, room: float) -> None:
    graph = random_graph(seed, ops)
    line, task, cost = setting(graph, machine(room))
    split = contiguous(line, 3, np.random.default_rng(seed))
    assert split is not None  # the host always has room
    priced = price(graph, task, cost, line.devices(split)[None])[0]
    for evals in (0, 1):
        problem, _ = solve(algo(orders=3), graph, task, cost, evals=evals, seed=seed)
        assert np.isfinite(priced) and problem.best_cost <= max(priced, problem.initial_cost)
    with pytest.raises(Unsolved, match=r"cost\.objective=max_load"):
        solve(algo(), graph, task, simulator(machine()), evals=1)


def algo(**changes: object) -> LoadBalance:
    made: LoadBalance = option("algo", "load_balance", **changes)
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_published_graphs_go_below_the_best_contiguous_split(name: str) -> None:
    on = option("machine", "accelerators6")
    graph = read_layer_graph(check_data(f"placement/LayerGraphs_{name}.json"))
    line, task, cost = setting(graph, on)
    known = json.loads(check_data("placement/known.json").read_text())["max_load_ms"][f"LayerGraphs_{name}"]
    split = contiguous(line, 60, np.random.default_rng(0))
    assert split is not None and 1e3 * price(graph, task, cost, line.devices(split)[None])[0] <= 1.001 * known["dp"]
    runs = [solve(algo(), graph, task, cost, evals=3000, seed=0)[0] for _ in range(2)]
    assert 1e3 * runs[0].best_cost < known["dp"]
    assert 1e3 * runs[0].best_cost <= 1.005 * known["localSearch"]
    assert runs[0].evals == 3000
    assert check(runs[0].solution().plans, on) == []
    assert np.array_equal(runs[0].best, runs[1].best)  # nothing depends on the clock
