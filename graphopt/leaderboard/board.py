"""`graphopt board` prices all entries again and writes the page (docs/leaderboard.md).

`--enter STUDY PROBLEM/NAME --algo ALGO` makes an entry of a finished study's answers.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from graphopt.errors import UserError, writing
from graphopt.utils.printable import say
from graphopt.utils.ranges import whole
from graphopt.utils.whole import whole_file

if TYPE_CHECKING:
    from graphopt.leaderboard.contests import Contest


def build(place: Path, root: Path, out: Path, only: Sequence[str]) -> int:
    """Writes page and CSV; how many answers were refused."""
    from graphopt.leaderboard.board_page import CSV_NAME, PAGE_NAME, costs_csv, page
    from graphopt.leaderboard.contests import read_contests
    from graphopt.leaderboard.judging import judged_entries, other_folders
    from graphopt.leaderboard.standings import standings
    from graphopt.utils.commit import commit

    began, boards = time.monotonic(), []
    for contest in read_contests(place, root, only):
        for name in other_folders(contest):
            say(f"{contest.name}/{name} is no entry: it has no entry.yaml", sys.stderr)
        boards.append((contest, standings(contest, judged_entries(contest, root))))
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    seconds, version = time.monotonic() - began, (commit() or "unknown")[:8]
    made = f"Built {today} from commit {version}, all answers priced in {seconds:.0f} s."
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in ((PAGE_NAME, page(boards, made)), (CSV_NAME, costs_csv(boards))):
            with whole_file(out / name) as file:
                file.write(content.encode())
    refused = _say_refused(boards)
    say(f"wrote {out / PAGE_NAME} and {out / CSV_NAME}")
    return refused


def _say_refused(boards: Sequence[tuple[object, Sequence[object]]]) -> int:
    from graphopt.leaderboard.contests import Contest
    from graphopt.leaderboard.standings import Standing

    refused = 0
    for contest, found in boards:
        assert isinstance(contest, Contest)
        for standing in found:
            assert isinstance(standing, Standing)
            entry = standing.entry
            lines = [entry.refusal] if entry.refusal else []
            lines += [f"{s.instance}: {s.reason}" for s in entry.scores if s.cost is None and s.reason != "no answer"]
            for line in lines:
                say(f"refused: {contest.name}/{entry.name}: {line}", sys.stderr)
            refused += len(lines)
    return refused


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
    from graphopt.leaderboard.contests import read_contest
    from graphopt.leaderboard.entering import enter
    from graphopt.leaderboard.yaml_files import is_name

    study, (problem, _, name) = Path(args.enter[0]), args.enter[1].partition("/")
    if not args.algo or not is_name(problem) or not is_name(name):
        raise UserError("--enter needs STUDY PROBLEM/NAME, and --algo with the name of the algorithm")
    folder = args.place / problem
    contest = read_contest(folder, root)
    found = enter(contest, study, folder / name, root, algo=args.algo, evals=args.evals, seed=args.seed)
    say(f"wrote {folder / name}: {covered(contest, found)}; say in entry.yaml by whom, how and on what")
    return 0


def covered(contest: "Contest", found: Sequence[str]) -> str:
    """How many of a problem's instances there are answers to, and to which there is none."""
    every = [*(instance.name for instance in contest.instances), *contest.absent]
    lacking = [name for name in every if name not in found]
    without = f", none to {', '.join(lacking[:10])}{' and more' if len(lacking) > 10 else ''}" if lacking else ""
    return f"answers to {len(found)} of the problem's {len(every)} instances{without}"
