"""Stored rewriting answers run whole: what is measured, what is not measured twice, and what the table says."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from commands import Answer, command

from graphopt.hardware.measure.race import Race
from graphopt.hardware.measure.target import Ratio
from graphopt.report import end_to_end
from graphopt.report.command import main as report
from graphopt.rewrite.equivalence import run_onnx
from graphopt.rewrite.io.onnx_export import save_onnx
from graphopt.rewrite.ir.digests import portable
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program

pytest.importorskip("onnxruntime")


def products(first: str, second: str) -> Program:
    b = ProgramBuilder()
    x = b.input((2, 4))
    made = [b.op("relu", inputs=(x,)), b.op("tanh", inputs=(x,))]
    return b.build(*(made if first < second else made[::-1]))


def test_equal_programs_have_equal_digests_in_any_store() -> None:
    program = products("a", "b")
    assert portable(program) != portable(products("b", "a"))  # other outputs
    b = ProgramBuilder()
    x = b.input((2, 4))
    tanh = b.op("tanh", inputs=(x,))
    assert portable(b.build(b.op("relu", inputs=(x,)), tanh)) == portable(program)


SMALL = ("dataset=rewrite_models", "dataset.test=[{model: squeezenet, size: 32, classes: 10}]")


def solved(place: Path, algos: Sequence[str], *words: str) -> Answer:
    for algo in algos:
        answer = command(place, "task=rewrite", f"algo={algo}", "budget.evals=[200]", "logger=none", *words)
        assert answer.code == 0, answer.err
    return answer


def test_answers_that_are_one_program_are_run_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = solved(tmp_path / "out", ["rewrite_greedy", "taso"], *SMALL, "cost=flops", "cost@judge=flops")
    raced = list[tuple[int, int]]()

    def fake(before: Path, after: Path) -> Race:
        x = {"input0": np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)}
        for one, other in zip(run_onnx(str(before), x), run_onnx(str(after), x), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
        raced.append((before.stat().st_size, after.stat().st_size))
        return Race(0.002, 0.001, Ratio(2.0, 1.9, 2.1), Ratio(1.0, 0.98, 1.02), 6, 60)

    monkeypatch.setattr(end_to_end, "race", fake)
    programs = {row["judged"] for row in answer.rows}
    assert report([str(answer.folder), "--end-to-end"]) == 0
    table = (answer.folder / "end_to_end.md").read_text()
    assert "2.000 [1.900, 2.100]" in table
    assert "| faster |" in table
    lines = [json.loads(text) for text in (answer.folder / "end_to_end.jsonl").read_text().splitlines()]
    assert len(programs) <= len(lines) == len(raced) <= 2
    assert report([str(answer.folder), "--end-to-end"]) == 0
    assert len(lines) == len(raced)  # what is known is not run again


def test_measured_ops_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [f"{model}.table={tmp_path / 'ops.jsonl'}" for model in ("cost", "judge")]
    b = ProgramBuilder()
    x = b.input((4, 8))
    save_onnx(b.build(b.op("relu", inputs=(b.linear(x, 6),))), tmp_path / "model.onnx")
    data = ("dataset=onnx", f"dataset.path={tmp_path / 'model.onnx'}")
    solved(tmp_path / "out", ["rewrite_greedy"], "cost=profiled", "cost@judge=profiled", *tables, *data)
    nothing = Race(1.0, 1.0, Ratio(1.0, 1.0, 1.0), Ratio(1.0, 1.0, 1.0), 6, 60)
    monkeypatch.setattr(end_to_end, "race", lambda before, after: nothing)
    (line,) = end_to_end.measure_all(tmp_path / "out")
    first, again = ((tmp_path / name).read_text().splitlines() for name in ("ops.jsonl", "out/ops_again.jsonl"))
    assert 0 < len(again) <= len(first)
    assert line["priced_again"][0] == pytest.approx(line["priced"][0], rel=0.9)
    assert line["priced_again"] != line["priced"]


def test_a_folder_without_rewriting_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = command(tmp_path / "out", "algo=default", "dataset=synthetic", "dataset.ops=20", "dataset.test=1",
                     "logger=none")  # fmt: skip
    assert answer.code == 0, answer.err
    assert report([str(answer.folder), "--end-to-end"]) == 1
    assert "holds no stored answers of task=rewrite" in capsys.readouterr().err
