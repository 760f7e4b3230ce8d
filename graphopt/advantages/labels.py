"""Local advantages as labels (LAF, sections 3 and 4.2): f(k) = cost(y_v = k, rest) - cost(y_v = first choice, rest).

Shape legend: L labelled slots, K choices, N ops, H heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.advantages.gibbs import Samples, typical
from graphopt.problems.decisions import Decision
from graphopt.search.walks.moves import F64, I64


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """One decision of a graph and what is known around it."""

    decision: Decision  # [N, H]
    row: I64  # [L] slots, indices into `Slots`
    advantage: F64  # [L, K] f of every choice; nan where there is none, or a price is infinite
    important: NDArray[np.bool_]  # [L, K] among the largest of the graph in size


class ExampleSet:
    """All samples of one graph.

    sigma: median size of an advantage; those of exactly 0 (refused requests) are left out, which the paper does not
    say, since they are most of them on some graphs. largest: size from which an advantage is among the `share` largest.
    """

    def __init__(self, shards: Sequence[Samples], share: float, least: int) -> None:
        """share: of the samples that count as important. least: decisions with fewer labels are not drawn, where there
        are others: a network reads the whole graph for them."""
        self._shards = shards
        prices = np.concatenate([np.asarray(samples.price) for samples in shards])
        self.sigma = typical(prices) or 1.0
        size = np.abs(advantages(prices)[:, 1:])
        size = size[np.isfinite(size)]
        self.largest = float(np.quantile(size, 1.0 - share)) if len(size) else np.inf
        moments = [(i, *run) for i, samples in enumerate(shards) for run in samples.moments()]
        enough = [moment for moment in moments if moment[2] - moment[1] >= least]
        self.moments = enough or moments
        labels = np.array([last - first for _, first, last in self.moments])
        self._cumulative = np.cumsum(labels / labels.sum())

    def draw(self, rng: np.random.Generator) -> TrainingExample:
        """Every label equally often."""
        return self.at(min(int(np.searchsorted(self._cumulative, rng.random())), len(self.moments) - 1))

    def at(self, moment: int) -> TrainingExample:
        shard, first, last = self.moments[moment]
        samples = self._shards[shard]
        advantage = advantages(np.asarray(samples.price[first:last]))
        important = np.abs(advantage) >= max(self.largest, np.nextafter(0.0, 1.0))
        return TrainingExample(samples.decision(first), samples.row[first:last].astype(np.int64), advantage, important)


def advantages(price: F64) -> F64:
    """[L, K] f of every choice from prices [L, K]; nan where either price is not finite."""
    finite = np.where(np.isfinite(price), price, np.nan)
    return np.asarray(finite - finite[:, :1])


def compressed(advantage: F64, sigma: float) -> F64:
    """sign(a) log(1 + |a| / sigma): section 4.2, label scale."""
    return np.asarray(np.sign(advantage) * np.log1p(np.abs(advantage) / sigma))
