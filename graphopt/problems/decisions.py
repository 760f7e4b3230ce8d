"""Decisions as arrays: a choice per op and head.

Shape legend: B decisions, N ops, H heads (kinds of choice per op).
"""

import numpy as np
from numpy.typing import NDArray

MOST_LEVELS = 2**15 - 1  # decisions are 16-bit numbers
Decisions = NDArray[np.int16]  # [B, N, H]
Decision = NDArray[np.int16]  # [N, H]
