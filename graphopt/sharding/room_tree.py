"""A segment tree over times: add to a range, least of a range. It holds what memory is left at every time.

Node 1 is the root; leaves are size .. 2*size-1. least[i] is the least below node i, with pending[j] of j from i down.
"""

import numpy as np

from graphopt.core.graph import F64
from graphopt.utils.compiled import njit


def room_tree(values: F64) -> tuple[F64, F64]:
    """(least, pending) over values [P]; what is beyond them is inf."""
    size = 1 << max(0, (max(1, len(values)) - 1).bit_length())
    least = np.full(2 * size, np.inf)
    least[size : size + len(values)] = values
    for i in range(size - 1, 0, -1):
        least[i] = min(least[2 * i], least[2 * i + 1])
    return least, np.zeros(2 * size)


@njit(cache=True, nogil=True)
def add(least: F64, pending: F64, low: int, high: int, amount: float) -> None:
    """To all from low to high - 1."""
    size = len(least) // 2
    left, right = low + size, high + size
    first, last = left, right - 1
    while left < right:
        if left & 1:
            least[left] += amount
            pending[left] += amount
            left += 1
        if right & 1:
            right -= 1
            least[right] += amount
            pending[right] += amount
        left >>= 1
        right >>= 1
    _repair(least, pending, first)
    _repair(least, pending, last)


@njit(cache=True, nogil=True)
def _repair(least: F64, pending: F64, leaf: int) -> None:
    node = leaf >> 1
    while node >= 1:
        least[node] = min(least[2 * node], least[2 * node + 1]) + pending[node]
        node >>= 1
