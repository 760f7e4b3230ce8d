"""`graphopt board` prices all entries again and writes the page (docs/leaderboard.md).

Points of an entry are the best cost of an instance over its own, 0 where it has none, and their mean.
`--enter STUDY PROBLEM/NAME --algo ALGO` makes an entry of a finished study's answers.
"""

import argparse
import csv
import io
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from graphopt.core.errors import UserError, writing
from graphopt.core.utils.commit import commit
from graphopt.core.utils.marks import whole
from graphopt.core.utils.terminal import printable, say
from graphopt.core.utils.whole import whole_file, whole_folder
from graphopt.report.leaderboard.contests import Contest, is_name, read_contest, read_contests
from graphopt.report.leaderboard.judging import ENTRY, BoardEntry, judged_entries
from graphopt.report.page.page import Part, page_text
from graphopt.report.replay import decision_of
from graphopt.report.tables.read_rows import read_rows, row_files
from graphopt.report.tables.table import Table
from graphopt.run.records import packed
from graphopt.run.records.answer_file import copy

CSV_NAME, PAGE_NAME = "costs.csv", "index.html"
ABOUT = (
    "Every answer is priced again from the decisions in its entry, by the cost model that its problem names, and "
    "checked by independent code. Points of an instance are the lowest cost of all entries over an entry's own. An "
    f"entry's points are their mean, with 0 where it has no valid answer (-). Raw costs: {CSV_NAME}."
)


@dataclass(frozen=True, slots=True)
class Standing:
    """points: [instance] of an entry, None where it has no price there; mean: over all instances."""

    entry: BoardEntry
    points: Mapping[str, float | None]
    mean: float
    rank: int


def standings(contest: Contest, entries: Sequence[BoardEntry]) -> list[Standing]:
    """The best first; entries of equal points share a rank."""
    best = {}
    for instance in contest.instances:
        costs = [cost for entry in entries if (cost := entry.cost_of(instance.name)) is not None]
        best[instance.name] = min(costs, default=0.0)
    found = [(entry, _points(entry, best)) for entry in entries]
    means = {entry.name: sum(p or 0.0 for p in points.values()) / max(len(best), 1) for entry, points in found}
    ordered = sorted(found, key=lambda pair: (-means[pair[0].name], pair[0].name))
    ranks = {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}
    return [Standing(entry, points, means[entry.name], ranks[entry.name]) for entry, points in ordered]


def _points(entry: BoardEntry, best: Mapping[str, float]) -> dict[str, float | None]:
    costs = {name: entry.cost_of(name) for name in best}
    return {name: None if cost is None else 1.0 if cost == best[name] else best[name] / cost
            for name, cost in costs.items()}  # fmt: skip


Board = tuple[Contest, Sequence[Standing]]


def build(place: Path, root: Path, out: Path, only: Sequence[str]) -> int:
    """Writes page and CSV; how many answers were refused."""
    began, boards = time.monotonic(), list[Board]()
    for contest in read_contests(place, root, only):
        for folder in sorted(contest.folder.iterdir()):
            if folder.is_dir() and not (folder / ENTRY).is_file():
                say(f"{contest.name}/{folder.name} is no entry: it has no entry.yaml", sys.stderr)
        boards.append((contest, standings(contest, judged_entries(contest, root))))
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    seconds, version = time.monotonic() - began, (commit() or "unknown")[:8]
    made = f"Built {today} from commit {version}, all answers priced in {seconds:.0f} s."
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in ((PAGE_NAME, page(boards, made)), (CSV_NAME, costs_csv(boards))):
            with whole_file(out / name) as file:
                file.write(content.encode())
    refused = 0
    for contest, found in boards:
        for entry in (standing.entry for standing in found):
            lines = [entry.refusal] if entry.refusal else []
            lines += [f"{s.instance}: {s.reason}" for s in entry.scores if s.cost is None and s.reason != "no answer"]
            for line in lines:
                say(f"refused: {contest.name}/{entry.name}: {line}", sys.stderr)
            refused += len(lines)
    say(f"wrote {out / PAGE_NAME} and {out / CSV_NAME}")
    return refused


