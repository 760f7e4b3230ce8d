"""`hardware_policy`: evaluations that a policy needs for what the search gains, by measured prices of one table."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.ranking.agreement import MOST
from graphopt.reporting.figures.figure import Figure, figure
from graphopt.reporting.tables.statistics import F64, RESAMPLES, Interval

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
    (no more than its prices show), over those that the search needs: geometric mean over families of programs, in them
    over graphs, of the mean over seeds; in intervals families and seeds are resampled, both at once. `/lowest`: of what
    the lowest price gains that the search saw, which is low by luck as well. `/DATASET`: of its graphs alone. Graphs
    and numerics count where the race shows a gain. Who never gets there counts with the larger of the two budgets:
    `/missed` of `/solves`. `/GRAPH/NUMERICS` are the evaluations themselves."""
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
        found.append(figure(f"{algo}/evals_to_90{word}", _interval(algo, groups, counts)))
        found.append(_exact(f"{algo}/evals_to_90{word}/missed", sum(one.missed for one in counts.values())))
        if not word:
            each += _parts(algo, groups, counts)
            for key, (mine, its, _) in counts.items():
                name = f"{key[1]}/{key[2].removeprefix('fusion_')}"
                needed = ((algo, float(np.mean([*mine.values()]))), (SEARCH, its))
                each += [_exact(f"{who}/evals_to_90/{name}", count) for who, count in needed]
    solves = _exact(f"{algo}/evals_to_90/solves", sum(len(of[algo]) for of in groups.values()))
    return [*found, solves, *each]


def _parts(algo: str, groups: Mapping[Key, Group], counts: Mapping[Key, Counts]) -> list[Figure]:
    """By dataset, where there are several."""
    datasets = sorted({dataset for dataset, _, _ in groups})
    parts = {dataset: {key: of for key, of in groups.items() if key[0] == dataset} for dataset in datasets}
    return [figure(f"{algo}/evals_to_90/{dataset}", _interval(algo, of, counts))
            for dataset, of in parts.items() if len(parts) > 1]  # fmt: skip


def _counts(algo: str, of: Group, gain: float) -> Counts:
    cap = max(row["evals_cap"] for who in (algo, SEARCH) for row in of[who])
    mine, its = ([_needed(row, MOST * gain) for row in of[who]] for who in (algo, SEARCH))
    by_seed = {int(row["seed"]): float(cap if n is None else n) for row, n in zip(of[algo], mine, strict=True)}
    return Counts(by_seed, float(np.mean([cap if n is None else n for n in its])), sum(n is None for n in mine))


def _interval(algo: str, groups: Mapping[Key, Group], counts: Mapping[Key, Counts]) -> Interval:
    families = [str(of[algo][0]["family"]) for of in groups.values()]
    seeds = sorted({seed for key in groups for seed in counts[key].mine})
    ratios_GS = np.array([[counts[key].mine.get(seed, np.nan) / counts[key].its for seed in seeds] for key in groups])
    return _resampled(ratios_GS, np.unique(families, return_inverse=True)[1]).exp()


def _resampled(ratios_GS: F64, family_G: NDArray[np.intp]) -> Interval:
    """Of the mean over families F of the mean logarithm of their graphs' mean ratio; NaN: not measured. R: the first
    counts each once, then resamples."""
    rng, families, seeds = np.random.default_rng(0), int(family_G.max()) + 1, ratios_GS.shape[1]
    weight_RF = np.vstack([np.ones(families), rng.multinomial(families, np.full(families, 1 / families), RESAMPLES)])
    weight_RS = np.vstack([np.ones(seeds), rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)])
    known_RG = weight_RS @ (~np.isnan(ratios_GS)).T.astype(np.float64)
    mean_RG = weight_RS @ np.nan_to_num(ratios_GS).T / np.maximum(known_RG, 1.0)
    there_RG = (known_RG > 0).astype(np.float64)
    log_RG = np.where(known_RG > 0, np.log(np.where(known_RG > 0, mean_RG, 1.0)), 0.0)
    of_family_GF = np.eye(families)[family_G]
    graphs_RF = there_RG @ of_family_GF
    log_RF = log_RG @ of_family_GF / np.maximum(graphs_RF, 1.0)
    weight_RF = weight_RF * (graphs_RF > 0)
    total_R = weight_RF.sum(1)
    means_R = (weight_RF * log_RF).sum(1)[total_R > 0] / total_R[total_R > 0]
    low, high = np.quantile(means_R[1:], [0.025, 0.975]) if families > 1 else (np.nan, np.nan)
    return Interval(float(means_R[0]), float(low), float(high))


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
