"""Which decisions of a study are worth a picture."""

import math
from pathlib import Path
from typing import Any

from graphopt.report.tables.read_rows import SETTING_FIELDS, read_rows, row_files
from graphopt.run.records.packed import is_there

EASY_TO_READ = 300  # ops


def best_decisions(place: Path) -> list[Path]:
    """For every setting the decision that gains most, of a graph that fits a picture where there is one."""
    best: dict[tuple[str, ...], tuple[tuple[bool, float], Path]] = {}
    for row in read_rows(row_files(place))[0]:
        file = Path(row["_file"]).parent / str(row.get("decision"))
        gain = _gain(row)
        if not row.get("decision") or not is_there(file) or not math.isfinite(gain):
            continue
        setting = tuple(str(row.get(field)) for field in SETTING_FIELDS)
        merit = (int(row.get("ops", 0)) <= EASY_TO_READ, gain)
        if setting not in best or merit > best[setting][0]:
            best[setting] = (merit, file)
    return [file for _, file in best.values()]


def _gain(row: dict[str, Any]) -> float:
    initial, judged = row.get("initial"), row.get("judged")
    return initial / judged if row.get("status") == "ok" and initial and judged else math.nan
