"""Samples to reach a method's end, on traces written by hand."""

import json
from pathlib import Path

import pytest

from graphopt.report import main
from graphopt.reporting.tables.reach import ALL, Reach, reaches
from graphopt.reporting.tables.read_rows import collect


def row(algo: str, seed: int, trace: list[tuple[int, float]], graph: str = "g") -> dict[str, object]:
    cost = trace[-1][1]
    return {
        "study": "s", "dataset": "d", "split": "test", "graph": graph, "graph_hash": graph, "family": graph, "ops": 7,
        "task": "fusion", "machine": "m", "cost": "c", "judge": "c", "objective": "runtime", "algo": algo, "seed": seed,
        "params": 0, "evals_cap": 100, "evals": 100, "seconds": 1.0, "initial": 10.0, "searched": cost, "judged": cost,
        "status": "ok", "trace": [[evals, 0.0, price] for evals, price in trace], "config_hash": "x",
    }  # fmt: skip


def lines_of(tmp_path: Path, rows: list[dict[str, object]]) -> dict[tuple[str, str], Reach]:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    (entries,) = collect(file).by_setting().values()
    return {(line.graph, line.method): line for line in reaches(entries, "slow")}


def test_a_method_is_counted_until_it_is_as_good_as_the_reference_ends(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, [
        row("slow", 0, [(0, 10.0), (50, 9.0), (80, 8.0)]),
        row("fast", 0, [(0, 10.0), (3, 9.0), (20, 7.5), (90, 7.0)]),
    ])  # fmt: skip
    fast, slow = lines["g", "fast"], lines["g", "slow"]
    assert (slow.samples, slow.share.mean, slow.improvement) == (80, pytest.approx(1.0), pytest.approx(20.0))
    assert (fast.samples, fast.share.mean) == (20, pytest.approx(0.25))
    assert fast.improvement == pytest.approx(30.0)


def test_who_never_gets_there_counts_with_the_whole_budget_and_is_marked(tmp_path: Path) -> None:
    rows = [
        row("slow", 0, [(0, 10.0), (50, 8.0)]), row("slow", 1, [(0, 10.0), (50, 8.0)]),
        row("other", 0, [(0, 10.0), (1, 9.0)]), row("other", 1, [(0, 10.0), (25, 8.0)]),
    ]  # fmt: skip
    other = lines_of(tmp_path, rows)["g", "other"]
    assert other.missed == 1
    assert other.share.mean == pytest.approx((2.0 * 0.5) ** 0.5)
    assert main([str(tmp_path), "--reach", "slow"]) == 0
    assert "> " in (tmp_path / "reach.md").read_text()
    assert (tmp_path / "reach.csv").read_text().count("\n") == 3


def test_shares_of_all_graphs_are_joined_by_their_geometric_mean(tmp_path: Path) -> None:
    rows = [row("slow", 0, [(0, 10.0), (80, 8.0)], graph) for graph in "ab"]
    rows += [row("fast", 0, [(0, 10.0), (evals, 8.0)], graph) for graph, evals in (("a", 20), ("b", 5))]
    assert lines_of(tmp_path, rows)[ALL, "fast"].share.mean == pytest.approx((0.25 * 0.0625) ** 0.5)


def test_a_reference_without_rows_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row("fast", 0, [(0, 10.0), (1, 9.0)])) + "\n")
    assert main([str(tmp_path), "--reach", "nobody"]) == 1
    assert "no rows of 'nobody'" in capsys.readouterr().err
