"""The command that takes a model in and out."""

from pathlib import Path

import onnx
import pytest
from onnx import helper
from onnx_models import FLOAT, light, model_of, value

from graphopt.rewrite.check import main

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
