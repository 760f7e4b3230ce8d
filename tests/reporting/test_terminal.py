"""What stands in a terminal: every name and number whole at any width, and no control characters out of files."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.cells import cell_len
from test_report import FOUR, row, store

from graphopt.report import main
from graphopt.reporting.tables.read_rows import collect
from graphopt.reporting.tables.render import sheets
from graphopt.reporting.tables.sheet import Sheet, as_csv, as_markdown
from graphopt.reporting.tables.terminal import print_sheets, sheet_lines
from graphopt.utils.progress import Bar

EVIL = "a\x1b[2J\x9b1m|b\u202e\nc"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def random_sheet(rng: np.random.Generator) -> Sheet:
    """Cells that are all different, so that a cut one is missed."""
    columns, rows = int(rng.integers(2, 14)), int(rng.integers(1, 6))
    left = int(rng.integers(1, min(4, columns)))
    longest = int(rng.choice([6, 30, 100]))

    def cell(i: int, j: int) -> str:
        return f"{i}r{j}_".ljust(int(rng.integers(3, longest if j < left else 20)), "x")

    table = [[cell(i, j) for j in range(columns)] for i in range(rows)]
    return Sheet("title of it", [f"column{j}" for j in range(columns)], table, left=left)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("width", [40, 80, None])
def test_nothing_is_cut_and_lines_fit(seed: int, width: int | None) -> None:
    sheet = random_sheet(np.random.default_rng(seed))
    lines = [line.plain for line in sheet_lines(sheet, width)]
    words = set(re.split(r"\s+", "\n".join(lines)))
    assert {cell for row in sheet.rows for cell in row} <= words
    if width is None:
        assert len(lines) == len(sheet.rows) + 3  # title, head, rule
        return
    names = max(cell_len("  ".join(row[: sheet.left])) for row in sheet.rows)
    assert all(cell_len(line) <= max(width, names) for line in lines)


def test_names_stand_in_every_part() -> None:
    sheet = Sheet("", ["method", *"abcdefgh"], [["annealing", *["123456.123"] * 8], ["go", *["9"] * 8]])
    lines = [line.plain for line in sheet_lines(sheet, 80)]
    parts = sum("method" in line for line in lines)
    assert parts == 2 and all(sum(name in line for line in lines) == parts for name in ("annealing", "go"))


def test_the_report_of_a_study_at_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = "rewriting_by_equality_saturation_with_a_name_of_sixty_characters"
    store(tmp_path, [*FOUR, *(row(long, g, 3.0, evals=12345) for g in "ab")])
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    print_sheets(sheets(collect(tmp_path), "local"))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert "…" not in shown and long in shown and "2.000 [" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


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
    sheet = Sheet("t", ["a|b"], [["c|d"], ["e|f"]], bold={(1, 0)})
    assert as_markdown([sheet]).splitlines()[2:] == ["| a\\|b |", "| --- |", "| c\\|d |", "| **e\\|f** |"]
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
