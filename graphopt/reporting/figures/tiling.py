"""How many graphs of the contest are solved, and how they stand to the costs that a winning team published."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graphopt.errors import UserError
from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import gain, priced

READINGS = ("once", "per_operand")  # of shared slices
SEARCH = "tile_walk_{reading}"
LEARNED, PEERS = "learned", {"even": "untrained", "walk": "walk", "saved": "saved", "potential": "potential"}
SHARES = ("1", "2", "5", "20")  # of the contest's seconds, in percent, as names of algorithms end
FEW = "few"  # ... where few evaluations are the budget
SAME = 0.5  # published costs are rounded to whole numbers


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Counts of graphs, of tile_walk's median over seeds, between its worst and its best seed, under each reading of
    shared slices. tiling/READING/valid: both evaluators accept every seed's answer; at_or_below: no dearer than
    published; below: cheaper; proved: a search has proved that no schedule is cheaper.

    tiling/learned_over_PEER: how much faster, in percent, schedules are from a descent by a learned order of moves than
    from one by a peer's, at 2 % of the contest's seconds; _at_...: at others, or after so many evaluations. Peers are
    the untrained order (all moves alike), bytes saved, the most that moves can gain, and tile_walk's own start."""
    published = _published()
    contest = [row for row in rows if row["graph"] in published]
    counts = [figure for reading in READINGS for figure in _counts(contest, reading, published)]
    return [*counts, *_comparisons(contest)]


def _counts(rows: Sequence[Mapping[str, Any]], reading: str, published: Mapping[str, float]) -> list[Figure]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["algo"] == SEARCH.format(reading=reading):
            found.setdefault(row["graph"], []).append(row)
    if not found:
        return []
    costs = {graph: sorted(row["judged"] for row in of) for graph, of in found.items()}
    valid = float(sum(all(row["valid"] for row in of) for of in found.values()))
    counts = [Figure(f"tiling/{reading}/valid", valid, valid, valid)]
    for name, margin in (("at_or_below", SAME), ("below", -SAME)):
        limits = {graph: published[graph] + margin for graph in costs}
        best, median, worst = (
            float(sum(of[place(len(of))] <= limits[graph] for graph, of in costs.items()))
            for place in (lambda _: 0, lambda many: many // 2, lambda many: many - 1)
        )
        counts.append(Figure(f"tiling/{reading}/{name}", median, worst, best))
    proofs = {row["graph"] for row in rows if row["task"] == f"tiling_{reading}" and 0 < row["judged"] <= row["bound"]}
    proved = float(len(proofs))
    return [*counts, Figure(f"tiling/{reading}/proved", proved, proved, proved)]


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Every graph counts once."""
    family, found = {row["graph"]: row["graph"] for row in rows}, list[Figure]()
    budgets = sorted({row["evals_cap"] for row in rows if row["algo"] == f"{LEARNED}_{FEW}"})
    for peer, called in PEERS.items():
        for percent in SHARES:
            ours, theirs = ({(row["graph"], row["seed"]): float(row["judged"]) for row in rows
                             if row["algo"] == f"{who}_{percent}"} for who in (LEARNED, peer))  # fmt: skip
            at = "" if percent == "2" else f"_at_{percent}_percent"
            found += gain(f"tiling/learned_over_{called}{at}", ours, theirs, family)
        for evals in budgets:
            ours, theirs = (priced(rows, f"{who}_{FEW}", evals) for who in (LEARNED, peer))
            found += gain(f"tiling/learned_over_{called}_at_{evals}_evaluations", ours, theirs, family)
    return found


def _published() -> dict[str, float]:
    """Graph -> published cost. Raises UserError where the contest's data are not here."""
    file = Path(os.environ.get("GRAPHOPT_CHECK_DATA", "../shared/data")) / "tiling" / "known.json"
    if not file.is_file():
        raise UserError(f"no file {file}: set GRAPHOPT_CHECK_DATA to the folder with the published costs")
    return {graph: float(known["published_cost"]) for graph, known in json.loads(file.read_text()).items()}
