"""Programs of the papers' models: sizes, stored files, and as graphs."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data
from random_programs import random_program

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.operators import OPERATORS
from graphopt.graphs.layered import layered_graph
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.program_builder import ProgramBuilder, same_pads
from graphopt.rewrite.ir.program_files import FORMAT, from_json, to_json
from graphopt.rewrite.ir.reference import random_leaves, run
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, Operation
from graphopt.rewrite.models import MODELS, build_model
from graphopt.rewrite.models.rewrite_models import RewriteModels

# --- TASO's text export of graphs, read into programs: four lines a node (guid, type, inputs, parameters).

INPUT, POOL_MAX = 0, 6  # TASO's numbers of operators
ACTIVATION = dict(enumerate(("none", "sigmoid", "relu", "tanh")))


def read_taso(path: Path) -> Program:
    """The graph; outputs are what nothing reads. Weights have no values, pooling's stand-in weights are left out."""
    lines = path.read_text().split("\n")
    terms, made = Terms(), dict[str, int]()
    for start in range(0, len(lines) - 3, 4):
        guid, kind, given, numbers = lines[start : start + 4]
        params = [int(n) for n in numbers.split(",")]
        inputs = [made[g.split(":")[0]] for g in given.split(",") if g.split(":")[0] in made]
        made[guid] = _node(terms, guid, int(kind), inputs, params)
    used = {i for t in made.values() for i in terms.inputs[t]}
    outputs = tuple(t for t in made.values() if t not in used and terms.operation[t].name != "weight")
    leaves = tuple(t for t in made.values() if terms.operation[t].name == "input")
    return Program(terms, outputs, tuple(f"y{i}" for i in range(len(outputs))), leaves)


def _node(terms: Terms, guid: str, kind: int, inputs: list[int], params: list[int]) -> int:
    def add(name: str, *fixed: object, of: list[int] = inputs) -> int:
        return terms.add(Operation(name, fixed), tuple(of))

    match kind:
        case 0 | 1:
            return add("input" if kind == INPUT else "weight", f"t{guid}", tuple(params), "float32", of=[])
        case 3:
            strides, same, activation = tuple(params[8:10]), params[10] == 0, ACTIVATION[params[11]]
            assert activation in ACTIVATIONS
            return add("conv", strides, _pads(params[2:4], params[6:8], strides, same), activation)
        case 4:
            return inputs[0]
        case 6 | 7:
            kernel, strides, same = tuple(params[5:7]), tuple(params[7:9]), params[9] == 0
            pads = _pads(params[2:4], kernel, strides, same)
            return add("pool_max" if kind == POOL_MAX else "pool_avg", kernel, strides, pads, of=inputs[:1])
        case 8:
            return add("relu")
        case 12:
            return add("concat", params[0])
        case 14:
            same_shape = terms.shape(inputs[0]) == tuple(params)
            return inputs[0] if same_shape else add("reshape", tuple(params))
        case 15:
            rank = len(terms.shape(inputs[0]))
            first = len(params) - rank - 1  # files of different age have the rank in front, or not
            return add("transpose", tuple(params[first : first + rank]))
        case 18:
            return add("matmul", ACTIVATION[params[0]])
    raise ValueError(f"type {kind} of node {guid}")


def _pads(size: list[int], kernel: object, strides: object, same: bool) -> tuple[int, ...]:
    if not same:
        return (0, 0, 0, 0)
    (top, bottom), (left, right) = (same_pads(n, k, s) for n, k, s in zip(size, kernel, strides))  # type: ignore[call-overload]
    return (top, left, bottom, right)


# --- The models that rewriting is compared on, against the graphs that their authors published.

