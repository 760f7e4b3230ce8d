"""Peak memory of the best order found over that of the best of the compilers' orders, both from runs of programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

PEERS = ("default", "lpmf", "bfs", "dfs")  # default: the order as it is
SEARCH, ZERO_SHOT = "order_walk", "order_policy"


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """peak_over_best_order: geometric mean over graphs, seeds averaged, with the 95 % interval over families;
    /worst: its largest graph; /first_five: the largest of the five graphs that the design was measured on;
    peak_zero_shot: the same of what a policy answers at once."""
    peer, family_of = _least(rows, PEERS), {str(row["graph"]): str(row["family"]) for row in rows}
    searched, learned = (_ratios(rows, algo, peer) for algo in (SEARCH, ZERO_SHOT))
    found = []
    if searched:
        found.append(_mean("peak_over_best_order", searched, family_of))
        found.append(_worst("peak_over_best_order/worst", searched))
        if five := {graph: ratio for graph, ratio in searched.items() if graph in FIVE}:
            found.append(_worst("peak_over_best_order/first_five", five))
    return found + ([_mean("peak_zero_shot", learned, family_of)] if learned else [])


FIVE = ("transformer_xl_backward", "vit_backward", "bert_backward", "amoebanet_backward", "deep_rank_backward")


def _least(rows: Sequence[Mapping[str, Any]], algos: Sequence[str]) -> dict[str, float]:
    """Graph -> the least peak of some algorithms."""
    found: dict[str, float] = {}
    for row in rows:
        if row["algo"] in algos:
            found[row["graph"]] = min(row["judged"], found.get(row["graph"], np.inf))
    return found


def _ratios(rows: Sequence[Mapping[str, Any]], algo: str, peer: Mapping[str, float]) -> dict[str, float]:
    """Graph -> an algorithm's peak over the peers' best, geometric mean over seeds."""
    logs: dict[str, list[float]] = {}
    for row in rows:
        if row["algo"] == algo and row["graph"] in peer:
            logs.setdefault(row["graph"], []).append(float(np.log(row["judged"] / peer[row["graph"]])))
    return {graph: float(np.exp(np.mean(values))) for graph, values in logs.items()}


def _mean(name: str, ratios: Mapping[str, float], family_of: Mapping[str, str]) -> Figure:
    logs_GS = np.log([[ratio] for ratio in ratios.values()])
    return figure(name, bootstrap(logs_GS, [family_of[graph] for graph in ratios]).exp())


def _worst(name: str, ratios: Mapping[str, float]) -> Figure:
    worst = max(ratios.values())
    return Figure(name, worst, worst, worst)
