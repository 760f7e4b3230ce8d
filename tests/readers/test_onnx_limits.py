"""Small models that ask for too much, and models that mean nothing: a sentence, or a graph, within 3 GiB and 20 s."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from hostile_models import bombs, constant, ints, nested, node, nonsense, not_text, scalar

import graphopt
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation

BOMBS, NONSENSE = bombs(), nonsense()
NEEDS_VALUES = {"no payload", "short payload", "outside the folder", "absolute path", "device", "pipe",
                "beyond the file", "whole file", "negative offset", "long inputs"}  # fmt: skip
"""What is wrong only with a model that is to be run: a graph is made of shapes."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    folder = tmp_path_factory.mktemp("hostile") / "in"
    folder.mkdir()
    (folder.parent / "secret.bin").write_bytes(bytes(48))
    (folder / "short.bin").write_bytes(bytes(40))
    os.mkfifo(folder / "pipe")
    for name, model in (BOMBS | NONSENSE).items():
        (folder / f"{name}.onnx").write_bytes(model.SerializeToString())
    (folder / "not text.onnx").write_bytes(not_text())
    (folder / "nested.onnx").write_bytes(nested(1000))
    assert sum(f.stat().st_size for f in folder.glob("*.onnx")) < 3_000_000
    script = Path(__file__).parent / "hostile_models.py"
    ours = os.environ | {"PYTHONPATH": str(Path(graphopt.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ours)
    found = {name: what for line in ended.stdout.splitlines() for name, what in json.loads(line).items()}
    assert ended.returncode == 0, ended.stderr[-2000:] + str(list(found)[-1:])
    return found


@pytest.mark.parametrize("name", BOMBS)
def test_nothing_large_is_computed_from_constants(outcomes: dict[str, dict[str, str]], name: str) -> None:
    for reader, what in outcomes[name].items():
        assert what == "read" or what.startswith("refused"), (reader, what)


@pytest.mark.parametrize("name", [*NONSENSE, "nested", "not text"])
def test_what_means_nothing_is_refused_in_a_sentence(outcomes: dict[str, dict[str, str]], name: str) -> None:
    for reader, what in outcomes[name].items():
        if reader == "graph" and name in NEEDS_VALUES:
            assert what == "read"
            continue
        assert what.startswith("refused: ") and what.isprintable() and len(what) < 1100, (reader, what)
        assert name in what or "graph '" in what or "model '" in what


def test_sound_models_of_the_same_kind_are_read(tmp_path: Path) -> None:
    """The same operators with small sizes are computed, so that the limits refuse sizes and not operators."""
    nodes = node("Range", ["a", "b", "c"], ["r"]), node("Tile", ["r", "k"], ["t"]), node("Expand", ["t", "e"], ["big"])
    numbers = scalar("a", 0), scalar("b", 5), scalar("c", 2), ints("k", 1), ints("e", 2, 3)
    model = constant(*nodes, weights=list(numbers))
    onnx.save(model, tmp_path / "m.onnx")
    program = import_onnx(tmp_path / "m.onnx")
    labels = [program.opaque[op.params[0]].label for op in live_operations(program) if op.name == "opaque"]
    assert labels == ["Expand"]  # of the input
    assert [w.tolist() for w in program.weights.values()] == [4.0]  # the largest of 0, 2, 4


def live_operations(program: Program) -> list[Operation]:
    return [program.terms.operation[term] for term in program.live()]
