"""Programs as graphs: what runs is an op, what weights alone decide is a weight."""

import numpy as np
import pytest
from random_programs import random_program
from test_models import SMALL

from graphopt.core.graph import GraphError
from graphopt.core.operators import OPERATORS
from graphopt.datasets.layered import layered_graph
from graphopt.datasets.rewrite_models import RewriteModels
from graphopt.rewrite.io.as_graph import graph_of, program_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import runs
from graphopt.rewrite.models import MODELS, build_model


@pytest.mark.parametrize("seed", range(30))
def test_ops_edges_and_weights_are_those_of_the_program(seed: int) -> None:
    program = random_program(np.random.default_rng(seed), 12, exact=False)
    terms = program.terms
    running = [t for t in program.live() if runs(terms, t)]
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
    """VGG-19 takes 19.6 GMAC at 224 x 224, ResNeXt-50 (32 x 4d) about 4.2."""
    assert graph_of(build_model("vgg19", {}), name="v").flops.sum() / 2e9 == pytest.approx(19.6, rel=0.02)
    assert graph_of(build_model("resnext50", {}), name="r").flops.sum() / 2e9 == pytest.approx(4.2, rel=0.05)


def test_the_data_set_holds_all_models_by_family() -> None:
    specs = [{"model": name, **SMALL[name]} for name in MODELS]
    data = RewriteModels(name="m", train=specs[7:], val=[], test=specs[:7])
    graphs = [*data.graphs("train"), *data.graphs("val"), *data.graphs("test")]
    assert {g.family for g in graphs} == set(MODELS)
    assert all(program_of(g).num_ops() == g.num_ops for g in graphs)
    twice = RewriteModels(name="m", train=specs[:1], val=[], test=specs[:1])
    twice.graphs("train")
    with pytest.raises(GraphError, match="stands in train and in test"):
        twice.graphs("test")
    with pytest.raises(GraphError, match="an entry of rewrite_models"):
        RewriteModels(name="m", train=[{"blocks": 2}], val=[], test=[]).graphs("train")


def test_graphs_without_a_program_say_so() -> None:
    with pytest.raises(GraphError, match="carries no program that could be rewritten"):
        program_of(layered_graph(10, np.random.default_rng(0), "random"))
