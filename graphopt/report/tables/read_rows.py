"""Rows of every run below a folder, read tolerantly and put into comparable groups."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphopt.core.errors import UserError
from graphopt.core.utils.plain_json import places_of_nan
from graphopt.graphs.regal import KNOWN
from graphopt.problems.cost_model import Price, better
from graphopt.run.records.rows import DONE, PACKED_ROWS, ROWS, priced, text_of

Setting = tuple[tuple[str, str], ...]  # (field, value) pairs, equal for prices that may be compared
SETTING_FIELDS = ("study", "task", "machine", "cost", "judge", "objective", "split")
IDENTITY_FIELDS = (
    *("study", "dataset", "split", "graph", "graph_hash", "task", "machine", "cost", "judge", "objective", "encoder"),
    *("algo", "seed", "evals_cap", "seconds_cap", "config_hash", "backend", "budget"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One solved graph: one row whose prices are finite."""

    setting: Setting
    graph: str  # unique key: content hash, or data set and name
    graph_name: str
    family: str
    dataset: str
    ops: int
    method: str  # algorithm, with the encoder where several were run
    budget: float  # evaluations allowed; inf when only time was limited
    learned: bool  # has parameters, so that the encoder is a part of it
    seed: int
    initial: float  # default heuristic, by the judge
    searched: float
    judged: float
    bound: float  # no decision costs less, as an exact method has proved; 0 where nothing is proved
    noise: float  # relative standard error of the judge's prices, 0 for simulators
    train_evals: int  # prices paid for before anything was solved
    evals: int
    seconds: float
    best_seconds: float  # when the answer was found; 0 for the default's
    trace: tuple[tuple[float, float], ...]  # (evaluations, best cost by the search's model), in order, thinned
    decision: Path | None = None  # file of the answer, with the whole trace
    approach: tuple[tuple[float, float], ...] = ()  # its own best while that was no better than the default, thinned

    @property
    def speedup(self) -> float:
        return self.initial / self.judged

    @property
    def sampled(self) -> str:
        """The unit that intervals resample: its family; of random graphs, which nobody built alike, the graph."""
        return self.graph if self.family in KNOWN else self.family

    @property
    def lost(self) -> bool:
        """Slower than the default beyond the judge's noise."""
        slower = self.judged > self.initial * (1 + 1e-9)
        return slower and better(Price(self.initial, self.noise), Price(self.judged, self.noise))


