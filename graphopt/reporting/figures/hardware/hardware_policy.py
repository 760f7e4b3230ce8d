"""`hardware_policy`: evaluations that a policy needs for what the search gains, by measured prices of one table."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.ranking.agreement import MOST
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
Group = Mapping[str, Sequence[Row]]
SEARCH = "compiler_search"


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`ALGO/evals_to_90`: evaluations until nine tenths of what the search's answer gains in its race with the default
    (no more than its prices show), over those that the search needs: geometric mean over graphs, of the mean over
    seeds; intervals over families of programs. `/lowest`: of what the lowest price gains that the search saw, which is
    low by luck as well. Graphs and numerics count where the race shows a gain. Who never gets there counts with the
    larger of the two budgets: `/missed` of `/solves`. `/GRAPH/NUMERICS` are the evaluations themselves."""
    groups: dict[tuple[str, str, str], dict[str, list[Row]]] = {}
    for row in rows:
        place = groups.setdefault((str(row["dataset"]), str(row["graph"]), str(row["task"])), {})
        place.setdefault(str(row["algo"]), []).append(row)
    with_room = {key: of for key, of in sorted(groups.items()) if any(map(_better, of.get(SEARCH, ())))}
    algos = sorted({algo for of in with_room.values() for algo in of} - {SEARCH})
    return [found for algo in algos for found in _of(algo, {k: of for k, of in with_room.items() if algo in of})]


def _of(algo: str, groups: Mapping[tuple[str, str, str], Group]) -> list[Figure]:
    found, each = list[Figure](), list[Figure]()
    for word, gain in (("", _raced), ("/lowest", _lowest)):
        counts = {key: _counts(algo, of, gain(of[SEARCH])) for key, of in groups.items()}
        logs: dict[str, list[float]] = {}
        for key, (mine, its, _) in counts.items():
            logs.setdefault(str(groups[key][algo][0]["family"]), []).append(math.log(mine / its))
            if not word:
                name = f"{key[1]}/{key[2].removeprefix('fusion_')}"
                each += [_exact(f"{who}/evals_to_90/{name}", n) for who, n in ((algo, mine), (SEARCH, its))]
        means = np.array([sum(of) / len(of) for of in logs.values()])
        found.append(figure(f"{algo}/evals_to_90{word}", bootstrap(means[:, None], range(len(means))).exp()))
        found.append(_exact(f"{algo}/evals_to_90{word}/missed", sum(missed for *_, missed in counts.values())))
    solves = _exact(f"{algo}/evals_to_90/solves", sum(len(of[algo]) for of in groups.values()))
    return [*found, solves, *each]


def _counts(algo: str, of: Group, gain: float) -> tuple[float, float, int]:
    """Evaluations of the policy and of the search, means over seeds; solves of the policy that never get there."""
    cap = max(row["evals_cap"] for who in (algo, SEARCH) for row in of[who])
    mine, its = ([_needed(row, MOST * gain) for row in of[who]] for who in (algo, SEARCH))
    means = [float(np.mean([cap if n is None else n for n in some])) for some in (mine, its)]
    return means[0], means[1], sum(n is None for n in mine)


def _better(row: Row) -> bool:
    return bool(row["judged"] < row["initial"])


def _raced(rows: Sequence[Row]) -> float:
    return min(_lowest(rows), float(np.mean([1.0 - row["judged"] / row["initial"] for row in rows])))


def _lowest(rows: Sequence[Row]) -> float:
    return float(np.mean([1.0 - min(cost for *_, cost in row["trace"]) / row["trace"][0][2] for row in rows]))


def _needed(row: Row, gain: float) -> int | None:
    """Evaluations until so much was gained, at least one."""
    reached = (evals for evals, _, cost in row["trace"] if cost <= (1.0 - gain + 1e-12) * row["trace"][0][2])
    found = next(reached, None)
    return None if found is None else max(1, int(found))


def _exact(name: str, value: float) -> Figure:
    return Figure(name, float(value), float(value), float(value))
