"""The error-aware speed-up score: `graphopt report ROWS --es`, of rows as `graphopt measure backends` writes them.

After Li, Liu, Jiang et al., "GraphNet: A Large-Scale Computational Graph Dataset for Tensor Compiler Research" (arXiv
2510.24035), with the settings of its own analysis. A score is the geometric mean over samples, by the tolerance t:

- S(t): the speed-up over eager execution where results are close at t (at 0 for t above), to the power 1 + p (p = 0)
  where it is slower; b = 0.1 where they are not, or nothing runs
- ES(t): the same; wrong results count 1 from t = 1 on, and all failures count 1 from t = 3 on.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.utils.limits import MIB, read_bytes
from graphopt.core.utils.plain_json import is_finite, is_seconds
from graphopt.report.tables.statistics import Interval, bootstrap
from graphopt.report.tables.table import Table

TOLERANCES = range(-10, 5)
FAILED = 0.1  # b
SLOWER = 0.0  # p
WRONG_COUNTS, ANY_COUNTS = 1, 3  # the t from which failures count 1
MOST_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class BackendRow:
    """speedup: over eager execution, None where it does not run. closeness: the lowest t at which results are close."""

    sample: str
    backend: str
    speedup: float | None
    closeness: int | None


def read_rows(file: Path) -> list[BackendRow]:
    """Raises UserError where a line is no such row."""
    rows = []
    try:
        for number, line in enumerate(read_bytes(file, MOST_BYTES).splitlines(), 1):
            rows.append(_row(line, f"line {number} of {file}"))
    except Unreadable as error:
        raise UserError(str(error)) from None
    if not rows:
        raise UserError(f"{file} has no rows; graphopt measure backends writes them")
    return rows


def _row(line: bytes, place: str) -> BackendRow:
    try:
        row: Any = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not (isinstance(row, dict) and isinstance(row.get("sample"), str) and isinstance(row.get("backend"), str)):
        raise UserError(f"{place} is no row of graphopt measure backends")
    speedup, close = row.get("speedup"), row.get("closeness")
    if not (speedup is None or is_seconds(speedup)) or not (close is None or is_finite(close)):
        raise UserError(f"{place} has a speedup or closeness that is no number")
    return BackendRow(row["sample"], row["backend"], speedup, close)


def score(row: BackendRow, t: int, *, error_aware: bool) -> float:
    """Of one sample; error_aware: of ES(t), else of S(t)."""
    if row.speedup is not None and row.closeness is not None and row.closeness <= min(t, 0):
        return row.speedup if row.speedup >= 1 else row.speedup ** (1 + SLOWER)
    counted = t >= ANY_COUNTS or (t >= WRONG_COUNTS and row.speedup is not None)
    return 1.0 if error_aware and counted else FAILED


def scores(rows: Sequence[BackendRow], t: int, *, error_aware: bool) -> Interval:
    """The geometric mean over samples, with its interval."""
    logs = np.log([[score(row, t, error_aware=error_aware)] for row in rows])
    return bootstrap(logs, [row.sample for row in rows]).of(np.exp)


def score_tables(rows: Sequence[BackendRow]) -> list[Table]:
    """ES(t) and S(t) by backends; of two backends also the ratio of ES(t), sample by sample."""
    by = by_backend(rows)
    title = f"ES(t), S(t) of {len({row.sample for row in rows})} samples: geometric mean of speed-ups over eager"
    lines = []
    for t in TOLERANCES:
        cells = [f"{t}"]
        for found in by.values():
            cells += [scores(found, t, error_aware=True).text(".3f"), f"{scores(found, t, error_aware=False).mean:.3f}"]
        if len(by) == 2:
            first, second = (np.log([[score(row, t, error_aware=True)] for row in found]) for found in by.values())
            cells.append(bootstrap(second - first, [row.sample for row in rows if row.backend == next(iter(by))])
                         .of(np.exp).text(".4f"))  # fmt: skip
        lines.append(cells)
    columns = ["t", *(name for backend in by for name in (f"ES, {backend}", f"S, {backend}"))]
    columns += ["{1} over {0}, ES".format(*by)] if len(by) == 2 else []
    return [Table(title, columns, lines)]


def by_backend(rows: Sequence[BackendRow]) -> dict[str, list[BackendRow]]:
    """In the order in which backends appear, each with its samples by name. Raises UserError where one lacks any."""
    found: dict[str, dict[str, BackendRow]] = {}
    for row in rows:
        found.setdefault(row.backend, {})[row.sample] = row
    samples = {row.sample for row in rows}
    for backend, own in found.items():
        if missing := samples - own.keys():
            raise UserError(f"{backend} has no row of {sorted(missing)[0]}; graphopt measure backends measures it")
    return {backend: [own[name] for name in sorted(own)] for backend, own in found.items()}
