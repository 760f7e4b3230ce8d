"""How many graphs of the contest are solved, and how they stand to the costs that a winning team published."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import UserError
from graphopt.reporting.figures.figure import Figure

SEARCH = "tile_walk"
SAME = 0.5  # published costs are rounded to whole numbers


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Counts of graphs, of tile_walk's median over seeds, between its worst and its best seed. tiling/valid: both
    evaluators accept every seed's answer; tiling/at_or_below: no dearer than published; tiling/below: cheaper."""
    published = _published()
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["algo"] == SEARCH and row["graph"] in published:
            found.setdefault(row["graph"], []).append(row)
    valid = float(sum(all(row["valid"] for row in of) for of in found.values()))
    sorted_costs = {graph: sorted(row["judged"] for row in of) for graph, of in found.items()}
    counts = [Figure("tiling/valid", valid, valid, valid)]
    for name, margin in (("tiling/at_or_below", SAME), ("tiling/below", -SAME)):
        seeds = range(min(map(len, found.values()), default=0))
        tries = [
            [costs[place] <= published[graph] + margin for graph, costs in sorted_costs.items()] for place in seeds
        ]
        sums = [float(sum(fine)) for fine in tries] or [0.0]
        counts.append(Figure(name, sums[len(sums) // 2], min(sums), max(sums)))
    return counts


def _published() -> dict[str, float]:
    """Graph -> published cost. Raises UserError where the contest's data are not here."""
    file = Path(os.environ.get("GRAPHOPT_CHECK_DATA", "../shared/data")) / "tiling" / "known.json"
    if not file.is_file():
        raise UserError(f"no file {file}: set GRAPHOPT_CHECK_DATA to the folder with the published costs")
    return {graph: float(known["published_cost"]) for graph, known in json.loads(file.read_text()).items()}