def page(boards: Sequence[Board], built: str) -> str:
    """The page as HTML. built: when, and from which commit. Text of files is made printable and escaped."""
    return page_text("graphopt leaderboard", f"{ABOUT} {built}", [part for each in boards for part in _parts(*each)])


def _parts(contest: Contest, found: Sequence[Standing]) -> Iterator[Part]:
    """Entries by points, costs by instance, and refusals."""
    about = f"{contest.about} {len(contest.instances)} instances of dataset={' or '.join(contest.datasets)}, "
    about += f"costs in {contest.unit}."
    if contest.equality is not None:
        about += (f" Each answer is run against the original on {contest.equality.draws} draws of weights and inputs, "
                  "new for this page. They agree where no output differs by more than "
                  f"{contest.equality.tolerance:g} of its largest.")  # fmt: skip
    shown, total = [standing for standing in found if not standing.entry.refusal], len(contest.instances)
    columns = ["entry", "by", "method", "budget", "hardware", "points", "priced", "best"]
    rows = [[standing.entry.words[key] for key in ("title", "by", "method", "budget", "hardware")] + [
        f"{standing.mean:.4f}", f"{sum(point is not None for point in standing.points.values())}/{total}",
        str(sum(point == 1.0 for point in standing.points.values()))] for standing in shown]  # fmt: skip
    yield Part(contest.title, table=Table("", columns, rows, left=5), note=about)
    names, costs, best = ["instance", "without search"], list[list[str]](), set[tuple[int, int]]()
    for line, instance in enumerate(contest.instances):
        found_here = [(standing.entry.cost_of(instance.name), standing) for standing in shown]
        costs.append([instance.name, f"{instance.baseline:.6g}",
                      *("-" if cost is None else f"{cost:.6g}" for cost, _ in found_here)])  # fmt: skip
        best |= {(line, column) for column, (_, one) in enumerate(found_here, 2) if one.points[instance.name] == 1.0}
    titles = [standing.entry.words["title"] for standing in shown]
    yield Part(f"{contest.title}: every instance", table=Table("", names + titles, costs, best), filter=True)
    lines = [["not counted", line] for standing in found for line in standing.entry.refusals]
    lines += [["not here", f"{name}: {why}"] for name, why in contest.absent.items()]
    if lines:
        yield Part(f"{contest.title}: left out", table=Table("", ["", ""], lines, left=2))


