"""From rows to tables, curves and pictures.

`graphopt report DIR` prints the tables of every rows.jsonl below DIR and writes DIR/table.md and
DIR/table.csv; `--improvement-over METHOD` makes tables in REGAL's form instead, `--reach METHOD` in LAF's, `--reach
best_unlearned` the same against the best method without parameters of each graph; `--replay` re-prices every stored
decision and writes no tables unless `--markdown` or `--csv` ask for them, `--figures` prints the headline figures of a
stored experiment, `--plots` draws into DIR/pictures. `--html` writes DIR/report.html. `--learning`, of a folder of
studies: whether learning pays, as a table and a picture. `--es`, of rows of `graphopt measure backends`: S(t) and
ES(t), likewise.
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from graphopt.core.errors import ConfigError, UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.plain_json import dumps
from graphopt.core.utils.terminal import say
from graphopt.run.records.packed import is_there
from graphopt.run.records.rows import Row

MOST_LINES = 12  # of a short table
EASY_TO_READ = 300  # ops of a graph that fits a picture
Tables = tuple[str, Sequence[Any], str]  # the stem of the files, tables, numbers as CSV: empty where there are none


def print_table(rows_path_or_dir: Path | str, against: str = "local", own: str | None = None) -> None:
    """Prints the tables of a run or a study on the terminal. own: of a run, the algorithm that is compared with all."""
    from graphopt.report.tables.read_rows import collect
    from graphopt.report.tables.render import tables
    from graphopt.report.tables.table import print_tables

    print_tables(tables(collect(rows_path_or_dir), against, own))


def print_verdict(place: Path) -> None:
    """Prints a study's verdict, its first table without the columns about effort, and the path of the page."""
    from graphopt.report.tables.read_rows import collect
    from graphopt.report.tables.render import tables
    from graphopt.report.tables.table import Table, print_tables
    from graphopt.report.tables.verdict import verdict

    found = collect(place)
    first = next(iter(tables(found, "local")), None)
    if first is not None:
        short = [row[:6] for row in first.rows[:MOST_LINES]]
        bold = {(row, column) for row, column in first.bold if row < len(short) and column < 6}
        print_tables([Table(first.title, first.columns[:6], short, bold, first.breaks, left=2)])
    say(verdict(found))
    try:
        from graphopt.report.page.study_page import study_page

        say(f"page: {study_page(place, page_of(place))}")
    except ConfigError as error:
        say(f"no page: {error}")


def print_cell(rows_path: Path, rows: Sequence[Row], own: str) -> None:
    """Prints the results of a finished cell: of a single model the decision, else tables. own: its algorithm."""
    from graphopt.report.model_view import print_model, single_model

    if single_model(rows):
        print_model(rows_path.parent, rows, own)
    else:
        print_table(rows_path, own=own)


def cell_line(rows: Sequence[Row]) -> str:
    """E.g. `9 rows, geometric mean of initial / judged 1.052x, 2 infeasible`."""
    prices = [(row.get("initial") or 0.0, row.get("judged") or 0.0) for row in rows if row.get("status") == "ok"]
    logs = [math.log(before / after) for before, after in prices
            if 0 < before < math.inf and 0 < after < math.inf]  # fmt: skip
    gain = f", geometric mean of initial / judged {math.exp(sum(logs) / len(logs)):.3f}x" if logs else ""
    other = Counter(str(row.get("status")) for row in rows if row.get("status") != "ok")
    return f"{len(rows)} rows{gain}" + "".join(f", {count} {status}" for status, count in sorted(other.items()))


def written(place: Path, made: Tables, markdown: Path | None = None, csv: Path | None = None) -> list[Path]:
    """Prints tables and writes them as Markdown and CSV, into the place unless other files are given. A Markdown file
    with the comments `<!-- STEM -->` and `<!-- /STEM -->` keeps the text around these."""
    from graphopt.report.tables.table import as_markdown, print_tables

    stem, tables, numbers = made
    print_tables(tables)
    folder = place if place.is_dir() else place.parent
    markdown, text = markdown or folder / f"{stem}.md", as_markdown(tables)
    before, mark, rest = (markdown.read_text() if markdown.is_file() else "").partition(f"<!-- {stem} -->\n")
    _, end, after = rest.partition(f"<!-- /{stem} -->")
    contents = {markdown: before + mark + text + end + after if mark and end else text}
    if numbers:
        contents[csv or folder / f"{stem}.csv"] = numbers
    for file, content in contents.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return list(contents)


def tables_of(args: argparse.Namespace) -> Tables:
    """Those that the command line asks for: the results of each method, or its distance to another one."""
    if args.learning:
        from graphopt.report.learning import learning_lines, learning_table

        return "learning", [learning_table(learning_lines(args.place))], ""
    if args.es:
        from graphopt.report.error_aware import read_rows, score_tables

        return "scores", score_tables(read_rows(args.place)), ""
    from graphopt.report.tables import improvement, reach, render
    from graphopt.report.tables.read_rows import collect

    found = collect(args.place)
    if over := args.improvement_over:
        return "improvement", improvement.improvement_tables(found, over), improvement.improvement_csv(found, over)
    if over := args.reach:
        lines = reach.reach_lines(found, over)
        return "reach", reach.reach_tables(found, lines, over), reach.reach_csv(lines)
    return "table", render.tables(found, args.against), render.numbers(found)


