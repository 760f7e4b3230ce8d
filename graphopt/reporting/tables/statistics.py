"""Geometric means and bootstrap intervals over graphs x seeds. One graph has no interval: it says nothing about others.

Legend: G graphs, S seeds, R resamples. A value that was not measured is NaN.
"""

import math
from collections.abc import Iterable
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

    def exp(self) -> "Interval":
        return Interval(float(np.exp(self.mean)), float(np.exp(self.low)), float(np.exp(self.high)))


def table_GS(cells: Iterable[tuple[str, int, float]]) -> tuple[list[str], list[int], F64]:
    """(graphs, seeds, [G, S]) of (graph, seed, value) triples; repeated cells are averaged, missing ones are NaN."""
    triples = list(cells)
    graphs, seeds = sorted({g for g, _, _ in triples}), sorted({s for _, s, _ in triples})
    row, column = {g: i for i, g in enumerate(graphs)}, {s: i for i, s in enumerate(seeds)}
    total, count = np.zeros((len(graphs), len(seeds))), np.zeros((len(graphs), len(seeds)))
    for graph, seed, value in triples:
        total[row[graph], column[seed]] += value
        count[row[graph], column[seed]] += 1
    return graphs, seeds, np.where(count > 0, total / np.maximum(count, 1), np.nan)


def mean_of_graphs(values_GS: F64) -> float:
    """Mean over graphs of the mean over seeds: every graph counts the same, however many seeds it has."""
    per_graph, known = _seed_means(values_GS, np.ones((1, values_GS.shape[1])))
    return float(per_graph.sum() / known.sum())


def bootstrap(values_GS: F64, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """95 % percentile interval of the mean; graphs and seeds are resampled with replacement, both at once.

    Crossed, since a seed of a learned method is one training run that decides about every graph. With one graph there
    is no interval. Resamples in which no value was measured are left out.
    """
    graphs, seeds = values_GS.shape
    mean = mean_of_graphs(values_GS)
    if graphs == 1:
        return Interval(mean, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    weight_RG = rng.multinomial(graphs, np.full(graphs, 1 / graphs), resamples).astype(np.float64)
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
