"""From rows to tables, curves and pictures.

`graphopt report DIR` prints the tables of every rows.jsonl below DIR and writes DIR/table.md and
DIR/table.csv; `--improvement-over METHOD` makes tables in REGAL's form instead, `--reach METHOD` in LAF's, `--reach
best_unlearned` the same against the best method without parameters of each graph; `--replay` re-prices every stored
decision and writes no tables unless `--markdown` or `--csv` ask for them, `--figures` prints the headline figures of a
stored experiment, `--end-to-end` runs rewritten programs whole (DIR/end_to_end.md), `--discrepancy` sets sums over ops
against whole programs (DIR/discrepancy.md), `--plots` draws into DIR/pictures.
"""

import argparse
import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from graphopt.core.graph import GraphError
from graphopt.errors import UserError
from graphopt.records.rows import Row
from graphopt.utils.plain_json import dumps
from graphopt.utils.printable import say


def print_table(rows_path_or_dir: Path | str, against: str = "local") -> None:
    """Prints the tables of a run or a study on the terminal."""
    from graphopt.reporting.tables.read_rows import collect
    from graphopt.reporting.tables.render import sheets
    from graphopt.reporting.tables.terminal import print_sheets

    print_sheets(sheets(collect(rows_path_or_dir), against))


def print_cell(rows_path: Path, rows: Sequence[Row], own: str) -> None:
    """Prints what a finished cell found: of a single model what was decided, else tables. own: its algorithm."""
    from graphopt.reporting.model_view import print_model, single_model

    if single_model(rows):
        print_model(rows_path.parent, rows, own)
    else:
        print_table(rows_path)


def cell_line(rows: Sequence[Row]) -> str:
    """E.g. `9 rows, geometric mean of initial / judged 1.052x, 2 infeasible`."""
    prices = [(row.get("initial") or 0.0, row.get("judged") or 0.0) for row in rows if row.get("status") == "ok"]
    logs = [math.log(before / after) for before, after in prices
            if 0 < before < math.inf and 0 < after < math.inf]  # fmt: skip
    gain = f", geometric mean of initial / judged {math.exp(sum(logs) / len(logs)):.3f}x" if logs else ""
    other = Counter(str(row.get("status")) for row in rows if row.get("status") != "ok")
    return f"{len(rows)} rows{gain}" + "".join(f", {count} {status}" for status, count in sorted(other.items()))


def write_tables(place: Path, against: str, markdown: Path | None, csv: Path | None) -> list[Path]:
    """Prints the tables and writes them as Markdown and CSV, by default into `place`."""
    from graphopt.reporting.tables.read_rows import collect
    from graphopt.reporting.tables.render import numbers, sheets
    from graphopt.reporting.tables.sheet import as_markdown
    from graphopt.reporting.tables.terminal import print_sheets

    found = collect(place)
    all_sheets = sheets(found, against)
    print_sheets(all_sheets)
    return _write(place, "table", as_markdown(all_sheets), numbers(found), markdown, csv)


def write_improvements(place: Path, over: str, markdown: Path | None, csv: Path | None) -> list[Path]:
    """The same for the tables of improvement over a method; by default DIR/improvement.md and .csv."""
    from graphopt.reporting.tables.improvement import improvement_csv, improvement_sheets
    from graphopt.reporting.tables.read_rows import collect
    from graphopt.reporting.tables.sheet import as_markdown
    from graphopt.reporting.tables.terminal import print_sheets

    found = collect(place)
    all_sheets = improvement_sheets(found, over)
    print_sheets(all_sheets)
    return _write(place, "improvement", as_markdown(all_sheets), improvement_csv(found, over), markdown, csv)


def write_reaches(place: Path, over: str, markdown: Path | None, csv: Path | None) -> list[Path]:
    """The same for the tables of samples to reach a method's end; by default DIR/reach.md and .csv."""
    from graphopt.reporting.tables.reach import reach_csv, reach_lines, reach_sheets
    from graphopt.reporting.tables.read_rows import collect
    from graphopt.reporting.tables.sheet import as_markdown
    from graphopt.reporting.tables.terminal import print_sheets

    found = collect(place)
    lines = reach_lines(found, over)
    all_sheets = reach_sheets(found, lines, over)
    print_sheets(all_sheets)
    return _write(place, "reach", as_markdown(all_sheets), reach_csv(lines), markdown, csv)