SLOWEST, LONG = 5, 10.0  # replays whose time is said, and the seconds from which


def replay(place: Path) -> int:
    """Prices every stored decision again, and says which took long; the exit code is 1 when a number does not come
    out."""
    from graphopt.core.utils.terminal import Bar
    from graphopt.report.replay import claims_of, replay_all

    claims, unanswered = claims_of(place)
    total, good, slow, begun = len(claims) + len(unanswered), 0, list[tuple[float, Path]](), time.perf_counter()
    with Bar("replay", total) as bar:
        for file, mismatches in replay_all(claims, unanswered):
            good += not mismatches
            slow.append((time.perf_counter() - begun, file))
            begun = time.perf_counter()
            for mismatch in mismatches:
                say(f"{mismatch.path}: {mismatch.what}")
            bar.step(file.name)
    for seconds, file in sorted(slow, reverse=True)[:SLOWEST]:
        if seconds > LONG:
            say(f"{seconds:.0f} s: {file}")
    say(f"{good:,} of {total:,} decisions replay")
    return 0 if good == total and total > 0 else 1


def print_figures(place: Path) -> None:
    """Name, value, low and high of each, as JSON lines; null is not known. Raises UserError where there are none."""
    from graphopt.report.figures import figures_of

    for figure in figures_of(place):
        print(dumps({key: None if value != value else value for key, value in asdict(figure).items()}))


def draw(place: Path) -> list[Path]:
    """Curves, bars, how trainings went, and of every setting the answer that gains most, into a pictures folder."""
    from graphopt.report.answer import Answer
    from graphopt.report.pictures.curves import draw_study
    from graphopt.report.pictures.training import draw_training
    from graphopt.report.tables.read_rows import collect

    folder, found = (place if place.is_dir() else place.parent) / "pictures", collect(place)
    files = draw_study(found, folder) + draw_training(place, folder)
    for entries in found.by_setting().values():
        there = [e for e in entries if e.decision is not None and is_there(e.decision)]
        shown = max(there, key=lambda e: (e.ops <= EASY_TO_READ, e.speedup), default=None)
        if shown is not None and shown.decision is not None:
            files += Answer.load(shown.decision).draw(folder)
    return files


def draw_learning(place: Path) -> list[Path]:
    """The picture beside the table."""
    from graphopt.report.learning import learning_lines
    from graphopt.report.pictures.forest import draw_forest

    return draw_forest(learning_lines(place), place)


def draw_scores(place: Path) -> list[Path]:
    """The picture beside the table."""
    from graphopt.report.error_aware import read_rows
    from graphopt.report.pictures.scores import draw_es

    return draw_es(read_rows(place), place.parent)


def page_of(place: Path) -> Path:
    """Where the page of a folder, or of a rows.jsonl, is written."""
    return (place if place.is_dir() else place.parent) / "report.html"


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="graphopt report", description="Tables, curves and replay of stored runs.")
    result.add_argument("place", type=Path, metavar="DIR", help="a study's or a run's folder, or one rows.jsonl")
    result.add_argument(
        "--replay", action="store_true", help="re-price every stored decision; exit 1 on a mismatch; no files"
    )
    result.add_argument("--against", default="local", metavar="METHOD", help="compare pairwise with this method")
    result.add_argument("--improvement-over", metavar="METHOD", help="improvement over this method, and gap")
    result.add_argument("--reach", metavar="METHOD", help="evaluations to reach what METHOD ends at, or best_unlearned")
    result.add_argument("--figures", action="store_true", help="only the experiment's headline figures, as JSON lines")
    result.add_argument("--learning", action="store_true", help="of a folder of studies: does learning pay?")
    result.add_argument("--es", action="store_true", help="of rows of `measure backends`: S(t) and ES(t)")
    result.add_argument("--plots", action="store_true", help="draw into DIR/pictures")
    result.add_argument("--html", action="store_true", help="write DIR/report.html, a page that needs no network")
    result.add_argument("--answers", metavar="METHOD", help="with --html: a line for each answer of this method")
    result.add_argument("--markdown", type=Path, metavar="FILE", help="instead of DIR/table.md")
    result.add_argument("--csv", type=Path, metavar="FILE", help="instead of DIR/table.csv")
    return result


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        if args.figures:
            print_figures(args.place)
            return 0
        files: list[Path] = []
        if args.replay and not (args.markdown or args.csv or args.improvement_over or args.reach):
            print_table(args.place, args.against)  # a check must not change the stored tables
        else:
            files += written(args.place, tables_of(args), args.markdown, args.csv)
        if args.html:
            from graphopt.report.page.study_page import study_page

            files.append(study_page(args.place, page_of(args.place), args.against, args.answers))
        draws = draw_learning if args.learning else draw_scores if args.es else draw
        drawn = draws(args.place) if args.plots else []
        if args.plots and not drawn:
            say("nothing to draw: no row has a price")
        for file in [*files, *drawn]:
            say(f"wrote {file}")
        return replay(args.place) if args.replay else 0
    except (UserError, GraphError) as error:
        say(error, sys.stderr)
        return 1