SMALL: dict[str, dict[str, Any]] = {
    "inception_v3": {"size": 75, "divisor": 16},
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "resnet18": {"size": 32, "channels": 8},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
    "bert": {"blocks": 2, "seq": 8, "width": 16, "heads": 2},
    "dalle_mini": {"blocks": 2, "text": 8, "width": 16, "heads": 2, "hidden": 24},
    "transformer_transducer": {"audio_blocks": 2, "label_blocks": 1, "seq": 8, "width": 16, "heads": 2, "hidden": 24},
    "vit": {"patches": 8, "width": 16, "blocks": 2, "heads": 2, "hidden": 24},
    "nasrnn": {"steps": 2, "width": 8},
    "nasnet_a": {"size": 32, "channels": 8, "cells": 2},
    "vgg19": {"size": 32, "channels": 4, "width": 16, "classes": 10},
    "shufflenet": {"size": 32, "channels": 24, "stages": 2},
    "mobilenet_v2": {"size": 32, "channels": 8, "stages": 4},
    "densenet": {"size": 32, "growth": 4, "stages": 2},
    "regnet_x": {"size": 32, "width": 8, "group": 4, "stages": 3},
    "mlp_mixer": {"patches": 8, "width": 16, "blocks": 2, "tokens": 12, "hidden": 24},
    "t5": {"blocks": 2, "seq": 8, "memory": 12, "width": 16, "heads": 2, "hidden": 24},
    "lstm": {"steps": 3, "width": 8},
    "mixture": {"experts": 4, "batch": 4, "width": 16, "hidden": 8},
}


def signatures(program: Program) -> Counter[Any]:
    """Every op that runs: its operation and the shapes of what it reads."""
    terms = program.terms
    return Counter((terms.operation[t], tuple(terms.types[i] for i in terms.inputs[t]))
                   for t in program.live() if not terms.static[t])  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs"), [("inception_v3", "inceptionv3"), ("squeezenet", "squeezenet"), ("vgg19", "vgg")]
)
def test_op_by_op_as_published(ours: str, theirs: str) -> None:
    ops, published = (
        Counter({key: n for key, n in signatures(program).items() if key[0].name != "input"})
        for program in (build_model(ours, {}), read_taso(check_data(f"rewriting/{theirs}.model")))
    )
    assert ops == published


def test_bert_with_its_dangling_attention_as_published() -> None:
    """The published file permutes the keys as it does queries and values, which its square shapes allow."""
    published = read_taso(check_data("rewriting/bts.model"))
    ours = build_model("bert", {"dangling": True})
    names = [Counter(key[0].name for key in signatures(p).elements()) for p in (ours, published)]
    assert names[0] == names[1]
    assert len(ours.outputs) == len(published.outputs) == 9
    assert sum(names[0].values()) - names[0]["reshape"] - names[0]["input"] == 81


def test_resnext_has_the_known_number_of_ops() -> None:
    assert build_model("resnext50", {}).num_ops() == 86


