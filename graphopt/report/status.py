"""`graphopt study status DIR`: how far a sweep is, while it runs or after it ended."""

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import printable, say
from graphopt.report.tables.table import Table, print_tables
from graphopt.run.records.rows import FINISHED, ROWS, RowFile
from graphopt.run.sharing import LOCKS, NOTE, held, jobs_of, note_of

State = Literal["done", "running", "pruned", "failed", "stopped"]
BAR = 50  # characters
MOST = 20  # lines of cells that are not done


@dataclass(frozen=True, slots=True)
class CellState:
    """what: who works on it and for how long, or why it failed."""

    name: str
    state: State
    what: str


def states_of(study: Path) -> list[CellState]:
    """Of the cells that were begun, by name. Raises UserError where there is none."""
    if not (study / LOCKS).is_dir():
        raise UserError(f"{study} is no folder of a study that was run; give outputs/STUDY")
    locks = sorted(file for file in (study / LOCKS).iterdir() if (study / file.name).is_dir())
    return [_state(study / lock.name, lock) for lock in locks]


def _state(cell: Path, lock: Path) -> CellState:
    if held(str(lock)):
        who = note_of(lock) or "somebody"
        with suppress(OSError):
            who += f", for {(time.time() - Path(f'{lock}{NOTE}').stat().st_mtime) / 60:.1f} min"
        return CellState(cell.name, "running", who)
    if (cell / FINISHED).is_file():
        return CellState(cell.name, "done", "")
    rows = RowFile(cell / ROWS).rows if (cell / ROWS).is_file() else []
    for row in reversed(rows):
        if row.get("status") in ("failed", "illegal", "pruned"):
            state: State = "pruned" if row["status"] == "pruned" else "failed"
            return CellState(cell.name, state, str(row.get("reason")))
    return CellState(cell.name, "stopped", "nobody works on it any more")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt study status", description="How far a sweep is.")
    parser.add_argument("study", type=Path, metavar="DIR", help="the folder of a study, outputs/STUDY")
    study = parser.parse_args(arguments).study
    found = states_of(study)
    counts: Counter[str] = Counter(one.state for one in found)
    total = max(len(jobs_of(study)), len(found))
    states = ("running", "pruned", "failed", "stopped")
    begun = "".join(f", {counts[state]} {state}" for state in states if counts[state])
    rest = f", {total - len(found)} not begun" if total > len(found) else ""
    full = BAR * counts["done"] // max(1, total)
    say(f"{study}: {counts['done']} of {total} cells done{begun}{rest}")
    say(f"[{'#' * full}{'.' * (BAR - full)}] {100 * counts['done'] / max(1, total):.0f} %")
    open_ = [[one.state, one.name, printable(one.what)] for one in found if one.state != "done"]
    if open_:
        note = f"... and {len(open_) - MOST} more" if len(open_) > MOST else ""
        print_tables([Table("cells that are not done", ["state", "cell", ""], open_[:MOST], left=3, note=note)])
    if total > counts["done"] + counts["pruned"] and not counts["running"]:
        say(f"The command of the sweep, given again, does what is missing; so does: graphopt study retry {study}")
    return 0
