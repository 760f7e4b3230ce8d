"""The command that takes a model in and out."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import FLOAT, light, model_of, value

from graphopt.rewrite.check import main
from graphopt.rewrite.io import onnx_call

pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install -e '.[onnx]'")


def test_a_real_network_comes_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(light("light_squeezenet"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "65 ops, 1,235,496 parameters"
    assert lines[1].startswith("can be rewritten: conv 26, relu 26, concat 8")
    assert lines[2] == "opaque: Softmax 1"
    assert lines[3].startswith("exported and run by ONNX Runtime: differs by")


def test_open_dimensions_and_bad_words_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", FLOAT, ("n", 2))],
                     [value("y", FLOAT, ("n", 2))])  # fmt: skip
    onnx.save(model, tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx")]) == 1
    assert "dimension 'n' of input 'x' is not fixed" in capsys.readouterr().err
    assert main([str(tmp_path / "m.onnx"), "--dim", "n"]) == 1
    assert "--dim takes NAME=SIZE" in capsys.readouterr().err
    assert main([str(tmp_path / "m.onnx"), "--dim", "n=3"]) == 0


def test_a_model_that_runs_for_ever_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(onnx_call, "RUN_SECONDS", 0.5)
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "s"], ["t"]), helper.make_node("Identity", ["go"], ["on"])], "body",
        [value("i", TensorProto.INT64, ()), value("go", TensorProto.BOOL, ()), value("s", FLOAT, (2,))],
        [value("on", TensorProto.BOOL, ()), value("t", FLOAT, (2,))])  # fmt: skip
    loop = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    model = model_of([loop], [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,))], {"trips": np.asarray(10**12)})
    onnx.save(model, tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx")]) == 1
    said = capsys.readouterr()
    assert "opaque: Loop 1" in said.out and "ONNX Runtime cannot run the model" in said.err


@pytest.mark.parametrize("content", [b"", b"text", b"\x08\x07"])
def test_bad_files_are_one_sentence(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    assert main([str(tmp_path / "bad.onnx")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "bad.onnx is not an ONNX model" in said


def test_what_only_the_runtime_refuses_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = helper.make_node("Gather", ["x", "i"], ["y"])
    model = model_of([node], [value("x", FLOAT, (2, 2))], [value("y", FLOAT, (1, 2))], {"i": np.asarray([9])})
    onnx.save(model, tmp_path / "m.onnx")
    assert main([str(tmp_path / "m.onnx")]) == 1
    assert capsys.readouterr().err.startswith("ONNX Runtime cannot run the model: ")
