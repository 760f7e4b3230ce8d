"""`rows.jsonl`: one JSON object per graph, method, seed and budget. Written line by line and synced, so a killed run
loses nothing that it finished; a line cut short by a kill is dropped when the file is opened again.

Fields (prices in the objective's unit, seconds or bytes; null where it does not apply, and for a price of a solved row
that is infinite, which is read as such; no number is ever NaN):

- the problem: study, cell, dataset, split, graph, graph_hash, family, ops, opaque (of these, those of unknown
  operators, with which nothing is fused), uncounted (whose FLOP are not all counted), task, machine, cost, judge,
  objective
- the method: encoder (null where the algorithm takes none; older rows name one all the same), algo, seed, params,
  train_evals, train_seconds, device, commit, config_hash
- the budget: evals_cap, seconds_cap (null: unlimited); its use: evals, distinct, seconds
- the result: initial (the default heuristic's price, by the judge), searched_initial (the same by the search's cost
  model), searched (the best found, by the search's cost model), bound (that an exact method proved and no decision can
  beat, 0 without a proof), judged (the same, by the judge), valid (the independent check), trace ([evaluations,
  seconds, best] at improvements, thinned), approach (the same of decisions while none was better than the default),
  decision (file in the cell)
- of measured prices: noise (the relative standard error of judged), measurements (timings that it rests on)
- status: ok | infeasible (no plan found fits the devices' memory: judged is inf) | failed | illegal, reason (of an ok
  row the optimiser's remark about its answer, mostly none)

`finished.json` says that every row which a call asked for is there, so that the next call skips the cell:

    {"request": digest of the request and of the data, "files": {"rows.jsonl": bytes, "decisions/NAME.npz": ...}}

It is believed as long as the request is the same and the files have the sizes that it names.
"""

import hashlib
import json
import math
import os
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable, UserError, writing
from graphopt.core.utils.limits import MIB, read_bytes, read_json, unpack_xz
from graphopt.core.utils.plain_json import dumps
from graphopt.core.utils.whole import whole_file

Row = dict[str, Any]
ROWS, PACKED_ROWS = "rows.jsonl", "rows.jsonl.xz"  # of a cell; of a packed study, all cells' after each other
ROWS_BYTES = 1024 * MIB
FINISHED, FINISHED_BYTES = "finished.json", 64 * MIB  # beside the rows
DONE = ("ok", "infeasible")  # solved: not tried again
KEY = ("graph_hash", "algo", "seed", "split", "evals_cap", "seconds_cap", "config_hash")
TEXTS = ("study", "cell", "dataset", "split", "graph", "graph_hash", "family", "task", "machine", "cost", "judge",
         "objective", "encoder", "algo", "device", "commit", "config_hash", "status", "reason", "decision",
         "model")  # fmt: skip
NUMBERS = ("ops", "seed", "params", "train_evals", "train_seconds", "evals_cap", "seconds_cap", "evals", "distinct",
           "seconds", "initial", "searched_initial", "searched", "bound", "judged", "noise",
           "measurements")  # fmt: skip
CURVES = ("trace", "approach")
PRICES = ("initial", "searched_initial", "searched", "judged")  # infinite where a plan does not fit: null in the file


def read(path: Path) -> list[Row]:
    """The rows of a file, without lines that are no rows; none when there is no file."""
    return [row for row in map(parse, lines(path)) if row is not None]


def lines(path: Path) -> list[str]:
    """The lines of a file that hold something; none when there is no file. Raises UserError when it cannot be read."""
    try:
        text = text_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; make it readable, or move it away") from error
    return [line for line in text.split("\n") if line.strip()]


def text_of(path: Path) -> str:
    """The text of a file of rows, unpacked if its name ends in .xz. Raises OSError, or Unreadable for a packed one."""
    if path.suffix == ".xz":
        return unpack_xz(read_bytes(path, ROWS_BYTES), ROWS_BYTES, str(path)).decode(errors="replace")
    return path.read_text(errors="replace")


def parse(line: str) -> Row | None:
    """The row of a line; None where it was cut short, is damaged, or has a field of another type than rows have."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    texts = all(isinstance(row.get(field), str | None) for field in TEXTS)
    fits = texts and all(map(_is_number, map(row.get, NUMBERS))) and all(map(_is_curve, map(row.get, CURVES)))
    return priced(row) if fits else None


def priced(row: Row) -> Row:
    """The row of a line of JSON, where an infinite price is null."""
    if row.get("status", "ok") not in DONE:
        return row
    infinite = {field: math.inf for field in PRICES if field in row and row[field] is None}
    curves = {field: [[*step[:-1], math.inf] if step[-1] is None else step for step in row[field]]
              for field in CURVES if _is_curve(row.get(field)) and row.get(field)}  # fmt: skip
    return {**row, **infinite, **curves}


def _is_number(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    return value is None or (isinstance(value, float) and not math.isnan(value)) or whole


def _is_curve(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(isinstance(step, list) and step and all(map(_is_number, step)) for step in value)
    )


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The key by which rows are the same result."""
    return tuple(row.get(field) for field in KEY)