def costs_csv(boards: Sequence[tuple[Contest, Sequence[Standing]]]) -> str:
    """problem, entry, instance, cost, points, reason; a line for every entry and instance."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["problem", "entry", "instance", "cost", "points", "reason"])
    for contest, standings in boards:
        for standing in standings:
            entry = standing.entry
            if entry.refusal:
                writer.writerow([contest.name, _plain(entry.name), "", "", "", _plain(entry.refusal)])
            for score in entry.scores:
                point = standing.points[score.instance]
                numbers = ["", ""] if score.cost is None else [repr(score.cost), f"{point:.6f}"]
                writer.writerow([contest.name, _plain(entry.name), score.instance, *numbers, _plain(score.reason)])
    return out.getvalue()


def _plain(value: str) -> str:
    """Without signs that a spreadsheet would take for a formula."""
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def enter(
    contest: Contest, study: Path, target: Path, root: Path, *, algo: str, evals: int | None, seed: int
) -> list[str]:
    """Writes the entry; returns the names of the instances that it has answers to. Answers of a packed study
    below `results` are named, others are copied. Raises UserError."""
    read = [row for row in read_rows(row_files(study))[0] if row.get("status") == "ok"]
    of = {str(row["graph_hash"]): row for row in read if row.get("algo") == algo and row.get("seed") == seed
          and evals in (None, row.get("evals_cap"))}  # fmt: skip
    found = {i.name: of[i.graph.hash] for i in contest.instances if i.graph.hash in of}
    if not found:
        held = ", ".join(sorted({str(row["algo"]) for row in read})) or "nobody"
        raise UserError(f"{study} holds no answer of {algo} to an instance of {contest.name}, whose graphs are of "
                        f"dataset={' or '.join(contest.datasets)}; it holds those of {held}")  # fmt: skip
    if target.exists():
        raise UserError(f"{target} exists: move it away, or give another name")
    with writing(target), whole_folder(target.absolute()) as folder:
        costs = {name: float(row["judged"]) for name, row in found.items()}
        most, longest = (max(float(row[field]) for row in found.values()) for field in ("evals", "seconds"))
        words = {"title": algo, "by": os.environ.get("USER") or "unknown", "method": f"algo={algo}",
                 "budget": f"at most {most:,.0f} evaluations and {longest:.3g} s an instance",
                 "hardware": "not said"}  # fmt: skip
        places = {name: decision_of(row) for name, row in found.items()}
        (folder / ENTRY).write_text(yaml.safe_dump({**words, "costs": costs, **_answers(places, folder, root)},
                                                   sort_keys=False, width=110))  # fmt: skip
    return list(found)


def _answers(places: Mapping[str, Path], folder: Path, root: Path) -> dict[str, Any]:
    packs = {place[0] if (place := packed.place_of(path)) else None for path in places.values()}
    pack = packs.pop() if len(packs) == 1 else None
    if pack is not None and pack.resolve().is_relative_to((root / "results").resolve()):
        digests = {name: path.name.partition("#")[2] for name, path in places.items()}
        return {"answers": str(pack.resolve().relative_to(root.resolve())), "digests": digests}
    for name, path in places.items():
        copy(path, folder / f"{name}.npz")
    return {}


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="graphopt board", description="Prices all entries again and writes the leaderboard's page."
    )
    result.add_argument("place", type=Path, nargs="?", default=Path("leaderboard"), metavar="FOLDER",
                        help="the leaderboard's folder; default: leaderboard")  # fmt: skip
    result.add_argument("--out", type=Path, default=Path("outputs/leaderboard"), help="the folder to write into")
    result.add_argument("--problem", action="append", default=[], metavar="NAME", help="only this problem (repeatable)")
    result.add_argument(
        "--enter", nargs=2, metavar=("STUDY", "PROBLEM/NAME"), help="make an entry of a study's answers"
    )
    result.add_argument("--algo", help="of --enter: whose answers")
    result.add_argument("--evals", type=whole, help="of --enter: of which budget, where the study has several")
    result.add_argument("--seed", type=whole, default=0, help="of --enter: of which seed")
    return result


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    root = args.place.resolve().parent
    if args.enter is None:
        build(args.place, root, args.out, args.problem)
        return 0
    study, (problem, _, name) = Path(args.enter[0]), args.enter[1].partition("/")
    if not args.algo or not is_name(problem) or not is_name(name):
        raise UserError("--enter needs STUDY PROBLEM/NAME, and --algo with the name of the algorithm")
    folder = args.place / problem
    contest = read_contest(folder, root)
    found = enter(contest, study, folder / name, root, algo=args.algo, evals=args.evals, seed=args.seed)
    say(f"wrote {folder / name}: {covered(contest, found)}; say in entry.yaml by whom, how and on what")
    return 0


def covered(contest: Contest, found: Sequence[str]) -> str:
    """How many of a problem's instances there are answers to, and to which there is none."""
    every = [*(instance.name for instance in contest.instances), *contest.absent]
    lacking = [name for name in every if name not in found]
    without = f", none to {', '.join(lacking[:10])}{' and more' if len(lacking) > 10 else ''}" if lacking else ""
    return f"answers to {len(found)} of the problem's {len(every)} instances{without}"
