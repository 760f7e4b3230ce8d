"""Whole ONNX models in and out: real networks, X-RLflow's set, and what cannot be rewritten."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from check_data import check_data
from onnx import ModelProto, helper
from onnx_models import FLOAT, INT, Array, exported, gap, light, model_of, run, value
from random_programs import random_program
from test_imports import floats, goes_round, ops
from test_models import SMALL

from graphopt.core.graph import GraphError
from graphopt.graphs.onnx import LIGHT_FAMILIES, load_light
from graphopt.graphs.readers.onnx.reader import read_onnx
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.io.onnx_call import OnnxOrigin
from graphopt.rewrite.io.onnx_export import RULES_KEY, WRITERS, export_onnx, save_onnx
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.program_builder import ProgramBuilder, with_random_weights
from graphopt.rewrite.models import MODELS, build_model

node = helper.make_node
TOLERANCE = 1e-5  # of the largest magnitude of an output, in single precision
LARGE = {"light_bvlc_alexnet", "light_vgg19", "light_zfnet512"}  # 60 to 144 million weights
SLOW = {*LARGE, "light_resnet50"}


def with_weights_of(model: ModelProto, weights: Any) -> ModelProto:
    """The original model with other floating-point weights, and the logits before a last softmax as an output."""
    graph, model.ir_version = model.graph, 8  # weights need not be inputs
    made = {n.output[0] for n in graph.node if n.op_type == "ConstantOfShape"}
    stored = {w.name for w in graph.initializer}
    kept = [n for n in graph.node if n.output[0] not in weights or n.op_type != "ConstantOfShape"]
    changed = [w for w in graph.initializer if w.name not in weights]
    changed += [onnx.numpy_helper.from_array(weights[name], name) for name in weights if name in made | stored]
    last = graph.node[-1]
    if last.op_type == "Softmax":
        graph.output.append(helper.make_empty_tensor_value_info(last.input[0]))
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(changed)
    return model


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in LIGHT_FAMILIES]
)
def test_real_networks_with_random_weights_go_round(name: str) -> None:
    """Against the original in ONNX Runtime, unoptimised: run by torch, and exported and run by ONNX Runtime again."""
    original = onnx.load(light(name))
    original = with_weights_of(original, with_random_weights(import_onnx(light(name)), 1).weights)
    program = import_onnx(original)
    x = floats(*program.terms.shape(program.inputs[0]))
    known = run(original, x)
    assert all(np.std(k) > 1e-5 for k in known)  # not one number everywhere
    assert gap(known, Executor(program)([x])) < TOLERANCE
    assert gap(known, run(export_onnx(program), x)) < TOLERANCE


@pytest.mark.parametrize("name", LIGHT_FAMILIES)
def test_real_networks_as_they_are_go_round(name: str) -> None:
    program = import_onnx(light(name))
    model = export_onnx(program)
    stated = onnx.load(light(name))
    assert [str(o) for o in model.graph.output] == [str(o) for o in stated.graph.output]
    weights = {w.name for w in stated.graph.initializer}
    assert [str(i) for i in model.graph.input] == [str(i) for i in stated.graph.input if i.name not in weights]
    assert model.opset_import[0].version == stated.opset_import[0].version
    if name not in LARGE:
        x = floats(*program.terms.shape(program.inputs[0]))
        assert gap(run(light(name), x), run(model, x)) < TOLERANCE


@pytest.mark.parametrize("name", LIGHT_FAMILIES)
def test_numbers_of_parameters_are_the_known_ones(name: str) -> None:
    """The known figure counts what ConstantOfShape makes; a few small weights are stored in the file."""
    known = json.loads(check_data("importers/onnx_light_counts.json").read_text())[f"{name}.onnx"]
    program = import_onnx(light(name))
    model = onnx.load(light(name))
    stored = {w.name: int(np.prod(w.dims)) for w in model.graph.initializer if w.data_type == FLOAT}
    read = {program.terms.operation[t].params[0] for t in program.live() if program.terms.operation[t].name == "weight"}
    assert program.parameters() == known["weights_elems"] + sum(stored[n] for n in read & stored.keys())


@pytest.mark.parametrize("name", MODELS)
def test_models_of_the_papers_go_round(name: str) -> None:
    program = build_model(name, SMALL[name])
    inputs = [floats(*program.terms.shape(t)) for t in program.inputs]
    model = exported(program)
    found = run(model, *inputs)
    assert gap(Executor(program)(inputs), found) < TOLERANCE
    again = import_onnx(model)
    assert not again.opaque
    assert again.parameters() == program.parameters()
    assert gap(found, run(exported(again), *inputs)) < TOLERANCE


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_go_round(seed: int) -> None:
    """Every operator, of inputs and of weights."""
    for part in range(15):
        rng = np.random.default_rng([seed, part])
        program = random_program(rng, 10, exact=False)
        inputs = [floats(*program.terms.shape(t)) for t in program.inputs]
        known = Executor(program)(inputs)
        found = run(exported(program), *inputs)
        if all(np.isfinite(k).all() for k in known):
            assert gap(known, found) < 1e-4, part
            assert gap(known, Executor(import_onnx(export_onnx(program)))(inputs)) < 1e-4, part


@pytest.mark.parametrize("opset", [9, 17])
def test_kernels_that_are_inputs_are_padded_and_merged_by_the_model(opset: int) -> None:
    b = ProgramBuilder()
    w = b.input((8, 2, 3, 1))
    plain = b.build(b.op("enlarge", (5, 3), inputs=[w]), b.op("merge_groups", 4, 2, inputs=[w]))
    program = replace(plain, origin=OnnxOrigin((("", opset),), 7, "g", (), (), ()))
    x = floats(8, 2, 3, 1)
    assert gap(Executor(program)([x]), run(exported(program), x)) == 0


def test_attributes_that_an_operator_lacks_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WRITERS, "concat", lambda w: w.last("Concat", axes=0))
    with pytest.raises(ValueError, match=r"Concat \d+ has no axes"):
        export_onnx(build_model("squeezenet", SMALL["squeezenet"]))


def test_graphs_of_files_carry_programs() -> None:
    graph = load_light("light_squeezenet")
    program = program_of(graph)
    again = graph_of(program, name="again")
    assert again.num_ops == graph.num_ops - 1  # without the dropout
    assert again.flops.sum() == pytest.approx(graph.flops.sum(), rel=1e-3)
    assert again.numel[again.is_weight].sum() == graph.numel[graph.is_weight].sum()


def test_rules_metadata_and_large_weights_are_written(tmp_path: Path) -> None:
    model = model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,))])
    helper.set_model_props(model, {"author": "someone"})
    program = import_onnx(model)
    save_onnx(program, tmp_path / "m.onnx", rules=["a", "b"])
    props = {p.key: p.value for p in onnx.load(tmp_path / "m.onnx").metadata_props}
    assert props["author"] == "someone" and json.loads(props[RULES_KEY]) == ["a", "b"]


def test_weights_in_a_file_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphopt.rewrite.io.onnx_export._LARGEST", 1000)
    w, x = floats(40, 40), floats(2, 40)
    model = model_of([node("MatMul", ["x", "w"], ["y"])], [value("x", FLOAT, (2, 40))], [value("y", FLOAT, (2, 40))],
                     {"w": w})  # fmt: skip
    save_onnx(import_onnx(model), tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.weights").stat().st_size >= w.nbytes
    assert gap(run(model, x), run(tmp_path / "m.onnx", x)) == 0
    assert gap(run(model, x), Executor(import_onnx(tmp_path / "m.onnx"))([x])) < TOLERANCE
    (tmp_path / "m.onnx.weights").unlink()
    with pytest.raises(GraphError, match="needs weight files that cannot be read"):
        import_onnx(tmp_path / "m.onnx")


def test_shape_arithmetic_is_computed_here() -> None:
    nodes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]), node("Unsqueeze", ["n", "ax"], ["n1"]),
             node("Concat", ["n1", "rest"], ["to"], axis=0), node("Reshape", ["x", "to"], ["y"])]  # fmt: skip
    weights = {"zero": np.asarray(0), "ax": np.array([0]), "rest": np.array([-1])}
    model = model_of(nodes, [value("x", FLOAT, (2, 3, 4))], [value("y", FLOAT, (2, 12))], weights)
    goes_round(model, [floats(2, 3, 4)], ["reshape"])


def test_what_weights_alone_decide_is_computed_here() -> None:
    """A normalisation written out: x * (scale / sqrt(variance + 0.001))."""
    nodes = [node("Add", ["v", "e"], ["a"]), node("Sqrt", ["a"], ["b"]), node("Div", ["s", "b"], ["c"]),
             node("Mul", ["x", "c"], ["y"])]  # fmt: skip
    weights = {"v": np.abs(floats(3)), "e": np.float32(1e-3), "s": floats(3)}
    model = model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))], weights)
    goes_round(model, [floats(2, 3)], ["mul"], 1e-6)


def test_control_flow_stays_and_reads_what_surrounds_it() -> None:
    """A branch reads a tensor of the outer graph, one of its own of a name that we would choose, and a weight."""
    then = helper.make_graph([node("Mul", ["r", "w"], ["t0"]), node("Add", ["t0", "r"], ["p"])], "then", [],
                             [value("p", FLOAT, (3,))])  # fmt: skip
    otherwise = helper.make_graph([node("Neg", ["r"], ["q"])], "else", [], [value("q", FLOAT, (3,))])
    nodes = [node("Relu", ["x"], ["r"]), node("If", ["c"], ["i"], then_branch=then, else_branch=otherwise),
             node("Relu", ["i"], ["y"])]  # fmt: skip
    model = model_of(nodes, [value("x", FLOAT, (3,)), value("c", onnx.TensorProto.BOOL, ())],
                     [value("y", FLOAT, (3,))], {"w": floats(3)})  # fmt: skip
    for condition in (True, False):
        goes_round(model, [np.abs(floats(3)), np.asarray(condition)], ["relu", "If", "relu"])


def test_shapes_that_depend_on_values_stay_opaque() -> None:
    nodes = [node("NonZero", ["x"], ["n"]), node("Transpose", ["n"], ["t"]), node("Cast", ["t"], ["f"], to=FLOAT),
             node("Relu", ["f"], ["y"]), node("Relu", ["x"], ["z"])]  # fmt: skip
    model = model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, ("n", 2)), value("z", FLOAT, (2, 3))])
    program = goes_round(model, [np.array([[1, 0, 2], [0, 0, 3]], np.float32)])
    assert sorted(ops(program)) == ["Cast", "NonZero", "Relu", "Transpose", "relu"]


def test_foreign_operators_stay_and_say_when_they_cannot_run() -> None:
    nodes = [node("Fold", ["x"], ["f"], domain="my.ops", depth=3), node("Relu", ["f"], ["y"])]
    model = model_of(nodes, [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,))])
    program = import_onnx(model)
    assert ops(program) == ["my.ops.Fold", "Relu"]  # the shape is not known
    again = export_onnx(program)
    assert again.graph.node[0].domain == "my.ops" and again.graph.node[0].attribute[0].i == 3
    assert {o.domain: o.version for o in again.opset_import}["my.ops"] == 1
    with pytest.raises(Exception, match=r"operator my\.ops\.Fold cannot be run here"):
        Executor(program)([floats(2)])


def test_sequences_and_functions_of_the_model() -> None:
    nodes = [node("Twice", ["x"], ["t"], domain="my.ops"), node("SequenceConstruct", ["t", "x"], ["s"]),
             node("SequenceAt", ["s", "one"], ["a"]), node("Add", ["a", "t"], ["y"])]  # fmt: skip
    model = model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))], {"one": np.asarray(1)})
    body = [node("Add", ["a", "a"], ["b"])]
    model.functions.append(helper.make_function("my.ops", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)]))
    goes_round(model, [floats(2, 3)], ["add", "SequenceConstruct", "SequenceAt", "add"])


def test_other_element_types_are_carried() -> None:
    nodes = [node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT16), node("Transpose", ["h"], ["t"]),
             node("Relu", ["t"], ["r"]), node("Cast", ["r"], ["y"], to=FLOAT), node("Add", ["k", "k"], ["z"]),
             node("Concat", ["k", "k"], ["c"], axis=0)]  # fmt: skip
    outputs = [value("y", FLOAT, (3, 2)), value("z", INT, (2,)), value("c", INT, (4,))]
    model = model_of(nodes, [value("x", FLOAT, (2, 3)), value("k", INT, (2,))], outputs)
    program = goes_round(model, [floats(2, 3), np.array([1, 2])])
    assert sorted(ops(program)) == ["Add", "Cast", "Cast", "Relu", "concat", "transpose"]


def test_a_model_of_a_thousand_ops_takes_seconds() -> None:
    nodes = [node("Relu" if i % 2 else "Softmax", [f"t{i}"], [f"t{i + 1}"]) for i in range(1000)]
    model = model_of(nodes, [value("t0", FLOAT, (2, 3))], [value("t1000", FLOAT, (2, 3))])
    start = time.process_time()
    program = import_onnx(model)
    again = exported(program)
    assert program.num_ops() == 1000 and time.process_time() - start < 5
    x = floats(2, 3)
    assert gap(run(model, x), Executor(program)([x])) < TOLERANCE
    assert gap(run(model, x), run(again, x)) == 0


def saved(folder: Path, model: ModelProto) -> Path:
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def refused() -> list[tuple[str, Any, str]]:
    x, y = value("x", FLOAT, (2,)), value("y", FLOAT, (2,))
    relu = node("Relu", ["x"], ["y"])
    cycle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    open_ = model_of([relu], [value("x", FLOAT, ("batch", 2))], [value("y", FLOAT, ("batch", 2))])
    return [
        ("open dimension", open_, r"dimension 'batch' of input 'x' is not fixed; give sizes"),
        ("cycle", model_of(cycle, [x], [y]), r"has a cycle through or before node '[ab]'"),
        ("nothing makes it", model_of([node("Relu", ["z"], ["y"])], [x], [y]), r"reads 'z', which nothing makes"),
        ("output that nothing makes", model_of([node("Relu", ["x"], ["a"])], [x], [y]), r"'y', which nothing makes"),
        ("empty", model_of([], [x], [y]), r"holds no operators"),
        ("no graph", ModelProto(), r"is not an ONNX model"),
    ]


@pytest.mark.parametrize("case", refused(), ids=lambda case: case[0])
def test_what_cannot_be_read_is_refused_in_a_sentence(case: Any) -> None:
    _, model, message = case
    with pytest.raises(GraphError, match=message):
        import_onnx(model)


def test_open_dimensions_can_be_fixed(tmp_path: Path) -> None:
    model = model_of([node("Relu", ["x"], ["y"])], [value("x", FLOAT, ("batch", 2))], [value("y", FLOAT, ("batch", 2))])
    path = saved(tmp_path, model)
    assert import_onnx(path, {"batch": 3}).terms.shape(0) == (3, 2)
    program = program_of(read_onnx(path, dims={"batch": 4}))
    assert program.terms.shape(program.outputs[0]) == (4, 2)


def test_damaged_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\xff\xff no model")
    with pytest.raises(GraphError, match="is not an ONNX model, or is damaged"):
        import_onnx(tmp_path / "m.onnx")
    with pytest.raises(GraphError, match="no file"):
        import_onnx(tmp_path / "absent.onnx")


def test_programs_with_opaque_operations_can_be_sent_to_other_processes() -> None:
    import pickle

    model = model_of([node("Softmax", ["x"], ["y"])], [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))])
    program, x = import_onnx(model), floats(2, 3)
    known: list[Array] = Executor(program)([x])
    assert gap(known, Executor(pickle.loads(pickle.dumps(program)))([x])) == 0
