"""What stands apart from the tables: rows that have no ratio, counted with their reasons."""

import math
from collections import Counter, defaultdict
from typing import Any

from graphopt.reporting.tables.lines import repeated
from graphopt.reporting.tables.read_rows import Collected
from graphopt.reporting.tables.sheet import Sheet

NO_PLAN = "no plan found fits the devices' memory"
FITS = "found a plan that fits, where the default does not: no ratio"
_Key = tuple[str, str, str, str]  # status, task, algo, reason


def apart(found: Collected) -> list[Sheet]:
    """Infeasible, failed and illegal rows, rows without prices, pooled configurations, broken lines."""
    counts: Counter[_Key] = Counter(
        _key(row, str(row.get("status")), str(row.get("reason") or "no reason given")) for row in found.refused
    )
    counts.update(_key(row, "ok, no ratio", _why(row)) for row in found.unpriced)
    counts.update(_infeasible(found.infeasible))
    if found.broken_lines:
        counts["unreadable", "", "", "half-written or damaged lines of rows.jsonl, left out"] = found.broken_lines
    pooled = repeated(found.entries)
    if pooled:
        counts["pooled", "", "", "rows equal in method, budget, graph and seed come from several configurations"] = (
            pooled
        )
    if not counts:
        return []
    rows = [[status, task, algo, str(count), reason] for (status, task, algo, reason), count in sorted(counts.items())]
    return [Sheet("rows apart from the table", ["status", "task", "algo", "rows", "reason"], rows, left=3, prose=True)]


def _key(row: dict[str, Any], status: str, reason: str) -> _Key:
    return status, str(row.get("task")), str(row.get("algo")), reason


def _infeasible(rows: list[dict[str, Any]]) -> Counter[_Key]:
    """One line per task and algorithm: the reasons differ in their numbers, so the first stands for all."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[str(row.get("task")), str(row.get("algo"))].append(row)
    counts: Counter[_Key] = Counter()
    for part in groups.values():
        first = f"{part[0].get('graph')}: {part[0].get('reason') or NO_PLAN}"
        counts[_key(part[0], "infeasible", first if len(part) == 1 else f"the first, {first}")] = len(part)
    return counts


def _why(row: dict[str, Any]) -> str:
    initial, judged = (_number(row.get(field)) for field in ("initial", "judged"))
    if initial == math.inf and math.isfinite(judged):
        return FITS
    missing = [field for field, price in (("initial", initial), ("judged", judged)) if not math.isfinite(price)]
    return f"without a price: {', '.join(missing)}" if missing else "a price that is not positive"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
