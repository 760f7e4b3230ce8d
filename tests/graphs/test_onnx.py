"""ONNX models against figures from elsewhere, and against models small enough to count by hand."""

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from check_data import check_data
from onnx import TensorProto, helper

from graphopt.core.graph import Graph, GraphError
from graphopt.core.operators import OPERATORS
from graphopt.graphs.onnx import LIGHT_FAMILIES, OnnxFiles, load_light
from graphopt.graphs.readers.onnx.reader import read_onnx
from graphopt.rewrite.io.onnx_import import import_onnx

value = helper.make_tensor_value_info
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name: str, *shape: int) -> TensorProto:
    return helper.make_tensor(name, FLOAT, shape, np.zeros(shape, np.float32).tobytes(), raw=True)


def integers(name: str, *numbers: int) -> TensorProto:
    return helper.make_tensor(name, INT, [len(numbers)], numbers)


def save(folder: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: list[TensorProto]) -> Path:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets), path)
    return path


def kinds(graph: Graph) -> list[str]:
    return [OPERATORS[k].name for k in graph.kind]


@pytest.mark.parametrize("name", LIGHT_FAMILIES)
def test_light_models_have_the_known_numbers_of_ops_and_weights(name: str) -> None:
    known = json.loads(check_data("importers/onnx_light_counts.json").read_text())[f"{name}.onnx"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = load_light(name)
    assert graph.num_ops == known["compute_nodes"]
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx")
    made = {node.output[0] for node in model.graph.node if node.op_type == "ConstantOfShape"}
    read = {name for node in model.graph.node for name in node.input}
    stored = [w for w in model.graph.initializer if w.name in read and w.data_type == FLOAT]
    assert len(made) == known["ConstantOfShape"]
    # the figure counts the weights that ConstantOfShape makes; a few small ones are stored in the file
    assert graph.numel[graph.is_weight].sum() == known["weights_elems"] + sum(int(np.prod(w.dims)) for w in stored)


@pytest.mark.parametrize(
    ("name", "weights", "gmacs"),
    [("light_vgg19", 143_667_240, 19.6), ("light_bvlc_alexnet", 60_965_224, 0.66), ("light_resnet50", 25_610_152, 4.1)],
)
def test_light_models_have_the_published_size_and_work(name: str, weights: int, gmacs: float) -> None:
    """Published: parameters (ResNet-50's with its 53,120 running statistics), multiply-adds at 224 x 224."""
    graph = load_light(name)
    assert graph.numel[graph.is_weight].sum() == weights
    assert graph.flops.sum() / 2e9 == pytest.approx(gmacs, rel=0.02)


@pytest.mark.parametrize("name", ["light_squeezenet", "light_shufflenet"])
def test_tensors_and_readers_equal_those_found_by_others(name: str) -> None:
    third = json.loads(check_data(f"peak_memory/{name}.json").read_text())
    graph = load_light(name)
    assert [graph.attributes[op]["onnx"] for op in range(graph.num_ops)] == third["ops"]
    sizes = np.zeros(graph.num_ops, np.int64)
    np.add.at(sizes, [t["producer"] for t in third["tensors"]], [t["size"] for t in third["tensors"]])
    assert np.array_equal(graph.result_bytes, sizes)
    arcs = {(t["producer"], reader) for t in third["tensors"] for reader in t["consumers"]}
    assert set(zip(graph.edges[0].tolist(), graph.edges[1].tolist(), strict=True)) == arcs


def test_conv_norm_relu_gemm_counted_by_hand(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], group=2),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "to"], ["f"]),
        helper.make_node("Gemm", ["f", "g", "h"], ["y"], transB=1),
    ]
    weights = [weight("w", 6, 2, 3, 3), *(weight(n, 6) for n in "bstmv"), weight("g", 10, 96), weight("h", 10)]
    path = save(
        tmp_path,
        nodes,
        [value("x", FLOAT, [5, 4, 8, 8])],
        [value("y", FLOAT, [5, 10])],
        [*weights, integers("to", 5, 96)],
    )
    graph = read_onnx(path)
    image = 5 * 6 * 8 * 8
    assert kinds(graph) == ["conv", "affine", "relu", "pool_max", "reshape", "matmul"]
    assert graph.flops.tolist() == [
        2 * image * 2 * 9 + image, 2 * image, image, image // 4 * 4, 0, 2 * 5 * 96 * 10 + 5 * 10]  # fmt: skip
    assert graph.result_bytes.tolist() == [4 * image, 4 * image, 4 * image, image, image, 4 * 50]
    assert graph.weight_bytes.tolist() == [4 * (6 * 2 * 9 + 6), 4 * 24, 0, 0, 0, 4 * (960 + 10)]
    assert len(graph.operands(4)) == 1 and graph.attributes[4]["shape"] == [5, 96]  # the shape is no operand
    assert graph.is_output.sum() == 1 and graph.tensor_shape(int(np.flatnonzero(graph.is_output)[0])) == (5, 10)
    assert graph.program.load().graph.node[0].op_type == "Conv"


def test_constant_arithmetic_is_folded_and_views_of_weights_stay(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["w", "w"], ["w2"]),  # arithmetic on weights: a weight
        helper.make_node("Transpose", ["v"], ["vt"], perm=[1, 0]),  # a view of a weight: stays, holds nothing
        helper.make_node("Shape", ["x"], ["dims"]),  # of a known tensor: a constant
        helper.make_node("Gather", ["dims", "first"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["to"], axis=0),
        helper.make_node("MatMul", ["x", "w2"], ["a"]),
        helper.make_node("MatMul", ["a", "vt"], ["b"]),
        helper.make_node("Reshape", ["b", "to"], ["y"]),
    ]
    weights = [weight("w", 4, 6), weight("v", 8, 6), integers("first", 0), integers("rest", 2, 4)]
    graph = read_onnx(save(tmp_path, nodes, [value("x", FLOAT, [3, 4])], [value("y", FLOAT, [3, 2, 4])], weights))
    assert kinds(graph) == ["transpose", "matmul", "matmul", "reshape"]
    assert sorted(graph.tensor_bytes[graph.is_weight].tolist()) == [4 * 24, 4 * 48]
    assert graph.result_bytes.tolist() == [4 * 48, 4 * 18, 4 * 24, 4 * 24]


def test_shape_arithmetic_that_onnx_does_not_follow_is_computed(tmp_path: Path) -> None:
    """The head width as exporters write it: the hidden size as a float, divided by the heads, cut to integer."""
    nodes = [
        helper.make_node("Shape", ["x"], ["dims"]),
        helper.make_node("Gather", ["dims", "two"], ["hidden"]),
        helper.make_node("Cast", ["hidden"], ["hidden_float"], to=FLOAT),
        helper.make_node("Div", ["hidden_float", "heads"], ["width_float"]),
        helper.make_node("Cast", ["width_float"], ["width"], to=INT),
        helper.make_node("Concat", ["start", "width"], ["to"], axis=0),
        helper.make_node("Reshape", ["x", "to"], ["split"]),
        helper.make_node("Transpose", ["split"], ["y"], perm=[0, 2, 1, 3]),
    ]
    heads = helper.make_tensor("heads", FLOAT, [1], [4.0])
    x, y = value("x", FLOAT, ["batch", "words", 32]), value("y", FLOAT, ["batch", 4, "words", None])
    path = save(tmp_path, nodes, [x], [y], [heads, integers("two", 2), integers("start", 0, 0, 4)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = read_onnx(path, dims={"batch": 2, "words": 7})
    assert kinds(graph) == ["reshape", "transpose"]
    assert [graph.tensor_shape(t) for op in (0, 1) for t in graph.results(op)] == [(2, 7, 4, 8), (2, 4, 7, 8)]


def test_scalars_and_axes_are_no_operands_and_unread_results_do_not_exist(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Clip", ["x", "", "six"], ["c"]),
        helper.make_node("ReduceMean", ["c", "axes"], ["m"]),
        helper.make_node("Sub", ["c", "m"], ["s"]),
        helper.make_node("Dropout", ["s"], ["y", "mask"]),
    ]
    six = helper.make_tensor("six", FLOAT, [], [6.0])
    graph = read_onnx(
        save(tmp_path, nodes, [value("x", FLOAT, [4, 8])], [value("y", FLOAT, [4, 8])], [six, integers("axes", 1)])
    )
    assert kinds(graph) == ["clamp", "mean", "sub", "reshape"]
    assert [len(graph.operands(op)) for op in range(4)] == [1, 1, 2, 1]
    assert graph.num_tensors == 5 and not graph.is_weight.any()
    assert graph.attributes[1]["axes"] == [1]


def test_unknown_operators_are_opaque_with_one_warning_that_counts_them(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Strange", ["x"], ["a"], domain="my.ops"),
        helper.make_node("Strange", ["a"], ["b"], domain="my.ops"),
        helper.make_node("Invented", ["x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    path = save(tmp_path, nodes, [value("x", FLOAT, [4])], [value("y", FLOAT, [4])], [])
    with pytest.warns(UserWarning) as caught:
        graph = read_onnx(path)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "3 ops" in text and "my.ops.Strange x2" in text and "Invented x1" in text
    assert "3 tensors without a known shape count 0 bytes (a, b, c)" in text
    assert kinds(graph) == ["opaque", "opaque", "opaque", "add"]
    assert graph.result_bytes.tolist() == [0, 0, 0, 16]


def test_control_flow_is_opaque_and_reads_what_its_branches_capture(tmp_path: Path) -> None:
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "t", [], [value("t", FLOAT, [2])])
    other = helper.make_graph([helper.make_node("Add", ["x", "w"], ["e"])], "e", [], [value("e", FLOAT, [2])])
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [value("x", FLOAT, [2]), value("c", TensorProto.BOOL, [])]
    graph = read_onnx(save(tmp_path, [node], inputs, [value("y", FLOAT, [2])], [weight("w", 2)]))
    assert kinds(graph) == ["opaque"]
    assert sorted(graph.tensor_shape(t) for t in graph.operands(0)) == [(), (2,), (2,)]
    assert graph.weight_bytes.tolist() == [8]


def open_model(folder: Path) -> Path:
    inputs = [value("x", FLOAT, ["batch", None])]
    return save(folder, [helper.make_node("Relu", ["x"], ["y"])], inputs, [value("y", FLOAT, ["batch", None])], [])


def test_open_dimensions_are_named_with_the_fix_and_can_be_fixed(tmp_path: Path) -> None:
    path = open_model(tmp_path)
    with pytest.raises(GraphError, match=r"'batch' of input 'x'.*dataset\.dims=\{batch: 1, x_1: 1\}"):
        read_onnx(path)
    assert read_onnx(path, dims={"batch": 3, "x_1": 5}).result_bytes.tolist() == [60]
    with pytest.raises(GraphError, match=r"dataset\.dims"):
        OnnxFiles(name="onnx", path=str(path), dims={"batch": 0}, train=[], val=[])


def test_weights_in_missing_files_are_needed_only_to_run_the_model(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path, nodes, [value("x", FLOAT, [2, 64])], [value("y", FLOAT, [2, 64])], [weight("w", 64, 64)])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin")
    (tmp_path / "w.bin").unlink()
    graph = read_onnx(path)
    assert graph.weight_bytes.tolist() == [4 * 64 * 64]
    with pytest.raises(GraphError, match="weight files"):
        graph.program.load()


@pytest.mark.parametrize("content", [b"", b"hello, this is text", b"<html></html>", b"\x08\x07", bytes(range(200))])
def test_files_that_are_no_models_are_refused_with_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(GraphError, match=r"bad\.onnx is not an ONNX model"):
        read_onnx(tmp_path / "bad.onnx")


def test_truncated_model_is_refused(tmp_path: Path) -> None:
    whole = open_model(tmp_path).read_bytes()
    for length in range(1, len(whole)):
        (tmp_path / "cut.onnx").write_bytes(whole[:length])
        with pytest.raises(GraphError):
            read_onnx(tmp_path / "cut.onnx", dims={"batch": 1})


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    """Constants are folded and shapes inferred as in the order that the standard asks for, in graphs and programs."""
    model = onnx.load(Path(onnx.__file__).parent / "backend/test/data/light/light_shufflenet.onnx")
    onnx.save(model, tmp_path / "model.onnx")
    sorted_graph, sorted_program = read_onnx(tmp_path / "model.onnx"), import_onnx(tmp_path / "model.onnx")
    nodes = [model.graph.node[i] for i in np.random.default_rng(0).permutation(len(model.graph.node))]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, tmp_path / "model.onnx")
    graph, program = read_onnx(tmp_path / "model.onnx"), import_onnx(tmp_path / "model.onnx")
    assert sorted(zip(graph.op_names, graph.kind, graph.flops)) == sorted(
        zip(sorted_graph.op_names, sorted_graph.kind, sorted_graph.flops)
    )
    assert Counter(program.terms.operation[t] for t in program.live()) == Counter(
        sorted_program.terms.operation[t] for t in sorted_program.live()
    )


def test_missing_empty_cyclic_and_dangling_models_are_refused(tmp_path: Path) -> None:
    x, y = [value("x", FLOAT, [2])], [value("y", FLOAT, [2])]
    with pytest.raises(GraphError, match="no file"):
        read_onnx(tmp_path / "absent.onnx")
    with pytest.raises(GraphError, match="no operators"):
        read_onnx(save(tmp_path, [], x, [], []))
    cycle = [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    with pytest.raises(GraphError, match="cycle"):
        read_onnx(save(tmp_path, cycle, x, y, []))
    with pytest.raises(GraphError, match="reads 'ghost', which nothing makes"):
        read_onnx(save(tmp_path, [helper.make_node("Add", ["x", "ghost"], ["y"])], x, y, []))
    with pytest.raises(GraphError, match="no ops"):
        read_onnx(save(tmp_path, [helper.make_node("Add", ["w", "w"], ["y"])], [], y, [weight("w", 2)]))


def test_shapes_that_contradict_each_other_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    x, y = [value("x", FLOAT, [2, 3])], [value("y", FLOAT, [2, 5])]
    path = save(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], x, y, [weight("w", 4, 5)])
    with pytest.warns(UserWarning, match="shape inference says"):
        assert read_onnx(path).num_ops == 1


def test_dataset_reads_folders_and_sorts_models_into_splits(tmp_path: Path) -> None:
    x, y = [value("x", FLOAT, [2])], [value("y", FLOAT, [2])]
    source = save(tmp_path, [helper.make_node("Relu", ["x"], ["y"])], x, y, [])
    for name in ("a1", "a2", "b"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / f"{name}.onnx").write_bytes(source.read_bytes())
    files = OnnxFiles(name="onnx", path=str(tmp_path / "models"), dims={}, train=["a*"], val=[])
    assert [g.name for g in files.graphs("train")] == ["a1", "a2"]
    assert [g.name for g in files.graphs("test")] == ["b"] and files.graphs("val") == []
    assert files.graphs("test")[0] is files.graphs("test")[0]
    light = OnnxFiles(name="onnx", path=None, dims={}, train=["*vgg*", "*alexnet*"], val=["*squeeze*"])
    assert {g.family for g in light.graphs("train")} == {"vgg", "alexnet"}
    with pytest.raises(GraphError, match="no file named"):
        OnnxFiles(name="onnx", path=str(tmp_path / "nowhere"), dims={}, train=[], val=[]).graphs("test")
