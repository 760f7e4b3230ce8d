"""The contest on intra-operator parallelism: costs against the best of twenty teams, as published."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import Key, gain

BEST = {
    "iopddl-A": 6548641531.0, "iopddl-G": 217039.0, "iopddl-K": 2274276676.0, "iopddl-M": 49928460991.0,
    "iopddl-S": 1534613444.0, "iopddl-T": 682895254913.0,
}  # fmt: skip # costs of the best team of each, within the contest's seconds on 8 cores
LEARNED = "learned_"  # as names of policies begin that other families have taught
SEARCH, SHORT = "sharding_search", "sharding_short"
GENERALISTS = ("local", "annealing", "brkga")  # at 5 % of the seconds; NAME_long: at all
PEERS = ("default", *GENERALISTS, *(f"{name}_short" for name in GENERALISTS), *(f"{name}_long" for name in GENERALISTS))


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """`points`: best team / ours, at most 1, of medians over seeds, in mean over instances (low, high: of each the
    worst and the best seed);
    `over_best_team/INSTANCE`: ours / best team; `over_best_team_at_5_percent/INSTANCE`; `points_of/ALGO`. At 5 % of the
    seconds, in percent, paired, families counted once: `learned_over_untrained`, policies that other families have
    taught over the search as it is; `learned_over_gap`, over the same choice of regions by their gaps alone;
    `gap_over_untrained` and `priced_over_untrained`: settings without learning."""
    found = [_points("points", rows, SEARCH), _points("points_at_5_percent", rows, SHORT)]
    found += [_points(f"points_of/{peer}", rows, peer) for peer in PEERS]
    for name, algo in (("over_best_team", SEARCH), ("over_best_team_at_5_percent", SHORT)):
        for graph, costs in sorted(_costs(rows, algo).items()):
            over = [cost / BEST[graph] for cost in costs]
            found.append(Figure(f"{name}/{graph.removeprefix('iopddl-')}", median(over), min(over), max(over)))
    return [*(figure for figure in found if figure is not None), *_comparisons(rows)]


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    family = {row["graph"]: row["family"] for row in rows}
    learned, untrained, gap = _judged(rows, LEARNED), _judged(rows, SHORT), _judged(rows, "sharding_gap")
    return [
        *gain("learned_over_untrained", learned, untrained, family),
        *gain("learned_over_gap", learned, gap, family),
        *gain("gap_over_untrained", gap, untrained, family),
        *gain("priced_over_untrained", _judged(rows, "sharding_priced"), untrained, family),
    ]


def _judged(rows: Sequence[Mapping[str, Any]], beginning: str) -> dict[Key, float]:
    """Costs of answers of algorithms whose names begin so."""
    return {(row["graph"], row["seed"]): float(row["judged"]) for row in rows if row["algo"].startswith(beginning)}


def _points(name: str, rows: Sequence[Mapping[str, Any]], algo: str) -> Figure | None:
    costs = _costs(rows, algo)
    if not costs:
        return None
    value, low, high = (
        fmean(min(1.0, BEST[graph] / of(each)) for graph, each in costs.items()) for of in (median, max, min)
    )  # fmt: skip
    return Figure(name, value, low, high)


def _costs(rows: Sequence[Mapping[str, Any]], algo: str) -> dict[str, list[float]]:
    """Instance -> costs of its seeds."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row["algo"] == algo and row["graph"] in BEST:
            found.setdefault(row["graph"], []).append(float(row["judged"]))
    return found