@dataclass(frozen=True)
class Collected:
    """The rows and answers below a folder."""

    entries: list[Entry]
    refused: list[dict[str, Any]]  # rows that are no results: failed, illegal
    infeasible: list[dict[str, Any]]  # solved, but no plan was found that fits: judged is infinite
    unpriced: list[dict[str, Any]]  # solved, but another price is missing, infinite or not positive
    broken_lines: int
    files: int

    def by_setting(self) -> dict[Setting, list[Entry]]:
        groups: dict[Setting, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            groups[entry.setting].append(entry)
        return dict(sorted(groups.items()))


def collect(place: Path | str) -> Collected:
    """Reads one rows.jsonl (or rows.jsonl.xz, of a packed study), or all below a folder. Half-written lines are
    counted, not fatal; of rows that repeat (a resumed cell) the last counts. Raises UserError when there are none."""
    files = row_files(Path(place))
    rows, broken = read_rows(files)
    refused = [row for row in rows if row.get("status", "ok") not in DONE]
    solved = [row for row in rows if row.get("status", "ok") in DONE]
    infeasible = [row for row in solved if number(row, "judged") == math.inf]
    priced = [row for row in solved if _priced(row)]
    unpriced = [row for row in solved if not _priced(row) and number(row, "judged") != math.inf]
    labels = method_labels(priced)
    entries: list[Entry] = []
    for row in priced:
        with suppress(TypeError, ValueError, OverflowError, LookupError):  # a field that is nothing that it can be
            entries.append(_entry(row, labels))
    broken += len(priced) - len(entries)
    return Collected(entries, refused, infeasible, unpriced, broken, len(files))


def row_files(place: Path) -> list[Path]:
    """The rows files at or below a place."""
    if place.is_file():
        return [place]
    files = sorted(file for name in (ROWS, PACKED_ROWS) for file in place.rglob(name)) if place.is_dir() else []
    if not files:
        what = "holds no rows.jsonl" if place.is_dir() else "does not exist"
        raise UserError(f"{place} {what}: give a run's or a study's folder, such as outputs/<study>")
    return files


def read_rows(files: Iterable[Path]) -> tuple[list[dict[str, Any]], int]:
    """(rows, number of unreadable lines)."""
    rows: list[dict[str, Any]] = []
    broken = 0
    for file in files:
        cells: dict[str, list[dict[str, Any]]] = defaultdict(list)  # the rows of a packed study are in one file
        for row in map(_parse, filter(str.strip, text_of(file).splitlines())):
            if row is None:
                broken += 1
            else:
                cells[str(row.get("cell"))].append({**row, "_file": str(file)})
        rows += [row for cell in cells.values() for row in _latest(cell)]
    return rows, broken


def _latest(rows: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Without rows that a resumed cell has solved again."""
    latest: dict[tuple[str, ...], dict[str, Any]] = {}
    failed_whole = False
    for row in rows:
        done = row.get("status", "ok") in DONE
        if done and failed_whole:  # a cell that failed as a whole and then succeeded
            latest = {key: old for key, old in latest.items() if old.get("graph") or old.get("status") in DONE}
            failed_whole = False
        failed_whole |= not (done or row.get("graph"))
        latest[tuple(str(row.get(field)) for field in IDENTITY_FIELDS)] = row
    return latest.values()


def _parse(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
        return None if not isinstance(row, dict) or ("NaN" in line and any(places_of_nan(row))) else priced(row)
    except (ValueError, RecursionError):  # no JSON, numbers of thousands of digits, nests without an end
        return None


def method_labels(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """(algo, encoder) -> label; the encoder is named where a learned algorithm ran with several. One that a row says to
    have none takes none, in spite of older rows."""
    encoders: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        encoders[str(row.get("algo"))].add(_encoder(row))
    return {
        (a, e): f"{a}/{e}" if len(found) > 1 and "None" not in found else a
        for a, found in encoders.items()
        for e in found
    }


def _encoder(row: Mapping[str, Any]) -> str:
    """The encoder of a learned method; without parameters it had no part in the answer."""
    return str(row.get("encoder")) if row.get("params") != 0 else "None"


def number(row: Mapping[str, Any], field: str, default: float = math.nan) -> float:
    """The value of a row's field, if it is a number."""
    value = row.get(field)
    return float(value) if isinstance(value, int | float) else default


def _priced(row: Mapping[str, Any]) -> bool:
    prices = [number(row, field) for field in ("initial", "judged")]
    return all(math.isfinite(price) and price > 0 for price in prices)


def _steps(row: Mapping[str, Any], field: str) -> tuple[tuple[float, float], ...]:
    return tuple((float(step[0]), float(step[-1])) for step in row.get(field) or ())


def _best_seconds(row: Mapping[str, Any]) -> float:
    """Of the last improvement; without evaluations the answer's own, and where no step says it those of the solve."""
    trace: Sequence[Sequence[float]] = row.get("trace") or ()
    timed = len(trace) > 0 and len(trace[-1]) == 3 and row.get("evals_cap") != 0
    return float(trace[-1][1]) if timed else number(row, "seconds", 0.0)


def _entry(row: Mapping[str, Any], labels: Mapping[tuple[str, str], str]) -> Entry:
    name, dataset = str(row.get("graph")), str(row.get("dataset"))
    return Entry(
        setting=tuple((field, str(row.get(field))) for field in SETTING_FIELDS),
        graph=str(row.get("graph_hash") or f"{dataset}/{name}"),
        graph_name=name,
        family=str(row.get("family") or "unknown"),
        dataset=dataset,
        ops=int(number(row, "ops", 0)),
        method=labels[str(row.get("algo")), _encoder(row)],
        budget=number(row, "evals_cap", math.inf),
        learned=row.get("params") != 0,
        seed=int(number(row, "seed", 0)),
        initial=number(row, "initial"),
        searched=number(row, "searched", number(row, "judged")),
        judged=number(row, "judged"),
        bound=number(row, "bound", 0.0),
        noise=number(row, "noise", 0.0),
        train_evals=int(number(row, "train_evals", 0)),
        evals=int(number(row, "evals", 0)),
        seconds=number(row, "seconds", 0.0),
        best_seconds=_best_seconds(row),
        trace=_steps(row, "trace"),
        approach=_steps(row, "approach"),
        decision=Path(row["_file"]).parent / str(row["decision"]) if row.get("decision") and "_file" in row else None,
    )
