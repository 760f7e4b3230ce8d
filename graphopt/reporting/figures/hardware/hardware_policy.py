"""`hardware_policy`: evaluations that a policy needs for what the search gains, by measured prices of one table, and
how fast its answers are in a race."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphopt.problems.cost_model import Price, better
from graphopt.ranking.measured_plans import MOST
from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.figures.over_families import per_family

Row = Mapping[str, Any]
Key = tuple[str, str, str]  # dataset, graph, task
Group = Mapping[str, Sequence[Row]]  # by algorithm
SEARCH = "compiler_search"


class Counts(NamedTuple):
    """Evaluations of the policy by seed, of the search (mean over its seeds); solves of the policy that never get
    there."""

    mine: Mapping[int, float]
    its: float
    missed: int


def figures(rows: Sequence[Row]) -> list[Figure]:
    """`ALGO/evals_to_90`: evaluations until nine tenths of what the search's answer gains in its race with the default
    (no more than its prices show), over those that the search needs: geometric mean over seeds, over graphs of a
    family of programs, over families; in intervals families and seeds are resampled, both at once. `/lowest`: of what
    the lowest price gains that the search saw, which is low by luck as well. `/DATASET`: of its graphs alone. Graphs
    and numerics count where the race shows a gain. Who never gets there counts with the larger of the two budgets:
    `/missed` of `/solves`. `/GRAPH/NUMERICS` are the evaluations themselves.

    `ALGO/raced`: time over the default's of the answers that were raced in fresh processes, `/search` of the search's
    for the same graphs, `/over_search` one over the other, means and intervals as above; `/slower_than_default`:
    answers that are shown to be slower."""
    groups: dict[Key, dict[str, list[Row]]] = {}
    for row in rows:
        place = groups.setdefault((str(row["dataset"]), str(row["graph"]), str(row["task"])), {})
        place.setdefault(str(row["algo"]), []).append(row)
    with_room = {key: of for key, of in sorted(groups.items()) if any(map(_better, of.get(SEARCH, ())))}
    algos = sorted({algo for of in with_room.values() for algo in of} - {SEARCH})
    return [found for algo in algos for found in _of(algo, {k: of for k, of in with_room.items() if algo in of})]


def _of(algo: str, groups: Mapping[Key, Group]) -> list[Figure]:
    found, each = list[Figure](), list[Figure]()
    for word, gain in (("", _raced), ("/lowest", _lowest)):
        counts = {key: _counts(algo, of, gain(of[SEARCH])) for key, of in groups.items()}
        found += _mean(f"{algo}/evals_to_90{word}", algo, groups, counts)
        found.append(_exact(f"{algo}/evals_to_90{word}/missed", sum(one.missed for one in counts.values())))
        if not word:
            each += _parts(algo, groups, counts)
            for key, (mine, its, _) in counts.items():
                name = f"{key[1]}/{key[2].removeprefix('fusion_')}"
                needed = ((algo, float(np.mean([*mine.values()]))), (SEARCH, its))
                each += [_exact(f"{who}/evals_to_90/{name}", count) for who, count in needed]
    solves = _exact(f"{algo}/evals_to_90/solves", sum(len(of[algo]) for of in groups.values()))
    return [*found, solves, *_races(algo, groups), *each]


def _races(algo: str, groups: Mapping[Key, Group]) -> list[Figure]:
    raced = {(key, int(row["seed"])): row for key, of in groups.items() for row in of[algo] if _is_raced(row)}
    mine = {("/".join(key), seed): math.log(row["judged"] / row["initial"]) for (key, seed), row in raced.items()}
    its = {("/".join(key), seed): _time(groups[key][SEARCH]) for key, seed in raced}
    family = {"/".join(key): str(of[algo][0]["family"]) for key, of in groups.items()}
    apart = {key: log - its[key] for key, log in mine.items()}
    words = (("", mine), ("/search", its), ("/over_search", apart))
    found = [made for word, logs in words for made in per_family(f"{algo}/raced{word}", logs, family)]
    slower = sum(better(Price(row["initial"]), Price(row["judged"], row["noise"])) for row in raced.values())
    return [*found, *([_exact(f"{algo}/raced/slower_than_default", slower)] if raced else [])]


def _is_raced(row: Row) -> bool:
    """Whether the default has another price in the end than while searching: a race's own."""
    return bool(row["initial"] != row["searched_initial"])


def _time(rows: Sequence[Row]) -> float:
    """Over the default's, as a logarithm, mean over seeds."""
    return float(np.mean([math.log(row["judged"] / row["initial"]) for row in rows]))


def _parts(algo: str, groups: Mapping[Key, Group], counts: Mapping[Key, Counts]) -> list[Figure]:
    """By dataset, where there are several."""
    datasets = sorted({dataset for dataset, _, _ in groups})
    parts = {dataset: {key: of for key, of in groups.items() if key[0] == dataset} for dataset in datasets}
    return [made for dataset, of in parts.items() if len(parts) > 1
            for made in _mean(f"{algo}/evals_to_90/{dataset}", algo, of, counts)]  # fmt: skip


def _counts(algo: str, of: Group, gain: float) -> Counts:
    cap = max(row["evals_cap"] for who in (algo, SEARCH) for row in of[who])
    mine, its = ([_needed(row, MOST * gain) for row in of[who]] for who in (algo, SEARCH))
    by_seed = {int(row["seed"]): float(cap if n is None else n) for row, n in zip(of[algo], mine, strict=True)}
    return Counts(by_seed, float(np.mean([cap if n is None else n for n in its])), sum(n is None for n in mine))


def _mean(name: str, algo: str, groups: Mapping[Key, Group], counts: Mapping[Key, Counts]) -> list[Figure]:
    """Datasets and numerics of a graph are graphs of their own here, of one family."""
    family = {"/".join(key): str(of[algo][0]["family"]) for key, of in groups.items()}
    logs = {("/".join(key), seed): math.log(evals / counts[key].its)
            for key in groups for seed, evals in counts[key].mine.items()}  # fmt: skip
    return per_family(name, logs, family)


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