def _write(place: Path, stem: str, text: str, values: str, markdown: Path | None, csv: Path | None) -> list[Path]:
    """Into the place, unless other files are given."""
    folder = place if place.is_dir() else place.parent
    files = [markdown or folder / f"{stem}.md", csv or folder / f"{stem}.csv"]
    for file, content in zip(files, (text, values)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return files


def replay(place: Path) -> int:
    """Prices every stored decision again; the exit code is 1 when a number does not come out."""
    from graphopt.reporting.replay import claims_of, replay_all
    from graphopt.utils.progress import Bar

    claims, unanswered = claims_of(place)
    total, good = len(claims) + len(unanswered), 0
    with Bar("replay", total) as bar:
        for file, mismatches in replay_all(claims, unanswered):
            good += not mismatches
            for mismatch in mismatches:
                say(f"{mismatch.path}: {mismatch.what}")
            bar.step(file.name)
    say(f"{good:,} of {total:,} decisions replay")
    return 0 if good == total and total > 0 else 1


def end_to_end(place: Path) -> Path:
    """Runs every rewritten program against its original; prints and writes the table."""
    from graphopt.reporting.end_to_end import measure_all, sheet
    from graphopt.reporting.tables.sheet import as_markdown
    from graphopt.reporting.tables.terminal import print_sheets

    found = []
    for line in measure_all(place):
        found.append(line)
        say(f"{line['graph']}: measured", sys.stderr)
    table = sheet(found)
    print_sheets([table])
    file = (place if place.is_dir() else place.parent) / "end_to_end.md"
    file.write_text(as_markdown([table]))
    return file


def discrepancy(place: Path) -> Path:
    """What sums over ops say of models against what these take as a whole; prints and writes the table."""
    from graphopt.reporting.tables.discrepancy import discrepancy_sheet, prices_of
    from graphopt.reporting.tables.read_rows import read_rows, row_files
    from graphopt.reporting.tables.sheet import as_markdown
    from graphopt.reporting.tables.terminal import print_sheets

    table = discrepancy_sheet(prices_of(read_rows(row_files(place))[0]))
    print_sheets([table])
    file = (place if place.is_dir() else place.parent) / "discrepancy.md"
    file.write_text(as_markdown([table]))
    return file


def print_figures(place: Path) -> None:
    """Name, value, low and high of each, as JSON lines; null is not known. Raises UserError where there are none."""
    from graphopt.reporting.figures import figures_of

    for figure in figures_of(place):
        print(dumps({key: None if value != value else value for key, value in asdict(figure).items()}))


def draw(place: Path) -> list[Path]:
    """Curves, bars and the decision that gains most, into a pictures folder."""
    from graphopt.answer import Answer
    from graphopt.reporting.pictures.curves import draw_study
    from graphopt.reporting.pictures.draw import draw_answer
    from graphopt.reporting.pictures.examples import best_decisions
    from graphopt.reporting.tables.read_rows import collect

    folder = (place if place.is_dir() else place.parent) / "pictures"
    found = collect(place)
    files = draw_study(found, folder)
    for decision in best_decisions(place):
        files += draw_answer(Answer.load(decision), folder)
    return files


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt report", description="Tables, curves and replay of stored runs.")
    result.add_argument("place", type=Path, metavar="DIR", help="a study's or a run's folder, or one rows.jsonl")
    result.add_argument(
        "--replay", action="store_true", help="re-price every stored decision; exit 1 on a mismatch; no files"
    )
    result.add_argument("--against", default="local", metavar="METHOD", help="compare pairwise with this method")
    result.add_argument("--improvement-over", metavar="METHOD", help="improvement over this method, and gap")
    result.add_argument("--reach", metavar="METHOD", help="evaluations to reach what METHOD ends at, or best_unlearned")
    result.add_argument("--end-to-end", action="store_true", help="run rewritten programs against their originals")
    result.add_argument("--discrepancy", action="store_true", help="sums over ops against whole programs")
    result.add_argument("--figures", action="store_true", help="only the experiment's headline figures, as JSON lines")
    result.add_argument("--plots", action="store_true", help="draw into DIR/pictures")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="instead of DIR/table.md")
    result.add_argument("--csv", type=Path, metavar="FILE", help="instead of DIR/table.csv")
    return result


def _tables(args: argparse.Namespace) -> list[Path]:
    files = args.markdown, args.csv
    if args.improvement_over:
        return write_improvements(args.place, args.improvement_over, *files)
    if args.reach:
        return write_reaches(args.place, args.reach, *files)
    if args.replay and files == (None, None):
        print_table(args.place, args.against)  # who checks what is stored does not want it changed
        return []
    return write_tables(args.place, args.against, *files)


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        if args.figures:
            print_figures(args.place)
            return 0
        if args.discrepancy:
            say(f"wrote {discrepancy(args.place)}")
            return 0
        for file in _tables(args):
            say(f"wrote {file}")
        if args.end_to_end:
            say(f"wrote {end_to_end(args.place)}")
        drawn = draw(args.place) if args.plots else []
        if args.plots and not drawn:
            say("nothing to draw: no row has a price")
        for file in drawn:
            say(f"wrote {file}")
        return replay(args.place) if args.replay else 0
    except (UserError, GraphError) as error:
        say(error, sys.stderr)
        return 1
