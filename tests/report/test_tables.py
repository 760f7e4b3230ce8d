"""Tables: improvement, reach, and on the terminal."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_report import FOUR, row, store

from graphopt.core.utils.terminal import Bar
from graphopt.report.command import main
from graphopt.report.tables.improvement import Improvement, improvement_csv, improvement_tables, improvements
from graphopt.report.tables.reach import ALL, BEST_UNLEARNED, Reach, reaches
from graphopt.report.tables.read_rows import collect
from graphopt.report.tables.render import tables
from graphopt.report.tables.table import PIPE, Table, as_csv, as_markdown, print_table, print_tables

# --- Tables in REGAL's form, from rows made by hand.

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
    assert [len(table.rows) for table in improvement_tables(found, "brkga")] == [4, 4]
    assert improvement_csv(found, "brkga") == (tmp_path / "improvement.csv").read_text()


@pytest.mark.parametrize("option", ["--improvement-over", "--reach"])
def test_a_reference_without_rows_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    store(tmp_path, ROWS)
    assert main([str(tmp_path), option, "nobody"]) == 1
    assert capsys.readouterr().err == "no rows of 'nobody' to improve on; there are rows of brkga, cpsat, heft, regal\n"


# --- Samples to reach a method's end, on traces written by hand.


def traced(algo: str, seed: int, trace: list[tuple[int, float]], graph: str = "g") -> dict[str, object]:
    cost = trace[-1][1]
    return {
        "study": "s", "dataset": "d", "split": "test", "graph": graph, "graph_hash": graph, "family": graph, "ops": 7,
        "task": "fusion", "machine": "m", "cost": "c", "judge": "c", "objective": "runtime", "algo": algo, "seed": seed,
        "params": 0, "evals_cap": 100, "evals": 100, "seconds": 1.0, "initial": 10.0, "searched": cost, "judged": cost,
        "status": "ok", "trace": [[evals, 0.0, price] for evals, price in trace], "config_hash": "x",
    }  # fmt: skip


def lines_of(tmp_path: Path, rows: list[dict[str, object]]) -> dict[tuple[str, str], Reach]:
    (entries,) = collect(store(tmp_path, rows)).by_setting().values()
    return {(line.graph, line.method): line for line in reaches(entries, "slow")}


def test_samples_are_counted_against_the_best_method_without_parameters(tmp_path: Path) -> None:
    rows = [
        traced("slow", 0, [(0, 10.0), (50, 9.0)]), traced("best", 0, [(0, 10.0), (10, 8.0), (40, 6.0)]),
        traced("late", 0, [(0, 10.0), (90, 6.0)]), {**traced("learned", 0, [(0, 10.0), (4, 5.0)]), "params": 9},
    ]  # fmt: skip
    (entries,) = collect(store(tmp_path, rows)).by_setting().values()
    found = {line.method: line for line in reaches(entries, BEST_UNLEARNED)}
    assert {name: line.share.mean for name, line in found.items()} == pytest.approx(
        {"learned": 4 / 40, "best": 1.0, "late": 90 / 40, "slow": 100 / 40}
    )
    assert [name for name, line in found.items() if line.missed] == ["slow"]
    assert main([str(tmp_path), "--reach", BEST_UNLEARNED]) == 0


def test_a_method_is_counted_until_it_is_as_good_as_the_reference_ends(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, [
        traced("slow", 0, [(0, 10.0), (50, 9.0), (80, 8.0)]),
        traced("fast", 0, [(0, 10.0), (3, 9.0), (20, 7.5), (90, 7.0)]),
    ])  # fmt: skip
    fast, slow = lines["g", "fast"], lines["g", "slow"]
    assert (slow.samples, slow.share.mean, slow.improvement) == (80, pytest.approx(1.0), pytest.approx(20.0))
    assert (fast.samples, fast.share.mean) == (20, pytest.approx(0.25))
    assert fast.improvement == pytest.approx(30.0)


def test_who_never_gets_there_counts_with_the_whole_budget_and_is_marked(tmp_path: Path) -> None:
    rows = [
        traced("slow", 0, [(0, 10.0), (50, 8.0)]), traced("slow", 1, [(0, 10.0), (50, 8.0)]),
        traced("other", 0, [(0, 10.0), (1, 9.0)]), traced("other", 1, [(0, 10.0), (25, 8.0)]),
    ]  # fmt: skip
    other = lines_of(tmp_path, rows)["g", "other"]
    assert other.missed == 1
    assert other.share.mean == pytest.approx((2.0 * 0.5) ** 0.5)
    assert main([str(tmp_path), "--reach", "slow"]) == 0
    assert "> " in (tmp_path / "reach.md").read_text()
    assert (tmp_path / "reach.csv").read_text().count("\n") == 3


def test_shares_of_all_graphs_are_joined_by_their_geometric_mean(tmp_path: Path) -> None:
    rows = [traced("slow", 0, [(0, 10.0), (80, 8.0)], graph) for graph in "ab"]
    rows += [traced("fast", 0, [(0, 10.0), (evals, 8.0)], graph) for graph, evals in (("a", 20), ("b", 5))]
    assert lines_of(tmp_path, rows)[ALL, "fast"].share.mean == pytest.approx((0.25 * 0.0625) ** 0.5)


# --- What stands in a terminal: every name and number whole at any width, and no control characters out of files.

EVIL = "a\x1b[2J\x9b1m|b\u202e\nc"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def random_table(rng: np.random.Generator) -> Table:
    """Cells that are all different, so that a cut one is missed."""
    columns, rows = int(rng.integers(2, 14)), int(rng.integers(1, 6))
    left = int(rng.integers(1, min(4, columns)))
    longest = int(rng.choice([6, 30, 100]))

    def cell(i: int, j: int) -> str:
        return f"{i}r{j}_".ljust(int(rng.integers(3, longest if j < left else 20)), "x")

    table = [[cell(i, j) for j in range(columns)] for i in range(rows)]
    return Table("title of it", [f"column{j}" for j in range(columns)], table, left=left)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("width", [40, 80, None])
def test_no_cell_is_cut(seed: int, width: int | None) -> None:
    table, out = random_table(np.random.default_rng(seed)), io.StringIO()
    print_table(Console(file=out, width=width or PIPE), table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert {cell for row in table.rows for cell in row} <= set(re.split(r"\s+", "\n".join(lines)))
    if width is None:
        assert len(lines) == len(table.rows) + 3  # title, head, rule


def test_the_report_of_a_study_at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "rewriting_by_equality_saturation_with_a_name_of_sixty_characters"
    store(tmp_path, [*FOUR, *(row(long, g, 3.0, evals=12345) for g in "ab")])
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    print_tables(tables(collect(tmp_path), "local"))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "…" not in shown and long in shown and "2.000 [" in shown


def test_control_characters_of_names_never_come_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, [row(EVIL, EVIL + g, 4.0, family=EVIL + g, study=EVIL, machine=EVIL) for g in "ab"])
    store(tmp_path, [{"status": "failed", "algo": EVIL, "task": "fusion", "reason": EVIL}], "bad")
    assert main([str(tmp_path)]) == 0
    texts = [capsys.readouterr().out, (tmp_path / "table.md").read_text(), (tmp_path / "table.csv").read_text()]
    for text in texts:
        assert r"a\x1b[2J" in text and not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    tables = [part.splitlines() for part in texts[1].split("\n\n") if part.startswith("|")]
    assert len(tables) >= 3
    assert all(len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1 for table in tables)


def test_markdown_cells_do_not_end_early() -> None:
    table = Table("t", ["a|b"], [["c|d"], ["e|f"]], bold={(1, 0)})
    assert as_markdown([table]).splitlines()[2:] == ["| a\\|b |", "| --- |", "| c\\|d |", "| **e\\|f** |"]
    assert as_csv([{"name": "x\x1by", "low": float("nan"), "count": 3}]) == "name,low,count\nx\\x1by,,3\n"


@pytest.mark.parametrize("width", [60, 80])
def test_a_bar_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    with Bar("evaluate", 12345) as bar:
        bar.step(f"graph_of_a_long_name [red]{EVIL}[/red] annealing 20,000 evaluations: 1.002x", 11111)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).replace("\r", "\n").rstrip().splitlines()[-1]
    assert last.startswith("evaluate ") and "11111/12345 0:00:" in last and "graph_of" in last
    assert len(last) <= width and "…" in last and "[red]" in last[:70] + "[red]"
    assert "\x1b[2J" not in terminal.getvalue() and "\x9b" not in terminal.getvalue()


def test_a_bar_in_a_pipe_is_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar("evaluate", 2) as bar:
        bar.step(EVIL)
        bar.step(f"done {EVIL}")
    assert capsys.readouterr().err == "evaluate 2/2 done a\\x1b[2J\\x9b1m|b\\u202e\\nc\n"
