"""Moves of runs: loads against the cost model, repairs, starts, and what comes out on published graphs."""

import json
import sys

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
from graphopt.costs.simulator import Simulator
from graphopt.errors import ConfigError
from graphopt.problems.optimizer import solve
from graphopt.readers.formats.layer_graphs import read_layer_graph
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.pipelines.load_balance import LoadBalance, loads, readers_of, repaired
from graphopt.search.pipelines.pipeline import pipeline_of
from graphopt.tasks.placement import Placement
from graphopt.utils import registry

GRAPHS = ("bert24_inference", "bert24_training", "gnmt_inference")
MACHINE = Machine(
    name="m", devices=(Device(capacity=60.0), Device(capacity=60.0), Device(vector_flops=0.4, pays_transfers=False)),
    link_bandwidth=10.0, link_latency=0.5,
)  # fmt: skip


def random_graph(seed: int, ops: int) -> Graph:
    """Ops of up to 8 s that read one or two results and a weight of up to 20 bytes, some of them shared."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made, shared = [b.tensor((1,), num_bytes=7)], b.tensor((1,), weight=True, num_bytes=5)
    for n in range(ops):
        reads = [made[i] for i in rng.choice(len(made), min(len(made), int(rng.integers(1, 3))), replace=False)]
        own = b.tensor((1,), weight=True, num_bytes=int(rng.integers(1, 20)))
        made.append(b.tensor((1,), num_bytes=int(rng.choice([0, 10, 60]))))
        group = f"group{rng.integers(3)}" if rng.random() < 0.3 else None
        b.op("opaque", [*reads, own if rng.random() < 0.7 else shared], [made[-1]], flops=float(rng.integers(9)),
             name=f"op{n}", together=group)  # fmt: skip
    return b.build()


def place(machine: Machine) -> Placement:
    return Placement(name="p", machine=machine, fuse=False, max_ops=64, max_inputs=16, max_duplicates=8)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_loads_are_those_of_the_cost_model(seed: int) -> None:
    graph, rng = random_graph(seed, 12), np.random.default_rng(seed)
    task = place(MACHINE)
    line = pipeline_of(SchedulingInstance(graph, task))
    rows = rng.integers(0, 3, (8, line.num_items))
    load, held = loads(line, readers_of(line), rows)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    plans = task.realise(graph, np.stack([line.devices(row) for row in rows])[:, :, None])
    prices = cost.price(plans)
    fits = (held <= [device.capacity for device in MACHINE.devices]).all(1)
    assert np.where(fits, load.max(1), np.inf).tolist() == prices.cost.tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_repairs_make_plans_fit(seed: int) -> None:
    """All on the first accelerator, over its capacity; the host always has room."""
    graph = random_graph(seed, 20)
    task = place(MACHINE)
    line = pipeline_of(SchedulingInstance(graph, task))
    found = repaired(line, np.zeros(line.num_items, np.int64))
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    assert np.isfinite(cost.price(task.realise(graph, line.devices(found)[None, :, None])).cost[0])


@pytest.mark.parametrize("name", GRAPHS)
def test_published_graphs_go_below_the_best_contiguous_split(name: str) -> None:
    machine = construct(registry.option("machine", "accelerators6"), "machine")
    task, cost = place(machine), Simulator(name="s", machine=machine, objective="max_load", threads=1)
    graph = read_layer_graph(check_data(f"placement/LayerGraphs_{name}.json"))
    known = json.loads(check_data("placement/known.json").read_text())["max_load_ms"][f"LayerGraphs_{name}"]
    algo = construct(registry.option("algo", "load_balance"), "algo", {})
    runs = [solve(algo, graph, task, cost, evals=3000, seed=0)[0] for _ in range(2)]
    assert 1e3 * runs[0].best_cost < known["dp"]
    assert 1e3 * runs[0].best_cost <= 1.005 * known["localSearch"]
    assert runs[0].evals == 3000
    assert check(runs[0].plans(), machine) == []
    assert np.array_equal(runs[0].best, runs[1].best)  # nothing depends on the clock


def test_one_evaluation_is_the_best_contiguous_split() -> None:
    graph, task = random_graph(5, 20), place(MACHINE)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    found = [solve(construct(registry.option("algo", name), "algo", {}), graph, task, cost, evals=1)[0].best_cost
             for name in ("load_balance", "contiguous")]  # fmt: skip
    assert found[0] == found[1]


def test_metis_is_asked_for_and_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, task = random_graph(5, 20), place(MACHINE)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    algo: LoadBalance = construct(registry.option("algo", "load_balance") | {"starts": ["metis"]}, "algo", {})
    pytest.importorskip("pymetis")
    assert np.isfinite(solve(algo, graph, task, cost, evals=1)[0].best_cost)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigError, match="pymetis"):
        solve(algo, graph, task, cost, evals=1)
    with pytest.raises(ConfigError, match="starts are some of"):
        construct(registry.option("algo", "load_balance") | {"starts": ["luck"]}, "algo", {})
