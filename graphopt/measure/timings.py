"""From rounds to timings: of one process, and across several."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unmeasured
from graphopt.measure.rounds import ratios, relative_errors
from graphopt.measure.subject import Timing
from graphopt.utils.channel import is_seconds


def timings_of(taken: Any) -> list[Timing]:
    """From rounds [R, C]: of the default itself (ratio 1), then of the columns after its copy. Raises Unmeasured for
    what are no times."""
    if not (isinstance(taken, list) and taken and all(isinstance(row, list) and len(row) == len(taken[0]) > 1
                                                      and all(map(is_seconds, row)) for row in taken)):  # fmt: skip
        raise Unmeasured(f"{str(taken)[:200]} are no times")
    rounds = np.asarray(taken, np.float64)
    middle, errors = np.median(ratios(rounds), axis=0), relative_errors(rounds)
    seconds, aa = float(np.median(rounds[:, 0])), float(middle[0])
    least = max(abs(aa - 1.0), float(errors[0]))
    first = Timing(seconds, 1.0, least, len(rounds), aa)
    return [first, *(Timing(seconds * float(ratio), float(ratio), max(abs(aa - 1.0), float(error)), len(rounds), aa)
                     for ratio, error in zip(middle[1:], errors[1:]))]  # fmt: skip


def across(taken: Sequence[NDArray[np.float64]]) -> Timing:
    """The last column of what several processes measured [R, C] against their first, the default; the second is its
    copy. The noise is how the processes differ, at least the deviation of the copy."""
    middle = np.array([np.median(ratios(rounds), axis=0) for rounds in taken])  # [processes, C - 1]
    ratio, aa = float(np.median(middle[:, -1])), float(np.median(middle[:, 0]))
    error = float(middle[:, -1].std(ddof=1)) / ratio / math.sqrt(len(taken)) if len(taken) > 1 else 0.0
    seconds = float(np.median([np.median(rounds[:, 0]) for rounds in taken]))
    return Timing(seconds, ratio, max(abs(aa - 1.0), error), sum(map(len, taken)), aa)
