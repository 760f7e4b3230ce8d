"""Tables in REGAL's form, from rows made by hand."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from test_report import row, store

from graphopt.report import main
from graphopt.reporting.tables.improvement import Improvement, improvement_csv, improvement_sheets, improvements
from graphopt.reporting.tables.read_rows import collect

ROWS = [  # the reference: mean 10 on a, 20 on b; best known: 6 on a (of a method at another budget), 15 on b
    row("brkga", "a", 8.0, seed=0), row("brkga", "a", 12.0, seed=1),
    row("brkga", "b", 20.0, seed=0), row("brkga", "b", 20.0, seed=1),
    row("regal", "a", 9.0, seed=0), row("regal", "a", 7.0, seed=1),
    row("regal", "b", 15.0, seed=0), row("regal", "b", 25.0, seed=1),
    row("heft", "a", 6.0, evals_cap=1), row("heft", "b", 30.0, evals_cap=1),
    row("cpsat", "a", 10.0, bound=5.0), row("cpsat", "b", 20.0),
]  # fmt: skip
ROWS = [{**r, "initial": 40.0} for r in ROWS]


def lines(folder: Path, rows: list[dict[str, Any]], over: str = "brkga") -> dict[tuple[str, str, str], Improvement]:
    (entries,) = collect(store(folder, rows)).by_setting().values()
    return {(line.dataset, line.block, line.method): line for line in improvements(entries, over)}


def test_improvement_and_gap_by_hand(tmp_path: Path) -> None:
    found = lines(tmp_path, ROWS)
    regal, brkga = found["d", "all", "regal"], found["d", "all", "brkga"]
    assert regal.improvement.mean == pytest.approx((10 + 30) / 2 / 2 + (25 - 25) / 2 / 2)
    assert regal.gap.mean == pytest.approx(100 * ((9 / 6 - 1 + 7 / 6 - 1) / 2 + (0 + 25 / 15 - 1) / 2) / 2)
    assert brkga.improvement.mean == pytest.approx(0) and brkga.improvement.low < 0 < brkga.improvement.high
    assert brkga.gap.mean == pytest.approx(100 * (10 / 6 - 1 + 20 / 15 - 1) / 2)
    assert (regal.graphs, regal.seeds, regal.at, regal.budget) == (2, 2, 20, 20)
    heft = found["d", "all", "heft"]
    assert heft.improvement.mean == pytest.approx((40 - 50) / 2)
    assert (heft.improvement.low, heft.improvement.high) == (-50, 40)  # one seed: both graphs, or one of them twice


def test_what_cannot_be_compared_is_marked_and_wins_nothing(tmp_path: Path) -> None:
    found = lines(tmp_path, ROWS)
    assert {m: (line.mark, line.wins) for (_, block, m), line in found.items() if block == "all"} == {
        "brkga": ("", 1), "regal": ("", 2), "heft": ("†", None), "cpsat": ("‡", None),
    }  # fmt: skip


def test_a_method_is_taken_at_the_references_budget_where_it_has_one(tmp_path: Path) -> None:
    rows = [*ROWS, row("regal", "a", 1.0, evals_cap=1000), row("brkga", "a", 3.0, evals_cap=500)]
    (entries,) = collect(store(tmp_path, rows)).by_setting().values()
    found = {(line.at, line.method, line.budget) for line in improvements(entries, "brkga") if line.kind == "all"}
    assert found == {
        *((20, method, 20) for method in ("brkga", "regal", "cpsat")), (20, "heft", 1),
        (500, "brkga", 500), (500, "heft", 1),
    }  # fmt: skip


def test_graphs_that_the_reference_did_not_solve_are_left_out(tmp_path: Path) -> None:
    found = lines(tmp_path, [*ROWS, row("regal", "c", 1.0)])
    assert found["d", "all", "regal"].graphs == 2


def test_data_sets_families_and_sizes_stand_apart(tmp_path: Path) -> None:
    real = [{**r, "dataset": "real", "judged": 2 * r["judged"], "graph": r["graph"] + "2"} for r in ROWS]
    large = [{**r, "ops": 2000} if r["graph"] == "b" else r for r in [*ROWS, *real]]
    found = lines(tmp_path, large)
    assert found["real", "all", "regal"].improvement == found["d", "all", "regal"].improvement
    assert found["d", "a", "regal"].improvement.mean == pytest.approx(20)  # family a is graph a
    assert found["d", "b", "regal"].improvement.mean == pytest.approx(0)
    assert found["d", "1,000-5,000 ops", "cpsat"].mark == "‡"  # also where it proved nothing
    assert ("real", "1,000-5,000 ops", "regal") not in found


def test_best_known_counts_rows_of_all_data_sets_and_budgets(tmp_path: Path) -> None:
    again = [row("regal", "a", 3.0, evals_cap=10**6, dataset="other")]
    hashed = [{**r, "graph_hash": r["graph"]} for r in [*ROWS, *again]]
    assert lines(tmp_path, hashed)["d", "all", "heft"].gap.mean == pytest.approx(100 * (6 / 3 - 1 + 30 / 15 - 1) / 2)


def test_files_hold_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, ROWS)
    assert main([str(tmp_path), "--improvement-over", "brkga"]) == 0
    printed, text = capsys.readouterr().out, (tmp_path / "improvement.md").read_text()
    assert "heft (1) †" in printed and "| regal | 2 | 2 | **+10.00 [" in text
    table = list(csv.DictReader(io.StringIO((tmp_path / "improvement.csv").read_text())))
    means = {(line["block"], line["method"]): float(line["improvement_mean"]) for line in table}
    assert len(table) == 4 + 2 * 4 and means["a", "regal"] == pytest.approx(20)
    found = collect(tmp_path)
    assert [len(sheet.rows) for sheet in improvement_sheets(found, "brkga")] == [4, 4]
    assert improvement_csv(found, "brkga") == (tmp_path / "improvement.csv").read_text()


def test_a_reference_without_rows_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, ROWS)
    assert main([str(tmp_path), "--improvement-over", "nobody"]) == 1
    assert capsys.readouterr().err == "no rows of 'nobody' to improve on; there are rows of brkga, cpsat, heft, regal\n"
