"""`rows.jsonl`: one JSON object per graph, method, seed and budget. Written line by line and synced, so a killed run
loses nothing that it finished; a line cut short by a kill is dropped when the file is opened again.

Fields (prices in the objective's unit, seconds or bytes; null where it does not apply):

- what was solved: study, cell, dataset, split, graph, graph_hash, family, ops, task, machine, cost, judge, objective
- by what: encoder (of learners), algo, seed, params, train_evals, train_seconds, device, commit, config_hash
- under which budget: evals_cap, seconds_cap (null: unlimited); what was used: evals, distinct, seconds
- with which result: initial (the default heuristic's price, by the judge), searched_initial (the same by the search's
  cost model), searched (the best found, by the search's cost model), bound (what an exact method proved that no
  decision can beat, 0 where nothing is proved), judged (the same, by the judge), valid (the
  independent check), trace ([evaluations, seconds, best] at improvements, thinned), approach (the same of
  what was priced while it was no better than the default), decision (file in the cell)
- status: ok | infeasible (no plan found fits the devices' memory: judged is inf) | failed | illegal, reason
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.errors import UserError

Row = dict[str, Any]
DONE = ("ok", "infeasible")  # solved: not tried again
KEY = ("graph_hash", "algo", "seed", "split", "evals_cap", "seconds_cap", "config_hash")


def read(path: Path) -> list[Row]:
    """The rows of a file, without lines that were cut short; none when there is no file."""
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes a row the same result."""
    return tuple(row.get(field) for field in KEY)


class RowFile:
    """Appends rows to one file. Keeps what is done: rows of other states are dropped before the first new one, since
    their work is tried again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stored = read(path)  # of all calls
        self.done = {key_of(row): row for row in self._stored if row.get("status") in DONE}
        self._clean = False

    @property
    def rows(self) -> list[Row]:
        """What the file holds."""
        return list(self._stored)

    def append(self, row: Row) -> None:
        """Writes one row and waits until it is on disk. Raises UserError when it cannot be written."""
        if not self._clean:
            self._stored = [row for row in self._stored if row.get("status") in DONE]
            self._rewrite()
        _write(self.path, "a", json.dumps(row) + "\n")
        self._stored.append(row)
        if row["status"] in DONE:
            self.done[key_of(row)] = row

    def note(self, row: Row) -> None:
        """Writes a row about the whole cell (illegal, failed), unless the same is written already."""
        if any(old.get("status") == row["status"] and old.get("reason") == row["reason"] for old in self._stored):
            return
        self.append(row)

    def _rewrite(self) -> None:
        if self.path.exists():
            text = "".join(json.dumps(row) + "\n" for row in self._stored)
            temporary = self.path.with_suffix(".part")
            _write(temporary, "w", text)
            os.replace(temporary, self.path)
        self._clean = True


def _write(path: Path, mode: str, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open(mode) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another place with output_dir=..., "
            "then run the same command again: finished rows are kept"
        ) from error
