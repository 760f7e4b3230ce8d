"""Decisions as arrays: a choice per op and head.

Shape legend: B decisions, N ops, H heads (kinds of choice per op).
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import UserError

MOST_LEVELS = 2**15 - 1  # decisions are 16-bit numbers
Decisions = NDArray[np.int16]  # [B, N, H]
Decision = NDArray[np.int16]  # [N, H]


def checked_levels(levels: int) -> int:
    """Raises UserError unless so many levels fit into a decision."""
    if not 1 <= levels <= MOST_LEVELS:
        raise UserError(f"task.levels={levels} must be from 1 to {MOST_LEVELS:,}")
    return levels
