"""Random numbers inside compiled code: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""

import numpy as np
from numpy.typing import NDArray

from graphopt.utils.compiled import njit

State = NDArray[np.uint64]  # [1]


@njit(cache=True, nogil=True)
def uniform(state: State) -> float:
    """From 0 to 1, without 1."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
def below(state: State, most: int) -> int:
    """From 0 to most - 1."""
    return int(uniform(state) * most)
