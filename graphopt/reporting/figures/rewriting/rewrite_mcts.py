"""`rewrite_mcts`: what tree search over e-graphs saves, over what equality saturation saves with as many nodes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
OURS, PEER, RESTARTED = "mcts", "tensat_2000", "tensat"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`mcts_over_tensat/MODEL`: per cent saved over per cent saved by equality saturation with 2,000 nodes, the mean of
    seeds and its interval; where that saves nothing, nothing is said. `mcts_over_restarts/MODEL`: over saturation that
    begins anew from what it has found. `mcts_saves/MODEL`: per cent."""
    found = list[Figure]()
    for model in dict.fromkeys(str(row["family"]) for row in rows):
        saved = {algo: _saved(rows, model, algo) for algo in (OURS, PEER, RESTARTED)}
        if not saved[OURS]:
            continue
        found.append(_over_seeds(f"mcts_saves/{model}", [100 * share for share in saved[OURS]]))
        for name, peer in (("mcts_over_tensat", PEER), ("mcts_over_restarts", RESTARTED)):
            theirs = float(np.mean(saved[peer])) if saved[peer] else 0.0
            if theirs > 0:
                found.append(_over_seeds(f"{name}/{model}", [share / theirs for share in saved[OURS]]))
    return found


def _saved(rows: Sequence[Row], model: str, algo: str) -> list[float]:
    """As a share, of every seed."""
    return [1 - row["judged"] / row["initial"] for row in rows if row["family"] == model and row["algo"] == algo]


def _over_seeds(name: str, values: Sequence[float]) -> Figure:
    return figure(name, bootstrap(np.array(values)[:, None], range(len(values))))
