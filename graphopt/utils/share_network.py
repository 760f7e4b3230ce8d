"""A network of one hidden layer, small enough for compiled loops of searches: which share of a scale (a region's gap,
the latency of what a move undoes) a step will gain. `graphopt.algos.contests.share_learner` trains it.

Shape legend: F columns that describe a step, without units; H hidden units.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.utils.compiled import njit

F64 = NDArray[np.float64]


class ShareNetwork(NamedTuple):
    """Its output is the log-odds of the share. Without hidden units all of the scale counts."""

    first: F64  # [F, H]
    first_bias: F64  # [H]
    second: F64  # [H]
    second_bias: float


def no_network() -> ShareNetwork:
    return ShareNetwork(np.zeros((0, 0)), np.zeros(0), np.zeros(0), 0.0)


@njit(cache=True, nogil=True)
def expected(scale: float, columns: F64, network: ShareNetwork) -> float:
    """What a step gains, in the unit of its scale. columns: [F]."""
    if not len(network.second):
        return scale
    odds = network.second_bias
    for h in range(len(network.second)):
        unit = network.first_bias[h]
        for c in range(len(columns)):
            unit += columns[c] * network.first[c, h]
        odds += max(unit, 0.0) * network.second[h]
    gain: float = scale / (1.0 + np.exp(-odds))
    return gain
