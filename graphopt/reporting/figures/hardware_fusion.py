"""`hardware_fusion`: time over the compiler's default, raced in fresh processes, for whole steps and for the graphs
that torch.compile makes, with numbers equal or close."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.problems.cost_model import Price, better
from graphopt.ranking.agreement import MOST
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
KINDS = {"lowered_step": "whole_step", "lowered_compiled": "aot"}
OWN, POLICY = "compiler_search", "compiler_policy"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`KIND/NUMERICS`: geometric mean over graphs, of the search; `KIND/NUMERICS/ALGO` of its peers; intervals over
    families. `slower_than_default`: answers that are shown to be slower. `evals_to_90`: evaluations until the policy
    has nine tenths of what the search gains in the end, over those of the search (geometric mean), and of each
    graph both numbers; where that is never reached, all that it had, counted in `evals_to_90/missed`."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        kind, numerics = KINDS.get(str(row["dataset"])), str(row["task"]).removeprefix("fusion_")
        if kind is not None:
            groups.setdefault((kind, numerics, str(row["algo"])), []).append(row)
    found = [_mean("/".join([kind, numerics] + [algo] * (algo != OWN)), group)
             for (kind, numerics, algo), group in sorted(groups.items())]  # fmt: skip
    slower = float(sum(map(_slower, rows)))
    return [*found, _exact("slower_than_default", slower), *_of_policy(rows)]


def _mean(name: str, rows: Sequence[Row]) -> Figure:
    families: dict[str, list[float]] = {}
    for row in rows:
        families.setdefault(str(row["family"]), []).append(math.log(row["judged"] / row["initial"]))
    return _over_graphs(name, [sum(logs) / len(logs) for logs in families.values()])


def _slower(row: Row) -> bool:
    return better(Price(row["initial"]), Price(row["judged"], row.get("noise", 0.0)))


def _of_policy(rows: Sequence[Row]) -> list[Figure]:
    """By prices of the search, of graphs that both were run on, and whose answer was shown to be better in a race."""
    runs: dict[tuple[str, ...], dict[str, list[Row]]] = {}
    for row in rows:
        if row["algo"] in (OWN, POLICY):
            place = runs.setdefault(tuple(str(row[key]) for key in ("dataset", "task", "graph")), {})
            place.setdefault(str(row["algo"]), []).append(row)
    found, logs, missed = list[Figure](), list[float](), 0
    for (_, task, graph), of in sorted(runs.items()):
        if len(of) == 2 and any(row["judged"] < row["initial"] for row in of[OWN]):
            gain = float(np.mean([_gain(row) for row in of[OWN]]))
            reached = {algo: [_needed(row, MOST * gain) for row in some] for algo, some in of.items()}
            mean = {algo: float(np.mean([count or row["evals_cap"] for count, row in zip(counts, of[algo])]))
                    for algo, counts in reached.items()}  # fmt: skip
            missed += sum(count is None for count in reached[POLICY])
            logs.append(math.log(mean[POLICY] / mean[OWN]))
            name = f"{graph}/{task.removeprefix('fusion_')}"
            found += [_exact(f"evals_to_90/{algo}/{name}", mean[algo]) for algo in (POLICY, OWN)]
    if not logs:
        return []
    return [_over_graphs("evals_to_90", logs), _exact("evals_to_90/missed", float(missed)), *found]


def _gain(row: Row) -> float:
    """What the best price was below the default's, relative."""
    return float(1.0 - min(cost for _, _, cost in row["trace"]) / row["trace"][0][2])


def _needed(row: Row, gain: float) -> int | None:
    """Evaluations until so much was gained."""
    return next((evals for evals, _, cost in row["trace"] if cost <= (1.0 - gain + 1e-12) * row["trace"][0][2]), None)


def _over_graphs(name: str, logs: Sequence[float]) -> Figure:
    return figure(name, bootstrap(np.array(logs)[:, None], range(len(logs))).exp())


def _exact(name: str, value: float) -> Figure:
    return Figure(name, value, value, value)
