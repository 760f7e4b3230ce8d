"""`dataset=lowered`: graphs as TorchInductor is given them, of functions, modules and files."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphopt.core.compiler import compiler_choice
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.library.own_programs import PROGRAMS
from graphopt.graphs.readers.pytorch.program_file import FxProgram, make_inputs, unpacked_program
from graphopt.hardware.datasets.lowered import LoweredPrograms

SOURCE = """
import torch
from torch import nn

def scaled():
    x = torch.randn(6, 8, requires_grad=True)
    return lambda x, w: (x * w).exp().sum(-1), [x, torch.randn(8)]

def layer():
    return nn.Sequential(nn.Linear(8, 4), nn.Tanh()), [torch.randn(6, 8)]

P = {"scaled": scaled, "layer": layer}
"""


def dataset(folder: Path, **settings: Any) -> LoweredPrograms:
    given: dict[str, Any] = {
        "source": None,
        "only": [],
        "training": [],
        "models": [],
        "path": None,
        "graphs": "compiled",
        "device": "cpu",
    }
    return LoweredPrograms(name="c", cache_dir=str(folder / "cache"), **(given | settings))


@pytest.fixture
def source(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(SOURCE)
    return str(tmp_path / "mine.py")


def program(graph: Graph) -> FxProgram:
    assert isinstance(graph.program, bytes)
    return unpacked_program(graph.program, graph.name)


def test_a_users_functions_become_what_torch_compile_makes(tmp_path: Path, source: str) -> None:
    graphs = dataset(tmp_path, source=source).graphs("test")
    assert [g.name for g in graphs] == ["scaled.forward", "scaled.backward", "layer.forward", "layer.backward"]
    assert [g.family for g in graphs] == ["scaled", "scaled", "layer", "layer"]
    for graph in graphs:
        held = program(graph)
        assert set(graph.op_names) <= {node.name for node in held.gm.graph.nodes}
        assert held.gm(*make_inputs(held.inputs, 0))
    assert compiler_choice(graphs[0]) is not None
    assert dataset(tmp_path, source=source).graphs("train") == []


def test_programs_to_learn_from_are_the_training_split_and_no_others(tmp_path: Path, source: str) -> None:
    split = dataset(tmp_path, source=source, training=["layer"], graphs="step")
    assert [g.name for g in split.graphs("train")] == ["layer"] and split.graphs("val") == []
    assert [g.name for g in split.graphs("test")] == ["scaled"]
    with pytest.raises(GraphError, match="'layer' is in dataset"):
        dataset(tmp_path, source=source, training=["layer"], only=["layer"]).graphs("test")
    with pytest.raises(GraphError, match="no program 'another'"):
        dataset(tmp_path, source=source, training=["another"]).graphs("train")


def test_captured_once(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = dataset(tmp_path, source=source, only=["scaled"]).graphs("test")
    monkeypatch.setattr("graphopt.hardware.datasets.lowered._compiled", lambda *given: pytest.fail("captured again"))
    again = dataset(tmp_path, source=source, only=["scaled"]).graphs("test")
    assert [(g.hash, g.program, g.attributes) for g in again] == [(g.hash, g.program, g.attributes) for g in first]


def test_a_whole_step_is_one_graph(tmp_path: Path, source: str) -> None:
    scaled, layer = dataset(tmp_path, source=source, graphs="step").graphs("test")
    assert (scaled.name, layer.name) == ("scaled", "layer")
    inputs = make_inputs(program(scaled).inputs, 0)
    value, gradient = program(scaled).gm(*inputs)
    x, w, seed = inputs[0].requires_grad_(), inputs[1], inputs[2]
    result = (x * w).exp().sum(-1)
    torch.testing.assert_close(value, result.detach())
    torch.testing.assert_close(gradient, torch.autograd.grad(result, x, seed)[0])
    assert len(program(layer).gm(*make_inputs(program(layer).inputs, 0))) == 3  # result, gradients of weight and bias


def test_files_of_programs(tmp_path: Path, source: str) -> None:
    graph = dataset(tmp_path, source=source, only=["layer"]).graphs("test")[0]
    (tmp_path / "kept.program.json.gz").write_bytes(graph.program)
    (again,) = dataset(tmp_path, path=str(tmp_path)).graphs("test")
    assert (again.name, again.hash, again.attributes) == ("kept", graph.hash, graph.attributes)


def factory() -> tuple[nn.Module, Any]:
    return nn.Linear(4, 4), torch.randn(2, 4)


def test_modules_by_name(tmp_path: Path) -> None:
    entry = {"module": f"{__name__}:factory", "name": "dense"}
    assert [g.name for g in dataset(tmp_path, models=[entry]).graphs("test")] == ["dense.forward", "dense.backward"]


def test_what_is_wrong_is_one_sentence(tmp_path: Path, source: str) -> None:
    (tmp_path / "bad.py").write_text("raise ValueError('no')")
    (tmp_path / "empty.py").write_text("P = {}")
    wrong: dict[str, dict[str, Any]] = {
        "no program 'lost'": {"source": source, "only": ["lost"]},
        "cannot be run": {"source": str(tmp_path / "bad.py")},
        "has no PROGRAMS": {"source": str(tmp_path / "empty.py")},
        "no file named": {"path": str(tmp_path / "nowhere")},
        "entry has one of": {"models": [{"zoo": "bert"}]},
    }
    for words, settings in wrong.items():
        with pytest.raises(GraphError, match=words):
            dataset(tmp_path, **settings).graphs("test")


@pytest.mark.parametrize("name", ["rmsprop_centred", "norm_residual"])
def test_our_own_programs(name: str, tmp_path: Path) -> None:
    assert name in PROGRAMS
    graphs = dataset(tmp_path, only=[name]).graphs("test")
    assert all(compiler_choice(graph) is not None for graph in graphs)