PARAMETERS = {  # published ones, without biases; of the last three without the classifier of 1,000 classes
    "vgg19": 143_667_240 - 5_504 - 2 * 4_096 - 1_000, "squeezenet": 1_235_496 - 3_944, "vit": 12 * 12 * 768**2,
    "resnet18": 11_166_912, "mobilenet_v2": 3_504_872 - 1_281_000, "densenet": 7_978_856 - 1_025_000,
    "regnet_x": 5_157_512 - 385_000,
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_trained_parameters_are_the_published_ones(name: str) -> None:
    """Half of what a batch norm holds is trained."""
    program = build_model(name, {})
    operations = [program.terms.operation[t] for t in program.live()]
    shapes = [o.params[1] for o in operations if o.name == "weight"]
    assert sum(np.prod(s) if len(s) > 1 else s[0] / 2 for s in shapes) == PARAMETERS[name]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_finite_and_depend_on_the_input(name: str) -> None:
    program = build_model(name, SMALL[name])
    ready, rng = Executor(program), np.random.default_rng(0)
    first, second = (ready([rng.standard_normal(program.terms.shape(t)) for t in program.inputs])[0] for _ in range(2))
    assert np.isfinite(first).all() and 1e-3 < np.abs(first).mean() < 1e3
    assert np.abs(first - second).max() > 1e-3 * np.abs(first).max()


@pytest.mark.parametrize("name", ["bert", "transformer_transducer", "dalle_mini", "vit"])
def test_deep_attention_without_softmax_stays_in_range(name: str) -> None:
    deep = {"bert": {"blocks": 8}, "transformer_transducer": {"audio_blocks": 12}, "dalle_mini": {"blocks": 8},
            "vit": {"blocks": 12}}  # fmt: skip
    program = build_model(name, {**SMALL[name], **deep[name]})
    rng = np.random.default_rng(1)
    (y,) = Executor(program)([rng.standard_normal(program.terms.shape(t)) for t in program.inputs])
    assert 1e-3 < np.abs(y).max() < 1e3


@pytest.mark.parametrize(
    ("name", "sizes", "said"),
    [
        ("lenet", {}, "no model 'lenet'; there are inception_v3"),
        ("bert", {"depth": 3}, "bert has no size 'depth'; it has blocks, seq"),
        ("bert", {"seq": 0}, "seq must be a positive whole number, not 0"),
        ("bert", {"dangling": 1}, "dangling must be true or false, not 1"),
        ("bert", {"width": 10}, r"cannot be built with .*: a width of 10 does not make 16 heads"),
    ],
)
def test_unknown_models_and_sizes_are_named(name: str, sizes: dict[str, int], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        build_model(name, sizes)


# --- Programs as graphs: what runs is an op, what weights alone decide is a weight.


@pytest.mark.parametrize("seed", range(30))
def test_ops_edges_and_weights_are_those_of_the_program(seed: int) -> None:
    program = random_program(np.random.default_rng(seed), 12, exact=False)
    terms = program.terms
    running = [t for t in program.live() if terms.runs[t]]
    if not running:
        return
    graph = graph_of(program, name="random")
    assert graph.num_ops == program.num_ops() == len(running)
    assert [int(name.rpartition("_")[2]) for name in graph.op_names] == running
    assert program_of(graph) is program
    for op, term in enumerate(running):
        shapes = [graph.tensor_shape(int(t)) for t in graph.operands(op)]
        assert shapes == [terms.shape(i) for i in terms.inputs[term]]
        assert [bool(graph.is_weight[t]) for t in graph.operands(op)] == [terms.static[i] for i in terms.inputs[term]]
    kept = sum(terms.operation[o].name != "input" and not terms.static[o] for o in program.outputs)
    assert graph.is_output.sum() >= kept


def test_work_is_what_the_layers_do() -> None:
    b = ProgramBuilder()
    x = b.conv(b.input((1, 8, 10, 10)), 16, 3, groups=2, activation="relu", bias=True)
    graph = graph_of(b.build(b.linear(b.reshape(x, 1, 1600), 7)), name="two")
    assert [OPERATORS[k].name for k in graph.kind] == ["conv", "reshape", "matmul"]
    assert graph.flops.tolist() == [1600 * (2 * 4 * 9 + 2), 0, 2 * 1600 * 7]
    assert graph.weight_bytes.tolist() == [4 * (16 * 4 * 9 + 16), 0, 4 * 1600 * 7]
    assert graph.attributes[0]["activation"] == "relu"


def test_published_sizes_of_real_models() -> None:
    """VGG-19 takes 19.6 GMAC at 224 x 224, ResNeXt-50 (32 x 4d) about 4.2, ResNet-18 1.82."""
    assert graph_of(build_model("vgg19", {}), name="v").flops.sum() / 2e9 == pytest.approx(19.6, rel=0.02)
    assert graph_of(build_model("resnext50", {}), name="r").flops.sum() / 2e9 == pytest.approx(4.2, rel=0.05)
    assert graph_of(build_model("resnet18", {}), name="r").flops.sum() / 2e9 == pytest.approx(1.82, rel=0.02)


def test_the_data_set_holds_all_models_by_family() -> None:
    specs = [{"model": name, **SMALL[name]} for name in MODELS]
    data = RewriteModels(name="m", apart="models", train=specs[7:], val=[], test=specs[:7])
    graphs = [*data.graphs("train"), *data.graphs("val"), *data.graphs("test")]
    assert {g.family for g in graphs} == set(MODELS)
    assert all(program_of(g).num_ops() == g.num_ops for g in graphs)
    twice = RewriteModels(name="m", apart="models", train=specs[:1], val=[], test=specs[:1])
    twice.graphs("train")
    with pytest.raises(GraphError, match="stands in train and in test"):
        twice.graphs("test")
    small, large = ({"model": "bert", "blocks": 1, "seq": seq, "width": 16, "heads": 2} for seq in (4, 8))
    sizes = RewriteModels(name="m", apart="sizes", train=[small], val=[], test=[large])
    assert sizes.graphs("train") and sizes.graphs("test")
    with pytest.raises(GraphError, match="an entry of rewrite_models"):
        RewriteModels(name="m", apart="models", train=[{"blocks": 2}], val=[], test=[]).graphs("train")


def test_graphs_without_a_program_say_so() -> None:
    with pytest.raises(GraphError, match="carries no program that could be rewritten"):
        program_of(layered_graph(10, np.random.default_rng(0), "random"))


# --- Programs as JSON and back.


def through_text(program: Program) -> Program:
    return from_json(json.loads(json.dumps(to_json(program))))


@pytest.mark.parametrize("seed", range(20))
def test_a_program_comes_back_as_it_was(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 12)
    back = through_text(program)
    assert to_json(back) == to_json(program)
    assert back.output_names == program.output_names
    assert [back.terms.types[o] for o in back.outputs] == [program.terms.types[o] for o in program.outputs]
    leaves = random_leaves(program, rng)
    by_name = {program.terms.operation[t].params[0]: value for t, value in leaves.items()}
    given = {t: by_name[o.params[0]] for t, o in enumerate(back.terms.operation) if o.params and o.params[0] in by_name}
    for ours, theirs in zip(run(back.terms, back.outputs, given), run(program.terms, program.outputs, leaves)):
        np.testing.assert_array_equal(ours, theirs)


def test_inputs_that_nothing_reads_are_kept() -> None:
    b = ProgramBuilder()
    x, _ = b.input((2, 3)), b.input((5,))
    assert len(through_text(b.build(b.op("relu", inputs=(x,)))).inputs) == 2


@pytest.mark.parametrize(
    "damage",
    [{"format": "other"}, {"terms": [["relu", [], [7]]]}, {"terms": [["nonsense", [], []]]}, {"outputs": [99]}],
)
def test_damage_is_one_sentence(damage: dict[str, Any]) -> None:
    b = ProgramBuilder()
    stored = to_json(b.build(b.op("relu", inputs=(b.input((2, 3)),))))
    with pytest.raises(UserError, match=r"solve the graph again|this version reads"):
        from_json({**stored, **damage})


def test_a_stored_program_may_be_large_but_sums_stay_exact() -> None:
    lines = [["weight", [f"w{i}", [2**17, 2**15], "float32"], []] for i in range(100)]
    stored = {"format": FORMAT, "terms": lines, "outputs": [0], "output_names": ["y"], "inputs": [], "opaque": {}}
    assert len(from_json(stored).terms.operation) == 100
    for shape in ([2**54], [2**27, 2**27], [2**62, 4]):
        with pytest.raises(UserError, match="elements together"):
            from_json({**stored, "terms": [*lines, ["weight", ["w", shape, "float32"], []]]})


@pytest.mark.parametrize("key", ["format", "terms", "outputs", "output_names", "inputs", "opaque"])
@pytest.mark.parametrize(
    "value", [None, 3, "x", [3], [["x"]], {"a": 1}, [["weight", {"a": 1}, []]], [["weight", [], [0]]]]
)
def test_fields_of_other_types_are_one_sentence(key: str, value: Any) -> None:
    line = ["weight", ["w", [2], "float32"], []]
    stored = {"format": FORMAT, "terms": [line], "outputs": [0], "output_names": ["y"], "inputs": [], "opaque": {}}
    try:
        from_json({**stored, key: value})
    except UserError as error:
        assert "\n" not in str(error)
