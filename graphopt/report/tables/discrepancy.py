"""What additive cost models say of unchanged models, against what these take as a whole (X-RLflow, Table 1).

A discrepancy is predicted / measured - 1. Rows are those of `experiment=cost_discrepancy`: of each graph one by every
judge, whose `searched_initial` is the price by the search's cost model.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from graphopt.core.errors import UserError
from graphopt.report.tables.table import Table

ADDITIVE, WHOLE = ("flops", "profiled"), ("torch", "onnxruntime_off", "onnxruntime")
Known = dict[str, tuple[float, float]]
"""Cost model -> (seconds, relative standard error)."""
Row = Mapping[str, Any]


def prices_of(rows: Iterable[Row]) -> dict[str, Known]:
    """Graph -> what the cost models say of it unchanged. Raises UserError where no whole program was measured."""
    found: dict[str, Known] = {}
    for row in rows:
        if row.get("status") == "ok" and row.get("task") == "rewrite":
            known = found.setdefault(str(row["graph"]), {})
            known[str(row["judge"])] = float(row["initial"]), float(row.get("noise") or 0.0)
            known[str(row["cost"])] = float(row["searched_initial"]), 0.0
    if not any(set(known) & set(WHOLE) for known in found.values()):
        raise UserError("no row was judged by a whole program; run experiment=cost_discrepancy first")
    return found


def discrepancies(found: Mapping[str, Known], predicted: str, measured: str) -> list[float]:
    """Of the graphs that both have priced."""
    both = [known for known in found.values() if predicted in known and measured in known]
    return [known[predicted][0] / known[measured][0] - 1.0 for known in both]


def discrepancy_table(found: Mapping[str, Known]) -> Table:
    """Milliseconds of every cost model, and discrepancies in %."""
    models = [name for name in (*ADDITIVE, *WHOLE) if any(name in known for known in found.values())]
    pairs = [(p, m) for m in models if m in WHOLE for p in models if p in ADDITIVE]
    rows = [[graph, *(_ms(known, name) for name in models), *(_percent(known, *pair) for pair in pairs)]
            for graph, known in found.items()]  # fmt: skip
    off = [discrepancies(found, *pair) for pair in pairs]
    sizes = [f"{100 * sum(map(abs, each)) / len(each):.1f}" if each else "nan" for each in off]
    rows.append(["mean of absolute values", *("" for _ in models), *sizes])
    columns = ["graph", *(f"{name} ms" for name in models), *(f"{p} to {m} %" for p, m in pairs)]
    note = ("flops: a roofline of every op; profiled: every op measured alone; torch: eager, onnxruntime: with its own "
            "optimisations, or with them off. A to B %: A / B - 1.")  # fmt: skip
    return Table("sums over ops against whole programs", columns, rows, note=note)


def _ms(known: Known, name: str) -> str:
    if name not in known:
        return "-"
    seconds, noise = known[name]
    return f"{1e3 * seconds:.3g}" + (f" ±{100 * noise:.1g} %" if noise else "")


def _percent(known: Known, predicted: str, measured: str) -> str:
    found = discrepancies({"": known}, predicted, measured)
    return f"{100 * found[0]:+.1f}" if found else "-"
