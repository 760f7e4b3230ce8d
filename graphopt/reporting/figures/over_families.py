"""Paired comparisons of which every family counts once: siblings are not independent.

Shape legend: F families, S seeds (trainings).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.tables.statistics import bootstrap

Row = Mapping[str, Any]
Key = tuple[str, int]  # graph, seed


def priced(rows: Sequence[Row], algo: str, evals: int, dataset: str | None = None) -> dict[Key, float]:
    """What an algorithm's answers cost by the judge, of one data set or of any."""
    return {
        (row["graph"], row["seed"]): float(row["judged"])
        for row in rows
        if row["algo"] == algo and row["evals_cap"] == evals and dataset in (None, row["dataset"])
    }


def everywhere(theirs: Mapping[Key, float], ours: Mapping[Key, float]) -> dict[Key, float]:
    """Prices of a peer for what ours are of; those that it has of seed 0 alone stand for every seed."""
    found = {(graph, seed): theirs.get((graph, seed), theirs.get((graph, 0))) for graph, seed in ours}
    return {key: price for key, price in found.items() if price is not None}


def least(*several: Mapping[Key, float]) -> dict[Key, float]:
    """The least price of several algorithms, where all have one."""
    shared = set.intersection(*(set(prices) for prices in several))
    return {key: min(prices[key] for prices in several) for key in shared}


def gain(name: str, ours: Mapping[Key, float], theirs: Mapping[Key, float], family: Mapping[str, str]) -> list[Figure]:
    """How much faster, in percent: of each graph and seed that both have; the mean of a family's graphs, then of the
    families, as logarithms. Interval: families and seeds drawn anew. Nothing where they share nothing."""
    value, low, high = _mean(ours, theirs, family, lambda own, other: math.log(other / own))
    return [Figure(name, *(100.0 * math.expm1(x) for x in (value, low, high)))] if not math.isnan(value) else []


def share(name: str, ours: Mapping[Key, float], theirs: Mapping[Key, float], family: Mapping[str, str]) -> list[Figure]:
    """In how many percent of the solves ours is slower, by more than a hundredth of a percent."""
    value, low, high = _mean(ours, theirs, family, lambda own, other: float(own > other * 1.0001))
    return [Figure(name, 100.0 * value, 100.0 * low, 100.0 * high)] if not math.isnan(value) else []


def per_family(name: str, logs: Mapping[Key, float], family: Mapping[str, str]) -> list[Figure]:
    """The geometric mean of what is said of each graph and seed, as logarithms; intervals as `gain`."""
    value, low, high = _mean(logs, logs, family, lambda own, other: own)
    return [Figure(name, math.exp(value), math.exp(low), math.exp(high))] if not math.isnan(value) else []


def percentage(name: str, values: Mapping[Key, float], family: Mapping[str, str]) -> list[Figure]:
    """The mean of what is said of each graph and seed, times a hundred; intervals as `gain`."""
    value, low, high = _mean(values, values, family, lambda own, other: own)
    return [Figure(name, 100.0 * value, 100.0 * low, 100.0 * high)] if not math.isnan(value) else []


def _mean(ours: Mapping[Key, float], theirs: Mapping[Key, float], family: Mapping[str, str],
          said: Callable[[float, float], float]) -> tuple[float, float, float]:  # fmt: skip
    both = sorted(set(ours) & set(theirs))
    families, seeds = sorted({family[graph] for graph, _ in both}), sorted({seed for _, seed in both})
    if not both:
        return math.nan, math.nan, math.nan
    of: dict[tuple[int, int], list[float]] = {}
    for graph, seed in both:
        place = families.index(family[graph]), seeds.index(seed)
        of.setdefault(place, []).append(said(ours[graph, seed], theirs[graph, seed]))
    values_FS = np.full((len(families), len(seeds)), np.nan)
    for place, values in of.items():
        values_FS[place] = np.mean(values)
    found = bootstrap(values_FS, families)
    return found.mean, found.low, found.high