class RowFile:
    """Appends rows to one file. Keeps finished ones. Rows of other states are dropped before the first new one, since
    their work is tried again. Lines that are no rows are dropped as well, with a warning when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = lines(path)
        self._stored = [row for row in map(parse, found) if row is not None]  # of all calls
        self.done = _done(self._stored)
        self._clean = False  # nothing in the file that is to be dropped
        damaged = len(found) - len(self._stored)
        if damaged:
            warnings.warn(f"{path}: {damaged} lines are no rows and do not count", stacklevel=2)

    @property
    def rows(self) -> list[Row]:
        """The rows of the file."""
        return list(self._stored)

    def append(self, row: Row) -> None:
        """Writes one row and waits until it is on disk. Raises UserError when it cannot be written."""
        if not self._clean or key_of(row) in self.done:
            self._rewrite([old for old in self._kept() if key_of(old) != key_of(row)])
        self._clean = False  # if the disk takes half a line, the next row does not follow it
        _append(self.path, as_lines([row]))
        self._clean = True
        self._stored.append(row)
        if row["status"] in DONE:
            self.done[key_of(row)] = row

    def set_aside(self, name: str, unwanted: Callable[[Row], bool]) -> int:
        """Moves done rows into the file `name` beside this one; returns how many."""
        moved = [row for row in self.done.values() if unwanted(row)]
        if moved:
            _append(self.path.with_name(name), as_lines(moved))
            self._rewrite([row for row in self._kept() if not unwanted(row)])
            self.done = _done(self._stored)
        return len(moved)

    def note(self, row: Row) -> None:
        """Writes a row about the whole cell (illegal, failed), unless the same is written already."""
        if any(old.get("status") == row["status"] and old.get("reason") == row["reason"] for old in self._stored):
            return
        self.append(row)

    def _kept(self) -> list[Row]:
        """Without rows that earlier calls did not bring to an end."""
        return self._stored if self._clean else [row for row in self._stored if row.get("status") in DONE]

    def _rewrite(self, rows: list[Row]) -> None:
        if self.path.exists():
            with writing(self.path), whole_file(self.path) as file:
                file.write(as_lines(rows).encode())
        self._stored, self._clean = rows, True


def _done(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
    return {key_of(row): row for row in rows if row.get("status") in DONE}


def as_lines(rows: Iterable[Row]) -> str:
    """The lines of rows. Raises ValueError where a number is NaN."""
    return "".join(dumps(row) + "\n" for row in rows)


def _append(path: Path, text: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def was_finished(cell: Path, request: str) -> bool:
    """Whether this request was finished: files have the sizes that `finished.json` names. Unreadable: no."""
    try:
        said = read_json(cell / FINISHED, FINISHED_BYTES)
    except Unreadable:
        return False
    if not isinstance(said, dict) or said.get("request") != request or not isinstance(said.get("files"), dict):
        return False
    try:
        return all(os.stat(cell / name).st_size == size for name, size in said["files"].items())
    except (OSError, ValueError):
        return False


def mark_finished(cell: Path, request: str, rows: Collection[Row]) -> None:
    """rows: those that are done. Raises UserError when the disk does not take it."""
    names = [row[key] for row in rows for key in ("decision", "model") if row.get(key)]
    with writing(cell / FINISHED), whole_file(cell / FINISHED) as part:
        files = {name: os.stat(cell / name).st_size for name in (ROWS, *names) if rows}
        part.write(json.dumps({"request": request, "files": files}).encode())


def digest_of(files: Sequence[Path]) -> str:
    """Of the names and contents of files, empty where there are none. Raises OSError when one cannot be read."""
    states = [(file, file.stat()) for file in files]
    said = [f"{file} {_content(file, at.st_size, at.st_mtime_ns, at.st_ctime_ns)}\n" for file, at in states]
    return hashlib.sha256("".join(said).encode(errors="backslashreplace")).hexdigest()[:16] if files else ""


@lru_cache(maxsize=4096)
def _content(file: Path, size: int, modified: int, changed: int) -> str:
    """The cells of a sweep read the same files."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
