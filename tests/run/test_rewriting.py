"""Rewriting through the whole harness: an ONNX file in, rows, answers that replay, and an ONNX model out."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import Answer, command

from graphopt.hardware.measure import service
from graphopt.hardware.measure.pool import LocalPool
from graphopt.report.answer import _pricing
from graphopt.report.command import main as report
from graphopt.report.decision import main as decide
from graphopt.rewrite import equivalence
from graphopt.rewrite.equivalence import run_onnx
from graphopt.rewrite.io.onnx_export import RULES_KEY, save_onnx
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.run.records import answer_file


def write_model(path: Path) -> Path:
    """Two products that share their input, the second with a relu that it could take in."""
    b = ProgramBuilder()
    x = b.input((4, 8))
    save_onnx(b.build(b.linear(x, 6), b.op("relu", inputs=(b.linear(x, 6),))), path)
    return path


def solved(tmp_path: Path, *words: str) -> Answer:
    model = write_model(tmp_path / "model.onnx")
    return command(tmp_path / "out", "task=rewrite", "algo=rewrite_greedy", "cost=flops", "cost@judge=flops",
                   "budget.evals=[200]", "logger=none", "dataset=onnx", f"dataset.path={model}", *words)  # fmt: skip


def test_a_model_goes_in_and_a_faster_one_comes_out(tmp_path: Path) -> None:
    answer = solved(tmp_path)
    assert answer.code == 0, answer.err
    (row,) = answer.rows
    assert row["status"] == "ok"
    assert row["judged"] < row["initial"]
    (file,) = answer.folder.rglob("models/*.onnx")
    assert str(file).endswith(row["model"])
    rules = json.loads({p.key: p.value for p in onnx.load(file).metadata_props}[RULES_KEY])
    assert rules
    x = {"input0": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}
    for ours, theirs in zip(run_onnx(str(file), x), run_onnx(str(tmp_path / "model.onnx"), x), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_answer_is_stored_and_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = solved(tmp_path)
    (file,) = answer.folder.rglob("decisions/*.npz")
    stored = answer_file.load(file)
    assert stored.rules
    assert stored.prices["searched"] == answer.rows[0]["searched"]
    assert report([str(answer.folder), "--replay"]) == 0
    assert "1 of 1 decisions replay" in capsys.readouterr().out
    assert decide(["show", str(file)]) == 0
    assert stored.rules[0] in capsys.readouterr().out
    assert decide(["replay", str(file)]) == 0
    assert decide(["draw", str(file), "-o", str(tmp_path / "pictures")]) == 0
    assert {path.stem.rsplit("-")[-1] for path in (tmp_path / "pictures").iterdir()} == {"original", "rewritten"}
    assert decide(["bisect", str(file)]) == 0
    assert "no step costs" in capsys.readouterr().out


def test_measured_prices_replay_on_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table = [f"{model}.table={tmp_path / 'ops.jsonl'}" for model in ("cost", "judge")]
    answer = solved(tmp_path, "cost=profiled", "cost@judge=profiled", *table)
    assert answer.code == 0, answer.err
    (file,) = answer.folder.rglob("decisions/*.npz")
    config = answer_file.load(file).header["config"]
    here = {json.loads(line)["environment"] for line in (tmp_path / "ops.jsonl").read_text().splitlines()}
    assert {config["cost"]["environment"], config["judge"]["environment"]} == here

    def nothing(*_: object) -> None:
        raise AssertionError("an op is measured")

    monkeypatch.setattr(service, "environment_here", lambda *_: "elsewhere")
    monkeypatch.setattr(LocalPool, "ask", nothing)
    assert report([str(answer.folder), "--replay"]) == 0
    (tmp_path / "ops.jsonl").unlink()
    _pricing.cache_clear()
    assert report([str(answer.folder), "--replay"]) == 1
    assert "'ops.jsonl', which is in no folder above it: bring it there" in capsys.readouterr().out


def test_a_table_that_stored_answers_would_not_find_is_refused(tmp_path: Path) -> None:
    """Before anything is measured: such an answer could not be priced again."""
    table = tmp_path / "elsewhere" / "ops.jsonl"
    answer = solved(tmp_path, "cost=profiled", "cost@judge=profiled", f"judge.table={table}")
    assert answer.code == 2 and f"judge.table={table} lies in no folder above" in answer.err
    assert "put the table there, such as judge.table=" in answer.err and not table.exists()
    assert not list(tmp_path.rglob("rows.jsonl"))


def test_a_program_that_computes_something_else_is_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def different(original: object, best: object) -> None:
        raise equivalence.EquivalenceError("output 'y' differs")

    monkeypatch.setattr(equivalence, "check_equivalence", different)
    answer = solved(tmp_path)
    assert answer.code == 1
    assert [(row["status"], row["reason"]) for row in answer.rows] == [("failed", "output 'y' differs")]
