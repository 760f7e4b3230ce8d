"""Every kind of ONNX node: what it becomes, and that it computes the same, run by torch and exported again."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper
from onnx_models import FLOAT, Array, exported, gap, model_of, run, value

from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.terms import Program

node = helper.make_node
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def ops(program: Program) -> list[str]:
    """Operators that run, the opaque ones by their ONNX name."""
    names = []
    for term in program.live():
        operation = program.terms.operation[term]
        if operation.name == "opaque":
            names.append(program.opaque[operation.params[0]].label)
        elif operation.name not in ("input", "item") and not program.terms.static[term]:
            names.append(operation.name)
    return names


IMAGE, KERNEL = (1, 4, 9, 9), floats(6, 4, 3, 3)
CASES: list[tuple[str, NodeProto, tuple[int, ...], dict[str, Any], list[str]]] = [
    ("conv", node("Conv", ["x", "w"], ["y"]), IMAGE, {"w": KERNEL}, ["conv"]),
    ("conv with a bias", node("Conv", ["x", "w", "b"], ["y"], pads=[1, 0, 2, 1], strides=[2, 1]), IMAGE,
     {"w": KERNEL, "b": floats(6)}, ["conv"]),
    ("grouped conv", node("Conv", ["x", "w"], ["y"], group=2), IMAGE, {"w": floats(6, 2, 3, 3)}, ["conv"]),
    ("conv padded above", node("Conv", ["x", "w"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2]), (1, 4, 8, 9),
     {"w": KERNEL}, ["conv"]),
    ("conv padded below", node("Conv", ["x", "w"], ["y"], auto_pad="SAME_LOWER", strides=[2, 2]), (1, 4, 8, 9),
     {"w": KERNEL}, ["conv"]),
    ("conv not padded", node("Conv", ["x", "w"], ["y"], auto_pad="VALID"), IMAGE, {"w": KERNEL}, ["conv"]),
    ("dilated conv", node("Conv", ["x", "w"], ["y"], dilations=[2, 2]), IMAGE, {"w": KERNEL}, ["Conv"]),
    ("conv along a line", node("Conv", ["x", "w"], ["y"]), (1, 4, 9), {"w": floats(6, 4, 3)}, ["Conv"]),
    ("gemm", node("Gemm", ["x", "w", "b"], ["y"], transB=1), (3, 4), {"w": floats(5, 4), "b": floats(5)},
     ["matmul", "add"]),
    ("gemm without a bias", node("Gemm", ["x", "w"], ["y"], transA=1, beta=0.5), (4, 3), {"w": floats(4, 5)},
     ["transpose", "matmul"]),
    ("scaled gemm", node("Gemm", ["x", "w", "b"], ["y"], alpha=0.5), (3, 4), {"w": floats(4, 5), "b": floats(5)},
     ["Gemm"]),
    ("matmul", node("MatMul", ["x", "w"], ["y"]), (2, 3, 4), {"w": floats(4, 5)}, ["matmul"]),
    ("matmul with a vector", node("MatMul", ["x", "w"], ["y"]), (2, 3, 4), {"w": floats(4)}, ["MatMul"]),
    ("sum", node("Sum", ["x", "a", "b"], ["y"]), (3, 4), {"a": floats(4), "b": floats(3, 1)}, ["add", "add"]),
    ("mul", node("Mul", ["x", "a"], ["y"]), (3, 4), {"a": floats(1)}, ["mul"]),
    ("sub", node("Sub", ["x", "a"], ["y"]), (3, 4), {"a": floats(4)}, ["Sub"]),
    ("identity", node("Identity", ["x"], ["y"]), (3, 4), {}, []),
    ("dropout", node("Dropout", ["x"], ["y"]), (3, 4), {}, []),
    ("dropout that is told", node("Dropout", ["x", "r", "t"], ["y", "mask"]), (3, 4),
     {"r": np.float32(0.5), "t": np.asarray(False)}, []),
    ("flatten", node("Flatten", ["x"], ["y"], axis=2), (2, 3, 4, 5), {}, ["reshape"]),
    ("squeeze", node("Squeeze", ["x", "a"], ["y"]), (2, 1, 4), {"a": np.array([1])}, ["reshape"]),
    ("unsqueeze", node("Unsqueeze", ["x", "a"], ["y"]), (2, 4), {"a": np.array([0, 3])}, ["reshape"]),
    ("reshape", node("Reshape", ["x", "s"], ["y"]), (2, 3, 4), {"s": np.array([0, -1])}, ["reshape"]),
    ("reshape to the same", node("Reshape", ["x", "s"], ["y"]), (2, 3), {"s": np.array([2, 3])}, []),
    ("transpose", node("Transpose", ["x"], ["y"]), (2, 3, 4), {}, ["transpose"]),
    ("transpose to the same", node("Transpose", ["x"], ["y"], perm=[0, 1]), (2, 3), {}, []),
    ("concat", node("Concat", ["x", "a", "x"], ["y"], axis=-1), (2, 3), {"a": floats(2, 5)}, ["concat"]),
    ("max pool", node("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]), IMAGE, {},
     ["pool_max"]),
    ("max pool rounded up", node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), IMAGE, {},
     ["pool_max"]),
    ("dilated max pool", node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2], dilations=[2, 2]), IMAGE, {}, ["MaxPool"]),
    ("mean pool", node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 0, 0]), IMAGE, {}, ["pool_avg"]),
    ("mean pool padded above", node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], auto_pad="SAME_UPPER"), IMAGE, {},
     ["pool_avg"]),
    ("mean pool rounded up", node("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), IMAGE,
     {}, ["pool_avg"]),
    ("mean pool that counts padding", node("AveragePool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1],
                                           count_include_pad=1), IMAGE, {}, ["AveragePool"]),
    ("mean over all", node("GlobalAveragePool", ["x"], ["y"]), IMAGE, {}, ["pool_avg"]),
    ("largest of all", node("GlobalMaxPool", ["x"], ["y"]), IMAGE, {}, ["pool_max"]),
    ("batch norm", node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], epsilon=0.01), IMAGE,
     {"s": floats(4), "b": floats(4), "m": floats(4), "v": np.abs(floats(4)) + 1}, ["batch_norm"]),
    ("relu", node("Relu", ["x"], ["y"]), (3, 4), {}, ["relu"]),
    ("tanh", node("Tanh", ["x"], ["y"]), (3, 4), {}, ["tanh"]),
    ("sigmoid", node("Sigmoid", ["x"], ["y"]), (3, 4), {}, ["sigmoid"]),
    ("softmax", node("Softmax", ["x"], ["y"]), (3, 4), {}, ["Softmax"]),
    ("slice", node("Slice", ["x", "a", "b"], ["y"]), (3, 4), {"a": np.array([0, 1]), "b": np.array([2, 4])}, ["Slice"]),
    ("clip without a lower end", node("Clip", ["x", "", "h"], ["y"]), (3, 4), {"h": np.float32(0.1)}, ["Clip"]),
    ("layer norm", node("LayerNormalization", ["x", "s", "b"], ["y"]), (3, 4), {"s": floats(4), "b": floats(4)},
     ["LayerNormalization"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_becomes_and_computes(case: Any) -> None:
    _, made, shape, weights, expected = case
    outputs = [value("y", FLOAT, None)]
    model = model_of([made], [value("x", FLOAT, shape)], outputs, weights)
    x = floats(*shape)
    program = import_onnx(model)
    assert ops(program) == expected
    known = run(model, x)
    assert gap(known, Executor(program)([x])) < 1e-6
    assert gap(known, run(exported(program), x)) < 1e-6


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 17, 18])
def test_splits_of_all_operator_sets(opset: int) -> None:
    split = node("Split", ["x", "sizes"], ["a", "b"], axis=1) if opset >= 13 else node(
        "Split", ["x"], ["a", "b"], axis=1, split=[1, 3])  # fmt: skip
    nodes = [split, node("Relu", ["b"], ["c"]), node("Concat", ["c", "a"], ["y"], axis=1)]
    weights = {"sizes": np.array([1, 3])} if opset >= 13 else {}
    model = model_of(nodes, [value("x", FLOAT, (2, 4))], [value("y", FLOAT, (2, 4))], weights, opset)
    program, x = import_onnx(model), floats(2, 4)
    assert ops(program) == ["split", "relu", "concat"]
    assert gap(run(model, x), run(exported(program), x)) == 0
    assert exported(program).opset_import[0].version == opset


@pytest.mark.parametrize("version", [8, onnx.IR_VERSION])
def test_models_of_the_newest_format_come_out_so_that_runtimes_read_them(version: int) -> None:
    """onnx writes formats that ONNX Runtime does not read yet."""
    model = model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, (2, 4))], [value("y", FLOAT, (2, 4))])
    x = floats(2, 4)
    known = run(model, x)
    model.ir_version = version
    again = exported(import_onnx(model))
    assert again.ir_version <= version and gap(known, run(again, x)) == 0


def test_equal_halves_need_no_sizes() -> None:
    model = model_of([node("Split", ["x"], ["a", "b"], num_outputs=2), node("Add", ["a", "b"], ["y"])],
                     [value("x", FLOAT, (4, 3))], [value("y", FLOAT, (2, 3))], opset=18)  # fmt: skip
    program, x = import_onnx(model), floats(4, 3)
    assert ops(program) == ["split", "add"]
    assert gap(run(model, x), run(exported(program), x)) == 0


def test_outputs_that_are_inputs_weights_or_twice_the_same() -> None:
    nodes = [node("Identity", ["x"], ["same"]), node("Relu", ["x"], ["r"]), node("Relu", ["x"], ["again"]),
             node("Identity", ["w"], ["kept"]), node("Neg", ["w"], ["known"])]  # fmt: skip
    names = ["same", "r", "again", "kept", "known"]
    model = model_of(nodes, [value("x", FLOAT, (2,)), value("unused", FLOAT, (3,))],
                     [value(n, FLOAT, (2,)) for n in names], {"w": floats(2)})  # fmt: skip
    x, unused = floats(2), floats(3)
    again = exported(import_onnx(model))
    assert [o.name for o in again.graph.output] == names
    assert [i.name for i in again.graph.input] == ["x", "unused"]
    assert gap(run(model, x, unused), run(again, x, unused)) == 0


def test_equal_opaque_nodes_are_one_and_random_ones_are_not() -> None:
    nodes = [node("Erf", ["x"], ["a"]), node("Erf", ["x"], ["b"]), node("Add", ["a", "b"], ["y"]),
             node("RandomNormal", [], ["c"], shape=[2]), node("RandomNormal", [], ["d"], shape=[2]),
             node("Sub", ["c", "d"], ["z"])]  # fmt: skip
    model = model_of(nodes, [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,)), value("z", FLOAT, (2,))])
    program = import_onnx(model)
    assert sorted(ops(program)) == ["Erf", "RandomNormal", "RandomNormal", "Sub", "add"]
    _, z = Executor(program)([floats(2)])
    assert np.abs(z).min() > 0
