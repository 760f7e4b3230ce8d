"""The models that rewriting is compared on, against the graphs that their authors published."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from check_data import check_data
from taso_models import read_taso

from graphopt.core.graph import GraphError
from graphopt.rewrite.ir.execution import Executor
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.models import MODELS, build_model

SMALL: dict[str, dict[str, Any]] = {
    "inception_v3": {"size": 75, "divisor": 16},
    "squeezenet": {"size": 64, "channels": 8, "classes": 10},
    "resnext50": {"size": 32, "channels": 8, "groups": 4},
    "bert": {"blocks": 2, "seq": 8, "width": 16, "heads": 2},
    "dalle_mini": {"blocks": 2, "text": 8, "width": 16, "heads": 2, "hidden": 24},
    "transformer_transducer": {"audio_blocks": 2, "label_blocks": 1, "seq": 8, "width": 16, "heads": 2, "hidden": 24},
    "vit": {"patches": 8, "width": 16, "blocks": 2, "heads": 2, "hidden": 24},
    "nasrnn": {"steps": 2, "width": 8},
    "nasnet_a": {"size": 32, "channels": 8, "cells": 2},
    "vgg19": {"size": 32, "channels": 4, "width": 16, "classes": 10},
}


def signatures(program: Program) -> Counter[Any]:
    """Every op that runs: its operation and the shapes of what it reads."""
    terms = program.terms
    return Counter((terms.operation[t], tuple(terms.types[i] for i in terms.inputs[t]))
                   for t in program.live() if not terms.static[t])  # fmt: skip


def without_inputs(counts: Counter[Any]) -> Counter[Any]:
    return Counter({key: n for key, n in counts.items() if key[0].name != "input"})


@pytest.mark.parametrize(
    ("ours", "sizes", "theirs"),
    [
        ("inception_v3", {}, "inceptionv3"),
        ("squeezenet", {}, "squeezenet"),
        ("vgg19", {}, "vgg"),
    ],
)
def test_op_by_op_as_published(ours: str, sizes: dict[str, Any], theirs: str) -> None:
    published = read_taso(check_data(f"rewriting/{theirs}.model"))
    assert without_inputs(signatures(build_model(ours, sizes))) == without_inputs(signatures(published))


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


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("vgg19", 143_667_240 - 5_504 - 2 * 4_096 - 1_000), ("squeezenet", 1_235_496 - 3_944), ("vit", 12 * 12 * 768**2)],
)
def test_parameters_are_the_published_ones_without_biases(name: str, parameters: int) -> None:
    assert build_model(name, {}).parameters() == parameters


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


def test_unknown_models_and_sizes_are_named() -> None:
    with pytest.raises(GraphError, match="no model 'lenet'; there are inception_v3"):
        build_model("lenet", {})
    with pytest.raises(GraphError, match="bert has no size 'depth'; it has blocks, seq"):
        build_model("bert", {"depth": 3})
    with pytest.raises(GraphError, match="seq must be a positive whole number, not 0"):
        build_model("bert", {"seq": 0})
    with pytest.raises(GraphError, match="dangling must be true or false, not 1"):
        build_model("bert", {"dangling": 1})
    with pytest.raises(GraphError, match=r"cannot be built with .*: a width of 10 does not make 16 heads"):
        build_model("bert", {"width": 10})
