"""Peak memory of the best order found over that of the best of the compilers' orders, both from runs of programs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.core.graph import F64
from graphopt.reporting.figures.figure import Figure

PEERS = ("default", "lpmf", "bfs", "dfs")  # default: the order as it is
SEARCH, ZERO_SHOT = "order_walk", "order_policy"
DRAWS = 10_000


def figures(rows: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """peak_over_best_order: geometric mean over graphs, seeds averaged, with the 95 % interval of drawing graphs anew;
    /worst: its largest graph; /first_five: the largest of the five graphs that the design was measured on;
    peak_zero_shot: the same of what a policy answers at once."""
    peer = _least(rows, PEERS)
    searched, learned = (_ratios(rows, algo, peer) for algo in (SEARCH, ZERO_SHOT))
    found = []
    if searched:
        found.append(_mean("peak_over_best_order", searched))
        found.append(_worst("peak_over_best_order/worst", searched))
        if five := {graph: ratio for graph, ratio in searched.items() if graph in FIVE}:
            found.append(_worst("peak_over_best_order/first_five", five))
    return found + ([_mean("peak_zero_shot", learned)] if learned else [])


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


def _mean(name: str, ratios: Mapping[str, float]) -> Figure:
    logs: F64 = np.log(list(ratios.values()))
    draws = np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(1)
    low, high = np.exp(np.quantile(draws, (0.025, 0.975)))
    return Figure(name, float(np.exp(logs.mean())), float(low), float(high))


def _worst(name: str, ratios: Mapping[str, float]) -> Figure:
    worst = max(ratios.values())
    return Figure(name, worst, worst, worst)
