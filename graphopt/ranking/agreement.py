"""How well predicted times rank measured plans: rank correlations, and how many of the fastest are found.

Shape legend: P plans, R draws.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from graphopt.core.graph import F64, I64

DRAWS = 300
FASTEST = 5
MOST = 0.9
LEAST = 5  # plans from which there is a correlation


class Correlation(NamedTuple):
    """low, high: the 95 % interval of drawing plans anew."""

    value: float
    low: float
    high: float


def spearman(predicted: F64, measured: F64) -> float:
    """Rank correlation, ties at their mean rank; 0 where one side says the same of all."""
    a, b = (rankdata(values) - (len(values) + 1) / 2 for values in (predicted, measured))
    size = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / size if size else 0.0


def recall(predicted: F64, measured: F64) -> float:
    """Share of the measured `FASTEST` plans that are among as many predicted ones."""
    first, wanted = (set(np.argsort(values, kind="stable")[:FASTEST].tolist()) for values in (predicted, measured))
    return len(first & wanted) / max(1, len(wanted))


def agreement(score: Callable[[F64, F64], float], predicted: F64, measured: F64) -> Correlation:
    """A score [P, P -> one number], with its interval."""
    rng, count = np.random.default_rng(0), len(measured)
    draws = (rng.integers(0, count, count) for _ in range(DRAWS))
    drawn = [score(predicted[of], measured[of]) for of in draws]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Correlation(score(predicted, measured), float(low), float(high))


def measured_again(score: Callable[[F64, F64], float], measured: F64, noise: F64) -> float:
    """What a score comes to in the mean between two measurements of the same plans: no model can be seen to do better.
    noise: [P] relative standard errors; those of the true values are taken to be what was measured."""
    rng = np.random.default_rng(0)
    return float(np.mean([score(measured * np.exp(rng.normal(0, noise)), measured) for _ in range(DRAWS)]))


def needed(order: I64, ratio: F64) -> int:
    """Evaluations in an order [P] until `MOST` of what the best plan gains over the default is gained. ratio: [P]
    measured times over the default's, of which one is below 1."""
    best = np.minimum.accumulate(np.minimum(ratio[order], 1.0))
    return int(np.argmax(best <= 1.0 - MOST * (1.0 - ratio.min()) + 1e-12)) + 1
