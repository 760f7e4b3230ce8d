"""Files of graphs: third-party formats with known costs, and our own, damaged ones included."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data

import graphopt
from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.graphs.dataset import check_splits
from graphopt.graphs.files import GraphFiles
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.graphs.readers.formats.task_graphs import (
    parse_text,
    read_costgraph,
    read_lifetimes,
    read_profiled,
    read_stg,
)
from graphopt.graphs.readers.formats.workflows import read_workflow
from graphopt.run.records.rows import digest_of

# --- Readers of graphs with known costs, against the third-party files and hand-written ones.

COSTGRAPH = """
# comment
node { name: "_SOURCE" }
node { name: "a" id: 1 output_info { size: 70 alias_input_port: -1 } output_info { size: 30 } control_input: 0
       compute_cost: 58 }
node { id: 2 name: "b" control_input: 0 output_info { size: 52 } compute_cost: 47 }
node { name: "c" id: 3 input_info { preceding_node: 1 preceding_port: 1 } input_info { preceding_node: 2 }
       output_info: { size: -1 }, compute_cost: 8 }
"""
STG = "  3\n 0 0 0\n 1 5 1 0\n 2 7 1 0\n 3 2 2 1 2\n 4 0 1 3\n# a comment\n"
PROFILE = {"names": ["a", "b"], "cost_us": [0, 5], "out_bytes": [8, 9], "inputs": [[], [0]]}


def longest_path(graph: Graph) -> float:
    end = np.zeros(graph.num_ops)
    ptr, before = graph.predecessors
    for op in range(graph.num_ops):
        end[op] = graph.flops[op] + max(end[before[ptr[op] : ptr[op + 1]]], default=0)
    return float(end.max())


def test_task_graphs_meet_the_known_lower_bounds() -> None:
    """Known bounds for m processors are max(longest path, ceil(work / m)) where the source says so."""
    folder = check_data("scheduling")
    known = [row for row in json.loads((folder / "known.json").read_text()) if "max(CP" in row["src"]]
    assert len(known) > 30
    for row in known:
        graph = read_stg(folder / row["file"])
        assert graph.num_ops == 52 and graph.result_bytes.sum() == 0
        assert max(longest_path(graph), -(-graph.flops.sum() // row["m"])) == row["lb"]


def test_stg_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.stg").write_text(STG)
    graph = read_stg(tmp_path / "a.stg")
    assert graph.op_names == ("task_0", "task_1", "task_2", "task_3", "task_4")
    assert graph.flops.tolist() == [0, 5, 7, 2, 0]
    assert list(zip(*(e.tolist() for e in graph.edges[:2]), strict=True)) == [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4)]


def workflow(**changes: object) -> dict[str, object]:
    """Two tasks that share a file, and one that waits for both without a file of theirs."""
    tasks = [
        {"id": "a", "parents": [], "inputFiles": ["raw"], "outputFiles": ["mid", "log"]},
        {"id": "c", "parents": ["a", "b"], "outputFiles": []},
        {"id": "b", "parents": ["a"], "inputFiles": ["mid", "raw"], "outputFiles": ["out", "log"]},
    ]
    files = [{"id": name, "sizeInBytes": size} for name, size in (("raw", 7), ("mid", 5), ("log", 1), ("out", 3))]
    execution = {"tasks": [{"id": "a", "runtimeInSeconds": 2.5}, {"id": "b", "runtimeInSeconds": 1},
                           {"id": "c", "runtimeInSeconds": 0.5}]}  # fmt: skip
    return {"workflow": {"specification": {"tasks": tasks, "files": files}, "execution": execution, **changes}}


def test_workflows_have_their_seconds_and_bytes(tmp_path: Path) -> None:
    (file := tmp_path / "flow.json").write_text(json.dumps(workflow()))
    (graph,) = GraphFiles(name="files", path=str(file), train=[], val=[]).graphs("test")
    assert sorted(zip(graph.op_names, graph.flops.tolist())) == [("a", 2.5), ("b", 1.0), ("c", 0.5)]
    edges = {
        (graph.op_names[u], graph.op_names[v]) for u, v in zip(*(e.tolist() for e in graph.edges[:2]), strict=True)
    }
    assert edges == {("a", "b"), ("a", "c"), ("b", "c")}
    assert sorted(graph.tensor_bytes[graph.tensor_bytes > 0].tolist()) == [1, 3, 5, 7]
    (tmp_path / "index.json").write_text("{}")
    assert len(GraphFiles(name="files", path=str(tmp_path), train=[], val=[]).graphs("test")) == 1


def test_a_bad_workflow_is_a_sentence(tmp_path: Path) -> None:
    sound: Any = workflow()["workflow"]
    tasks, files = sound["specification"]["tasks"], sound["specification"]["files"]
    for changes, said in (
        ({"execution": {}}, "task a has no measured seconds"),
        ({"specification": {"tasks": tasks, "files": files[1:]}}, "file raw has no size in bytes"),
        ({"specification": {"tasks": tasks[1:], "files": files}}, "names parent a, which is not in the file"),
        ({"specification": {"tasks": [*tasks, tasks[0]], "files": files}}, "two tasks have the same id"),
        ({"specification": {"tasks": [{**tasks[0], "parents": ["a"]}], "files": files}}, "cycle"),
        ({"specification": {"tasks": [{}]}}, "is no workflow of WfCommons"),
    ):
        (file := tmp_path / "flow.json").write_text(json.dumps(workflow(**changes)))
        with pytest.raises(GraphError, match=said):
            read_workflow(file)


def test_profiled_graph_has_the_work_and_edges_of_the_simulator_run() -> None:
    """On one device the third-party run time is the sum of costs and 5.7 us per op of non-zero cost."""
    graph = read_profiled(check_data("simulator/gnmt_training_layer.graph.json"))
    runs = json.loads(check_data("simulator/sequential_send_oracle.json").read_text())
    oracle = next(entry for entry in runs if entry["graph"] == graph.name)
    assert (graph.num_ops, len(graph.edges[0])) == (oracle["nodes"], oracle["edges"])
    alone = next(run for run in oracle["runs"] if not any(run["placement"]))
    time = graph.flops.sum() + 5.7e-6 * np.count_nonzero(graph.flops)
    assert time == pytest.approx(alone["run_time_us"] * 1e-6, rel=1e-9)
    assert graph.op_names[0] == "n1" and graph.flops[graph.op_names.index("n98")] == pytest.approx(25538e-6)


def test_costgraph_by_hand(tmp_path: Path) -> None:
    (tmp_path / "g.pbtxt").write_text(COSTGRAPH)
    graph = read_costgraph(tmp_path / "g.pbtxt")
    assert graph.op_names == ("_SOURCE", "a", "b", "c")
    assert graph.flops.tolist() == [0, 58, 47, 8]
    assert graph.tensor_bytes.tolist() == [0, 70, 30, 52, 0]
    assert [graph.operands(op).tolist() for op in range(4)] == [[], [0], [0], [2, 3]]
    assert graph.is_output.tolist() == [False, True, False, False, True]


def test_costgraph_of_the_papers_readme(tmp_path: Path) -> None:
    text = check_data("importers/regal_format.md").read_text()
    (tmp_path / "g.pbtxt").write_text(text.split("```protobuf")[1].split("```")[0])
    graph = read_costgraph(tmp_path / "g.pbtxt")
    assert graph.op_names == ("_SOURCE", "node_0", "node_1", "node_2", "node_3")
    assert graph.flops.tolist() == [0, 0, 58, 47, 58]
    assert sorted(graph.tensor_bytes.tolist()) == [0, 52, 55, 70]
    sources, targets, tensors = graph.edges
    arcs = np.stack([sources, targets, graph.tensor_bytes[tensors]], 1).tolist()
    assert arcs == [[0, 1, 0], [0, 2, 0], [0, 3, 0], [0, 4, 0], [2, 4, 70]]


def test_protobuf_text_syntax() -> None:
    assert parse_text('a: 1 a: "x { }" b { c: -2 } # end') == {"a": ["1", "x { }"], "b": [{"c": ["-2"]}]}
    for broken in ("a {", "a: }", "a", "}", "a: 1 b { c: 2", 'a: "open'):
        with pytest.raises(ValueError):
            parse_text(broken)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.stg", "hello", "not a Standard Task Graph"),
        ("a.stg", "", "not a Standard Task Graph"),
        ("a.stg", STG.replace("3 2 2 1 2", "3 2 3 1 2"), "announces 3 predecessors"),
        ("a.stg", STG.replace("  3\n", "  9\n"), "9 tasks announced"),
        ("a.stg", STG.replace("1 5 1 0", "1 5 1 8"), "predecessor 8, which is not in the file"),
        ("a.stg", STG.replace("1 5 1 0", "1 5 1 4"), "cycle"),
        ("a.graph.json", "{", "not a profiled graph"),
        ("a.graph.json", "[1]", "not a profiled graph"),
        ("a.graph.json", json.dumps({"names": []}), "not a profiled graph"),
        ("a.graph.json", json.dumps({**PROFILE, "cost_us": [1]}), "differ in length"),
        ("a.graph.json", json.dumps({**PROFILE, "inputs": [[], [7]]}), "not in the file"),
        ("a.graph.json", json.dumps({**PROFILE, "inputs": [[1], [0]]}), "cycle"),
        ("a.graph.json", json.dumps({**PROFILE, "cost_us": [0, -1]}), "not negative"),
        ("a.graph.json", json.dumps({field: [] for field in PROFILE}), "no ops"),
        ("a.pbtxt", "nonsense {", "not a CostGraphDef"),
        ("a.pbtxt", "", "no ops"),
        ("a.pbtxt", COSTGRAPH.replace("preceding_node: 2", "preceding_node: 9"), "node 9, which is not in the file"),
        ("a.pbtxt", COSTGRAPH.replace("preceding_port: 1", "preceding_port: 5"), "output 5 of node 1"),
        ("a.pbtxt", COSTGRAPH.replace("control_input: 0", "control_input: 3"), "cycle"),
        ("a.txt", "x", "no reader fits"),
        ("a.npz", "x", "damaged"),
    ],
)
def test_broken_files_are_refused_with_a_sentence(tmp_path: Path, file: str, content: str, message: str) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(GraphError, match=message) as caught:
        GraphFiles(name="files", path=str(tmp_path / file), train=[], val=[]).graphs("test")
    assert "\n" not in str(caught.value)


def test_dataset_reads_every_kind_and_sorts_files_into_splits(tmp_path: Path) -> None:
    (tmp_path / "one.stg").write_text(STG)
    (tmp_path / "two.graph.json").write_text(json.dumps(PROFILE))
    (tmp_path / "three.pbtxt").write_text(COSTGRAPH)
    (tmp_path / "other.json").write_text("[]")  # not ours: left alone
    save_graph(tmp_path / "four.npz", read_stg(tmp_path / "one.stg"))
    data = GraphFiles(name="files", path=str(tmp_path), train=["t*"], val=["four"])
    assert [g.name for g in data.graphs("train")] == ["three", "two"]
    assert data.graphs("val")[0].hash == data.graphs("test")[0].hash
    with pytest.raises(GraphError, match=r"needs dataset\.path"):
        GraphFiles(name="files", path=None, train=[], val=[]).graphs("test")
    with pytest.raises(GraphError, match="no file named"):
        GraphFiles(name="files", path=str(tmp_path / "*.nothing"), train=[], val=[]).graphs("test")


def test_lifetimes_by_hand(tmp_path: Path) -> None:
    tensors = [
        {"size": 5, "producer": None, "consumers": [0], "keep": False},
        {"size": 7, "producer": 0, "consumers": [1, 1], "keep": False},
        {"size": 9, "producer": 1, "consumers": [], "keep": True},
    ]
    file = tmp_path / "small.memory.json"
    file.write_text(json.dumps({"ops": ["Conv", "Conv"], "tensors": tensors}))
    (graph,) = GraphFiles(name="files", path=str(tmp_path), train=[], val=[]).graphs("test")
    assert (graph.name, graph.op_names) == ("small", ("Conv_0", "Conv_1"))
    assert graph.tensor_bytes.tolist() == [5, 7, 9] and graph.producer.tolist() == [-1, 0, 1]
    assert graph.is_output.tolist() == [False, False, True] and not graph.is_weight.any()
    assert graph.operands(1).tolist() == [1, 1]


@pytest.mark.parametrize("change", [{"producer": 4}, {"consumers": [-1]}, {"size": "x"}])
def test_broken_lifetimes_are_one_sentence(tmp_path: Path, change: dict[str, object]) -> None:
    tensor = {"size": 5, "producer": 0, "consumers": [], "keep": True} | change
    file = tmp_path / "broken.memory.json"
    file.write_text(json.dumps({"ops": ["a"], "tensors": [tensor]}))
    with pytest.raises(GraphError, match=r"names op|is not a file of ops and tensors"):
        read_lifetimes(file)


@pytest.mark.parametrize("name", ["a.graph.json", "LayerGraphs_a.json", "a.memory.json"])
def test_json_without_an_end_in_depth_is_one_sentence(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(GraphError, match="levels deep") as caught:
        GraphFiles(name="files", path=str(tmp_path / name), train=[], val=[]).graphs("test")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.pbtxt", "node { " * 200, "more than 64 braces"),
        ("a.stg", STG.replace("1 5 1 0", "1 1e300 1 0"), "at most 1e"),
        ("a.graph.json", '{"names": ' + "[" * 100_000, "nested"),
        ("a.memory.json", json.dumps({"ops": ["a"], "tensors": [{"size": 10**30, "producer": 0, "consumers": [],
                                                                 "keep": True}]}), "more than"),
        ("a.memory.json", '{"ops": ["a"], "tensors": [{"size": Infinity, "producer": 0, "consumers": [], "keep": 1}]}',
         "infinity"),
    ],
)  # fmt: skip
def test_numbers_and_nests_beyond_all_bounds_are_sentences(
    tmp_path: Path, file: str, content: str, message: str
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(GraphError, match=message) as caught:
        GraphFiles(name="files", path=str(tmp_path / file), train=[], val=[]).graphs("test")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500


# --- Stored graphs come back equal; damaged files are refused with a sentence.


def small_graph(name: str = "small", family: str = "f", width: int = 4) -> Graph:
    builder = GraphBuilder(name, family)
    x, w, y = builder.tensor((8, width)), builder.tensor((width, 2), weight=True), builder.tensor((8, 2), "float16")
    z = builder.tensor((8, 1))
    builder.op("matmul", [x, w], [y], flops=2 * 8 * width * 2, name="mm", attributes={"axis": [1]})
    builder.op("split", [y], [z, builder.tensor((8, 1))])
    builder.output(z)
    return builder.build()


def test_round_trip_keeps_every_field(tmp_path: Path) -> None:
    graph = small_graph()
    save_graph(tmp_path / "deep" / "g.npz", graph)
    back = load_graph(tmp_path / "deep" / "g.npz")
    assert back.hash == graph.hash
    assert (back.name, back.family, back.op_names) == (graph.name, graph.family, graph.op_names)
    assert [dict(a) for a in back.attributes] == [dict(a) for a in graph.attributes]
    for name in ("kind", "input_tensor", "tensor_bytes", "shape", "flops", "is_weight"):
        np.testing.assert_array_equal(getattr(back, name), getattr(graph, name))
        assert getattr(back, name).dtype == getattr(graph, name).dtype
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["g.npz"]


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[: len(b) // 2], lambda b: b"x" * 100])
def test_damaged_file_is_refused(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "g.npz"
    save_graph(path, small_graph())
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(GraphError, match="damaged"):
        load_graph(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="no graph file"):
        load_graph(tmp_path / "none.npz")


def test_no_family_and_no_graph_in_two_splits() -> None:
    check_splits({"train": [small_graph("a", "f"), small_graph("b", "f", 6)], "test": [small_graph("c", "g", 8)]})
    with pytest.raises(GraphError, match="family 'f' stands in train and in test"):
        check_splits({"train": [small_graph("a", "f")], "test": [small_graph("b", "f", 6)]})
    with pytest.raises(GraphError, match="equals"):
        check_splits({"train": [small_graph("a", "f")], "test": [small_graph("b", "g")]})


def test_no_flipped_byte_is_believed(tmp_path: Path) -> None:
    """A damaged stream raises what it likes (zlib, struct, codec errors): always the same refusal here."""
    path, graph = tmp_path / "g.npz", small_graph()
    save_graph(path, graph)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            back = load_graph(path)
        except GraphError:
            continue
        assert back.hash == graph.hash and back.op_names == graph.op_names


def test_a_name_that_utf8_cannot_hold(tmp_path: Path) -> None:
    """Of a file, of a graph that a program builds, and in a file of ours, where JSON may say it: it is written out."""
    builder = GraphBuilder("one\udcff", "two\ud800")
    x = builder.tensor((4,))
    builder.op("relu", [x], [builder.tensor((4,))], name="three\udcfe")
    graph = builder.build()
    assert (graph.name, graph.family, *graph.op_names) == (r"one\udcff", r"two\ud800", r"three\udcfe")
    place = tmp_path / "\udcff.npz"
    save_graph(place, graph)
    assert digest_of([place]) and load_graph(place).name == graph.name
    answer = graphopt.optimize(replace(graph, name="four\udcff"), budget=2)
    answer.save(tmp_path / "answer.npz")
    assert graphopt.load(tmp_path / "answer.npz").draw(tmp_path) and r"four\\udcff" in answer.to_json()
