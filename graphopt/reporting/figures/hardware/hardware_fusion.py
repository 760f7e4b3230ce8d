"""`hardware_fusion`: time over the compiler's default, raced in fresh processes, for whole steps and for the graphs
that torch.compile makes, with numbers equal or close."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.problems.cost_model import Price, better
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
KINDS = {"lowered_step": "whole_step", "lowered_compiled": "aot"}
OWN = "compiler_search"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`KIND/NUMERICS`: geometric mean over graphs, of the search; `KIND/NUMERICS/ALGO` of its peers; intervals over
    families. `slower_than_default`: answers that are shown to be slower."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        kind, numerics = KINDS.get(str(row["dataset"])), str(row["task"]).removeprefix("fusion_")
        if kind is not None:
            groups.setdefault((kind, numerics, str(row["algo"])), []).append(row)
    found = [_mean("/".join([kind, numerics] + [algo] * (algo != OWN)), group)
             for (kind, numerics, algo), group in sorted(groups.items())]  # fmt: skip
    slower = float(sum(map(_slower, rows)))
    return [*found, Figure("slower_than_default", slower, slower, slower)]


def _mean(name: str, rows: Sequence[Row]) -> Figure:
    families: dict[str, list[float]] = {}
    for row in rows:
        families.setdefault(str(row["family"]), []).append(math.log(row["judged"] / row["initial"]))
    means = np.array([sum(logs) / len(logs) for logs in families.values()])
    return figure(name, bootstrap(means[:, None], range(len(means))).exp())


def _slower(row: Row) -> bool:
    return better(Price(row["initial"]), Price(row["judged"], row.get("noise", 0.0)))
