"""The `sequential_send` machine reproduces an independent published simulator: run times and peak bytes."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from omegaconf import OmegaConf

from graphopt.config.construct import construct
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.oracles import check_trace
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("GRAPHOPT_CHECK_DATA", ROOT.parent / "shared/data")) / "simulator"
pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"third-party data not found in {DATA}")


def test_run_time_and_peak_bytes_of_all_placements():
    graph_data = json.loads((DATA / "gnmt_training_layer.graph.json").read_text())
    oracle = json.loads((DATA / "sequential_send_oracle.json").read_text())[0]
    b = GraphBuilder("gnmt")
    results = [b.tensor((1,), num_bytes=size) for size in graph_data["out_bytes"]]
    for name, cost, reads, result in zip(graph_data["names"], graph_data["cost_us"], graph_data["inputs"], results):
        b.op("opaque", [results[i] for i in reads], [result], flops=cost * 1e-6, name=name)
    graph = b.build()
    given = [graph_data["names"].index(name) for name in graph.op_names]
    machine = construct(OmegaConf.to_container(OmegaConf.load(ROOT / "conf/machine/sequential_send.yaml")), "machine")
    simulator = Simulator(name="s", machine=machine, objective="peak_memory", threads=1)
    device = np.array([run["placement"] for run in oracle["runs"]], np.int16)[:, given]
    plans = Plans(graph, device, np.zeros(device.shape), np.zeros(device.shape, bool))
    for i, expected in enumerate(oracle["runs"]):
        trace = simulator.simulate(plans[i])
        assert trace.makespan == pytest.approx(expected["run_time_us"] * 1e-6, rel=1e-6)
        assert trace.peak_bytes.tolist() == expected["peak_bytes"]
        assert check_trace(trace, plans[i], machine) == []
    assert simulator.price(plans).cost.tolist() == [max(run["peak_bytes"]) for run in oracle["runs"]]
