"""`machine=sequential_send` against an independent program of the published rules, and that against its figures."""

import json

import numpy as np
import pytest
from check_data import check_data
from published_rules import Case, run

from graphopt.config.construct import construct
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Machine
from graphopt.core.oracles import check_trace
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.utils import registry


def preset(devices: int) -> Machine:
    node = registry.option("machine", "sequential_send")
    node["devices"]["device"]["count"] = devices
    machine: Machine = construct(node, "machine")
    return machine


def ours(case: Case, machine: Machine) -> tuple[float, list[int], list[str]]:
    """(run time in us, peak bytes, what the independent check finds wrong) of our simulator."""
    b = GraphBuilder("case")
    results = [b.tensor((1,), num_bytes=size) for size in case.size]
    for n, reads in enumerate(case.reads):
        b.op("opaque", [results[m] for m in reads], [results[n]], flops=case.cost[n] * 1e-6, name=case.names[n])
    graph = b.build()
    given = [case.names.index(name) for name in graph.op_names]
    device = np.array(case.place, np.int16)[given][None]
    plan = Plans(graph, device, np.zeros(device.shape), np.zeros(device.shape, bool))
    simulator = Simulator(name="s", machine=machine, objective="peak_memory", threads=1)
    trace = simulator.simulate(plan)
    assert simulator.price(plan).cost[0] == trace.peak_bytes.max()
    assert Simulator(name="s", machine=machine, objective="runtime", threads=1).price(plan).cost[0] == trace.makespan
    return trace.makespan * 1e6, trace.peak_bytes.tolist(), check_trace(trace, plan, machine)


def random_case(seed: int) -> Case:
    """A graph of up to 40 ops on up to 12 devices: equal times, ops and results of nothing, many readers, names whose
    order as strings is not that of the graph, ops given in an order that is not topological."""
    rng = np.random.default_rng(seed)
    ops, devices = int(rng.integers(2, 41)), int(rng.integers(1, 13))
    costs = [[0, 10], [0, 0, 1, 2, 3], [0, 5, 100, 1000], [7], [0]][int(rng.integers(5))]
    sizes = [[0, 7600], [0], [0, 76_000, 190_000], [1, 1000, 12_345, 10**6], [7600]][int(rng.integers(5))]
    width = int(rng.choice([2, 5, 40]))
    reads = []
    for n in range(ops):
        count = min(n, int(rng.choice([0, 1, 1, 2, 3])))
        reads.append(sorted(rng.choice(np.arange(max(0, n - width), n), min(count, n, width), replace=False).tolist()))
    shuffle = rng.permutation(ops) if rng.random() < 0.5 else np.arange(ops)
    given = np.argsort(shuffle)  # op n of the construction is given as the shuffle[n]-th
    names = [f"op{i}" for i in (rng.permutation(ops) if rng.random() < 0.5 else range(ops))]
    return Case(
        names=[names[n] for n in given],
        cost=[int(rng.choice(costs)) for _ in given],
        size=[int(rng.choice(sizes)) for _ in given],
        reads=[[int(shuffle[m]) for m in reads[n]] for n in given],
        place=rng.integers(0, devices, ops).tolist(),
        devices=[device.name for device in preset(devices).devices],
    )


@pytest.mark.parametrize("part", range(8))
def test_run_times_and_peaks_are_those_of_the_published_rules(part: int) -> None:
    for seed in range(150 * part, 150 * part + 150):
        case = random_case(seed)
        time, peak = run(case)
        found, bytes_found, wrong = ours(case, preset(len(case.devices)))
        assert found == pytest.approx(time, rel=1e-12), seed
        assert bytes_found == peak, seed
        assert wrong == [], seed


def test_the_rules_give_the_published_figures() -> None:
    graph = json.loads((check_data("simulator") / "gnmt_training_layer.graph.json").read_text())
    oracle = json.loads((check_data("simulator") / "sequential_send_oracle.json").read_text())[0]
    for known in oracle["runs"]:
        case = Case(graph["names"], graph["cost_us"], graph["out_bytes"], graph["inputs"], known["placement"],
                    ["device0", "device1"])  # fmt: skip
        time, peak = run(case)
        assert time == pytest.approx(known["run_time_us"], rel=1e-12)
        assert peak == known["peak_bytes"]
