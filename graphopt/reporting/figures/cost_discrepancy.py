"""X-RLflow's Table 1: by how much sums over ops are off, mean of absolute values over models."""

from collections.abc import Sequence

import numpy as np

from graphopt.records.rows import Row
from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.tables.discrepancy import ADDITIVE, WHOLE, discrepancies, prices_of
from graphopt.reporting.tables.statistics import bootstrap


def figures(rows: Sequence[Row]) -> list[Figure]:
    """One for every pair of a sum and a way to run the whole; intervals are over models, each a family of its own."""
    found, made = prices_of(rows), list[Figure]()
    for measured in WHOLE:
        for predicted in ADDITIVE:
            values = np.abs(discrepancies(found, predicted, measured))
            if len(values):
                interval = bootstrap(values[:, None], range(len(values)))
                made.append(Figure(f"{predicted} to {measured}", interval.mean, interval.low, interval.high))
    return made
