"""Sums over ops against whole programs: the table, by hand and from a small study."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import command

from graphopt.core.errors import UserError
from graphopt.report.command import main as report
from graphopt.report.figures import figures
from graphopt.report.tables.discrepancy import discrepancy_table, prices_of


def row(graph: str, judge: str, initial: float, noise: float = 0.0) -> dict[str, Any]:
    return {"status": "ok", "task": "rewrite", "graph": graph, "judge": judge, "initial": initial, "noise": noise,
            "cost": "flops", "searched_initial": 0.003}  # fmt: skip


ROWS = [
    row("a", "profiled", 0.002),
    row("a", "torch", 0.004, 0.01),
    row("b", "torch", 0.002),
    row("b", "profiled", 0.003),
]


def test_by_hand() -> None:
    table = discrepancy_table(prices_of(ROWS))
    assert table.columns == ["graph", "flops ms", "profiled ms", "torch ms", "flops to torch %", "profiled to torch %"]
    assert table.rows == [
        ["a", "3", "2", "4 ±1 %", "-25.0", "-50.0"],
        ["b", "3", "3", "2", "+50.0", "+50.0"],
        ["mean of absolute values", "", "", "", "37.5", "50.0"],
    ]
    found = {figure.name: figure for figure in figures({"figures": [{"kind": "discrepancy"}]}, ROWS)}
    assert set(found) == {"flops to torch", "profiled to torch"}
    assert found["flops to torch"].value == pytest.approx(0.375)
    assert found["flops to torch"].low == pytest.approx(0.25) and found["flops to torch"].high == pytest.approx(0.5)


def test_without_whole_programs_it_is_one_sentence() -> None:
    with pytest.raises(UserError, match="run experiment=cost_discrepancy first"):
        prices_of([row("a", "profiled", 1.0)])


def test_the_experiment_shrunk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each judge's row holds its own price of the original, and the roofline's, the same in all."""
    small = ["dataset.test=[{model: bert, blocks: 1, width: 32, heads: 2, seq: 8}]", "logger=none"]
    table = f"judge.table={tmp_path / 'measured.jsonl'}"
    for judge in ("profiled", "torch"):
        answer = command(tmp_path / "out", "experiment=cost_discrepancy", f"cost@judge={judge}", table, *small)
        assert answer.code == 0, answer.err
    rows = [json.loads(line) for file in tmp_path.rglob("rows.jsonl") for line in file.read_text().splitlines()]
    assert {one["judge"] for one in rows} == {"profiled", "torch"}
    assert len({one["searched_initial"] for one in rows}) == 1 and all(one["judged"] == one["initial"] for one in rows)
    assert report([str(tmp_path / "out" / "cost_discrepancy"), "--discrepancy"]) == 0
    assert "profiled to torch %" in capsys.readouterr().out
    assert report([str(tmp_path / "out" / "cost_discrepancy"), "--figures"]) == 0
    named = [json.loads(line)["name"] for line in capsys.readouterr().out.splitlines()]
    assert named == ["flops to torch", "profiled to torch"]
    assert report([str(tmp_path / "out" / "cost_discrepancy"), "--replay"]) == 0
