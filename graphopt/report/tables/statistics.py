"""Geometric means and bootstrap intervals over families x seeds. Graphs of one family are much alike, so a family is
resampled as a whole; one family has no interval: it says nothing about others.

Legend: G graphs, S seeds, F families, R resamples. A value that was not measured is NaN.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the ends of its 95 % interval; NaN where there is none."""

    mean: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether there is an interval."""
        return not math.isnan(self.low)

    def text(self, form: str) -> str:
        """`1.167 [1.101, 1.201]`, or `1.167`."""
        ends = f" [{self.low:{form}}, {self.high:{form}}]" if self.known else ""
        return f"{self.mean:{form}}{ends}"

    def of(self, function: Callable[[float], float]) -> "Interval":
        """The mean and both ends under a rising function."""
        return Interval(*(float(function(end)) for end in (self.mean, self.low, self.high)))


@dataclass(frozen=True, slots=True)
class GraphValues:
    """One value per graph and seed."""

    graphs: list[str]
    families: list[str]  # of each graph
    seeds: list[int]
    values_GS: F64

    @property
    def interval(self) -> Interval:
        return bootstrap(self.values_GS, self.families)


def tabled(cells: Iterable[tuple[str, str, int, float]]) -> GraphValues:
    """Of (graph, family, seed, value); repeated cells are averaged, missing ones are NaN."""
    found = list(cells)
    family_of = {graph: family for graph, family, _, _ in found}
    graphs, seeds = sorted(family_of), sorted({seed for _, _, seed, _ in found})
    row, column = {g: i for i, g in enumerate(graphs)}, {s: i for i, s in enumerate(seeds)}
    total, count = np.zeros((len(graphs), len(seeds))), np.zeros((len(graphs), len(seeds)))
    for graph, _, seed, value in found:
        total[row[graph], column[seed]] += value
        count[row[graph], column[seed]] += 1
    values_GS = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return GraphValues(graphs, [family_of[graph] for graph in graphs], seeds, values_GS)


def mean_of_graphs(values_GS: F64) -> float:
    """Mean over graphs of the mean over seeds: every graph counts the same, however many seeds it has."""
    per_graph, known = _seed_means(values_GS, np.ones((1, values_GS.shape[1])))
    return float(per_graph.sum() / known.sum())


def bootstrap(values_GS: F64, families: Sequence[str] | range, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """95 % percentile interval of the mean over graphs; families [G], each with all of its graphs, and seeds are
    resampled with replacement, both at once.

    Crossed, since a seed of a learned method is one training run that decides about every graph. With one family there
    is no interval. Resamples in which no value was measured are left out.
    """
    seeds, mean = values_GS.shape[1], mean_of_graphs(values_GS)
    names, family_G = np.unique(np.asarray(families), return_inverse=True)
    if len(names) == 1:
        return Interval(mean, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    weight_RF = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), resamples)
    weight_RG = weight_RF[:, family_G].astype(np.float64)
    weight_RS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), resamples).astype(np.float64)
    per_graph_RG, known_RG = _seed_means(values_GS, weight_RS)
    weight_RG *= known_RG
    total = weight_RG.sum(1)
    means = (weight_RG * per_graph_RG).sum(1)[total > 0] / total[total > 0]
    low, high = np.quantile(means, [0.025, 0.975]) if len(means) else (mean, mean)
    return Interval(mean, float(low), float(high))


def _seed_means(values_GS: F64, weight_RS: F64) -> tuple[F64, F64]:
    """([R, G] weighted mean over the measured seeds, 0 where none; [R, G] 1 where any was measured)."""
    measured = ~np.isnan(values_GS)
    total = weight_RS @ np.where(measured, values_GS, 0.0).T
    weight = weight_RS @ measured.astype(np.float64).T
    known = weight > 0
    return np.where(known, total / np.where(known, weight, 1.0), 0.0), known.astype(np.float64)
