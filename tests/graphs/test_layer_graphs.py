"""Layer graphs: what the file says is in the graph, in its stored file, in its times, and in what tasks decide."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check
from graphopt.core.plan import Role
from graphopt.core.utils import registry
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.costs.simulator import Simulator
from graphopt.graphs.files import GraphFiles
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.graphs.readers.formats.task_graphs import BYTES_PER_MS, read_devices, read_layer_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.placement import Joint, Placement, Scheduling
from graphopt.run.config.construct import construct
from graphopt.run.config.suggested_machine import warn_of_other_machine, with_suggested_machine
from graphopt.search.heuristics.starts import heuristic_keys

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def write(folder: Path, name: str = "LayerGraphs_tiny.json") -> Path:
    """Three layers in a row, the last before the first in the file, the outer two of one colour."""
    nodes = [
        {"id": i, "cpuLatency": cpu, "fpgaLatency": fast, "size": size, "colorClass": colour}
        for i, cpu, fast, size, colour in ((3, 30.0, 3.0, 300.0, 1), (1, 10.0, 0.0, 100.0, 1), (2, 20.0, 2.0, 0.0, 2))
    ]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.0}]
    (folder / name).write_text(json.dumps({"maxFPGAs": 2, "nodes": nodes, "edges": edges}))
    return folder / name


def test_what_the_file_says(tmp_path: Path) -> None:
    graph = read_layer_graph(write(tmp_path))
    assert graph.op_names == ("1", "2", "3")
    assert graph.measured["cpu"].tolist() == [0.01, 0.02, 0.03]
    assert graph.measured["accelerator"].tolist() == [0.0, 0.002, 0.003]
    assert graph.together.tolist() == [0, 1, 0]
    assert graph.weight_bytes.tolist() == [100, 0, 300]
    assert graph.result_bytes.tolist() == [BYTES_PER_MS // 2, 0, 0]


def test_a_folder_is_read_by_content(tmp_path: Path) -> None:
    """Published names say nothing, and splits lie beside the graphs."""
    write(tmp_path)
    write(tmp_path, "bert_l-3_inference.json")
    (tmp_path / "known.json").write_text("{}")
    (tmp_path / "bert_l-3_expert.json").write_text('{"fpgas": [{"nodes": [1, 2]}]}')
    graphs = GraphFiles(name="files", path=str(tmp_path), train=[], val=[]).graphs("test")
    assert [graph.name for graph in graphs] == ["tiny", "bert_l-3_inference"]
    (tmp_path / "LayerGraphs_broken.json").write_text('{"nodes": [{}]}')
    again = GraphFiles(name="files", path=str(tmp_path), train=[], val=[])
    with pytest.warns(UserWarning, match="not a layer graph"):
        assert len(again.graphs("test")) == 2
    alone = GraphFiles(name="files", path=str(tmp_path / "known.json"), train=[], val=[])
    with pytest.raises(GraphError, match="not a layer graph"):
        alone.graphs("test")


def test_published_fields_that_may_be_missing_or_odd(tmp_path: Path) -> None:
    """No colours, ids as strings, a backward node, a node that the accelerator does not support."""
    nodes = [
        {"id": "a", "cpuLatency": 1.0, "fpgaLatency": 1e9, "size": 5, "supportedOnFpga": 0},
        {"id": "b", "cpuLatency": 10.0, "fpgaLatency": 2.0, "size": 7, "supportedOnFpga": True, "isBackwardNode": 1},
    ]
    file = tmp_path / "operators.json"
    file.write_text(json.dumps({"nodes": nodes, "edges": [{"sourceId": "a", "destId": "b", "cost": 0.5}]}))
    graph = read_layer_graph(file)
    assert graph.op_names == ("a", "b")
    assert not len(graph.together)
    assert [bool(op.get("backward")) for op in graph.attributes] == [False, True]
    assert graph.measured["accelerator"].tolist() == [float("inf"), 0.002]
    fast, slow = Device(kind="accelerator"), Device(kind="cpu", pays_transfers=False)
    machine = Machine(name="m", devices=(fast, fast, slow), link_bandwidth=BYTES_PER_MS * 1e3)
    task = Placement(name="p", machine=machine, fuse=False, **CAPS)
    cost = Simulator(name="s", machine=machine, objective="max_load", threads=1)
    assert task.initial(graph).tolist() == [[2], [2]]  # the first device would never end
    prices = cost.price(task.realise(graph, np.array([[[0], [1]], [[2], [1]], [[2], [2]]], np.int16)))
    assert prices.cost.tolist() == pytest.approx([float("inf"), 0.0025, 0.011])
    problem = AssignProblem(graph, task, cost, evals=100)
    assert problem.cost_keys(heuristic_keys(problem)).min() == pytest.approx(0.0025)  # every heuristic bears it
    twice = {"nodes": [nodes[0], nodes[0]], "edges": []}
    file.write_text(json.dumps(twice))
    with pytest.raises(GraphError, match="two nodes share an id"):
        read_layer_graph(file)


def test_the_machine_that_a_file_was_made_for(tmp_path: Path) -> None:
    file = write(tmp_path)
    assert read_devices(file) == {"accelerator": {"count": 2}}
    data = json.loads(file.read_text()) | {"maxFPGAs": 3, "maxCPUs": 0, "maxSizePerFPGA": 1e9}
    file.write_text(json.dumps(data))
    files = registry.option("dataset", "files") | {"path": str(file)}
    config = OmegaConf.create({"seed": 0, "dataset": files, "machine": registry.option("machine", "accelerators")})
    made = construct(OmegaConf.to_container(with_suggested_machine(config)["machine"]), "machine")
    assert [(device.kind, device.capacity) for device in made.devices] == [("accelerator", 1e9)] * 3
    dataset = construct(files, "dataset", {"seed": 0})
    with pytest.warns(UserWarning, match="6 devices of kind accelerator, but .* made for 3 of them, 1000000000 bytes"):
        warn_of_other_machine(dataset, construct(registry.option("machine", "accelerators6"), "machine"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_machine(dataset, made)
        warn_of_other_machine(dataset, construct(registry.option("machine", "gpu2"), "machine"))
    file.write_text(json.dumps(data | {"maxFPGAs": 10**9}))
    with pytest.raises(GraphError, match="whole number from 0 to 60"):
        read_devices(file)


def test_a_stored_graph_keeps_times_and_groups(tmp_path: Path) -> None:
    graph = read_layer_graph(write(tmp_path))
    save_graph(tmp_path / "g.npz", graph)
    back = load_graph(tmp_path / "g.npz")
    assert back.hash == graph.hash
    assert back.together.tolist() == graph.together.tolist()
    assert {kind: seconds.tolist() for kind, seconds in back.measured.items()} == {
        kind: seconds.tolist() for kind, seconds in graph.measured.items()
    }


def test_measured_times_count_on_devices_of_their_kind_only(tmp_path: Path) -> None:
    graph = read_layer_graph(write(tmp_path))
    devices = (Device(kind="cpu"), Device(kind="accelerator"), Device(vector_flops=0.5, contraction_flops=0.5))
    time = kernel_graph(graph, np.zeros(3, bool), devices).time
    assert np.allclose(time, [[0.01, 0.0, 0.0], [0.02, 0.002, 0.004], [0.03, 0.003, 0.006]], atol=1e-11)


def test_a_fused_kernel_takes_the_time_of_the_model() -> None:
    """What was measured is one op."""
    b = GraphBuilder("pair")
    x, y, z = b.tensor((4,)), b.tensor((4,)), b.tensor((4,))
    b.op("relu", [x], [y], flops=1.0, seconds={"cpu": 5.0})
    b.op("relu", [y], [z], flops=1.0, seconds={"cpu": 7.0})
    b.output(z)
    graph, device = b.build(), (Device(kind="cpu"),)
    assert kernel_graph(graph, np.array([False, False]), device).time[:, 0].tolist() == [5.0, 7.0]
    assert kernel_graph(graph, np.array([True, False]), device).time[:, 0].tolist() == [0.0, 2.0]


def test_times_for_some_ops_only_are_refused() -> None:
    b = GraphBuilder("half")
    x, y, z = b.tensor((4,)), b.tensor((4,)), b.tensor((4,))
    b.op("relu", [x], [y], seconds={"cpu": 5.0})
    b.op("relu", [y], [z], name="second")
    with pytest.raises(GraphError, match="'second' lacks measured seconds"):
        b.build()


def grouped(seed: int) -> Graph:
    """A chain of relus and views with groups at random."""
    rng, b = np.random.default_rng(seed), GraphBuilder("grouped")
    x = b.tensor((4, 4))
    for n in range(12):
        y = b.tensor((4, 4))
        group = None if rng.random() < 0.3 else f"group{rng.integers(4)}"
        b.op("reshape" if rng.random() < 0.3 else "relu", [x], [y], name=f"op{n}", together=group)
        x = y
    b.output(x)
    return b.build()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_plans_keep_groups_together_whatever_is_decided(seed: int) -> None:
    """By decisions and by keys; and nobody is asked where an op goes that follows another."""
    rng, graph = np.random.default_rng(seed), grouped(seed)
    machine = Machine(name="m", devices=(Device(), Device(), Device()), link_bandwidth=100.0)
    tasks = (
        Joint(name="j", machine=machine, levels=4, fuse=True, **CAPS),
        Placement(name="p", machine=machine, fuse=False, **CAPS),
        Scheduling(name="s", machine=machine, levels=4, placement="blocks", fuse=False, **CAPS),
    )
    for task in tasks:
        choices = np.array([head.count for head in task.heads])
        decisions = rng.integers(0, choices, (6, graph.num_ops, len(choices))).astype(np.int16)
        keys = rng.random((6, task.key_count(graph)))
        for plans in (task.realise(graph, decisions), task.realise_keys(graph, keys)):
            assert all(not check(plans[i], machine) for i in range(6))
        if task.decides(Role.DEVICE):
            followers = graph.together != np.arange(graph.num_ops)
            assert not task.mask(graph)[followers, 0].any()
            said = task.canonical(graph, decisions[0])
            assert np.array_equal(said[:, 0], said[graph.together, 0])
            assert np.array_equal(task.realise(graph, said[None]).device, task.realise(graph, decisions[:1]).device)


def test_files_of_one_name_in_several_folders_are_several_graphs(tmp_path: Path) -> None:
    """As published: inference and training of one model; and what has its name alone keeps it."""
    for folder in ("inference", "training"):
        (tmp_path / "sets" / folder).mkdir(parents=True)
        write(tmp_path / "sets" / folder, "bert.json")
    write(tmp_path / "sets" / "training", "resnet.json")
    write(tmp_path, "LayerGraphs_bert.json")
    graphs = GraphFiles(name="files", path=str(tmp_path), train=[], val=[]).graphs("test")
    assert [graph.name for graph in graphs] == ["bert", "inference_bert", "training_bert", "resnet"]


def test_a_node_that_the_accelerator_lacks_stays_on_the_cpu_for_run_time_too(tmp_path: Path) -> None:
    """Node a runs on the CPU only; of all placements the simulator prices those with it elsewhere as endless."""
    nodes = [
        {"id": "a", "cpuLatency": 1.0, "fpgaLatency": 1e9, "size": 5, "supportedOnFpga": 0},
        {"id": "b", "cpuLatency": 10.0, "fpgaLatency": 2.0, "size": 7},
    ]
    file = tmp_path / "operators.json"
    file.write_text(json.dumps({"nodes": nodes, "edges": [{"sourceId": "a", "destId": "b", "cost": 0.5}]}))
    graph = read_layer_graph(file)
    fast, slow = Device(kind="accelerator"), Device(kind="cpu", pays_transfers=False)
    machine = Machine(name="m", devices=(fast, slow), link_bandwidth=BYTES_PER_MS * 1e3)
    task = Placement(name="p", machine=machine, fuse=False, **CAPS)
    cost = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    decisions = np.array([[[0], [0]], [[0], [1]], [[1], [0]], [[1], [1]]], np.int16)
    assert cost.price(task.realise(graph, decisions)).cost.tolist() == pytest.approx(
        [float("inf"), float("inf"), 0.0035, 0.011]
    )
    for algo in ("local", "brkga", "heft"):
        problem, _ = solve(construct(registry.option("algo", algo), "algo", {}), graph, task, cost, evals=200)
        assert problem.best_cost == pytest.approx(0.0035)
        assert check(problem.solution().plans, machine) == []
