"""From seconds of rounds to timings."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unmeasured
from graphopt.measure.rounds import error_of_median, ratios, relative_errors
from graphopt.measure.subject import Raced, Ratio, Timing
from graphopt.utils.channel import is_seconds

Rounds = list[NDArray[np.float64]]
"""Per process: [R, C] seconds of the default, its copy and the others."""
RANGE_OF_QUARTILES = 1.349  # of normal numbers, in standard deviations


def rounds_in(taken: Any) -> NDArray[np.float64]:
    """[R, C] of what a process has answered. Raises Unmeasured for what are no times."""
    if not (isinstance(taken, list) and taken and all(isinstance(row, list) and len(row) == len(taken[0]) > 1
                                                      and all(map(is_seconds, row)) for row in taken)):  # fmt: skip
        raise Unmeasured(f"{str(taken)[:200]} are no times")
    return np.asarray(taken, np.float64)


def timings_of(rounds: NDArray[np.float64]) -> list[Timing]:
    """From [R, C] of one process: of the default itself (ratio 1), then of the columns after its copy."""
    return _timings(rounds, np.median(ratios(rounds), axis=0), relative_errors(rounds))


def timings_of_race(taken: Rounds) -> list[Timing]:
    """The same from several processes: medians of theirs, which differ by more than rounds within one."""
    middle = np.array([np.median(ratios(rounds), axis=0) for rounds in taken])
    spread = middle.std(0, ddof=1) if len(taken) > 1 else np.max([relative_errors(r) for r in taken], axis=0)
    errors = error_of_median(RANGE_OF_QUARTILES * spread, len(taken)) / np.median(middle, axis=0)
    return _timings(np.concatenate(taken), np.median(middle, axis=0), errors)


def _timings(rounds: NDArray[np.float64], middle: NDArray[np.float64], errors: NDArray[np.float64]) -> list[Timing]:
    seconds, aa, count = float(np.median(rounds[:, 0])), float(middle[0]), len(rounds)
    found = [Timing(seconds, 1.0, max(abs(aa - 1.0), float(errors[0])), count, aa)]
    for ratio, error in zip(middle[1:].tolist(), errors[1:].tolist()):
        found.append(Timing(seconds * ratio, ratio, max(abs(aa - 1.0), error), count, aa))
    return found


def raced(taken: Rounds) -> list[Raced]:
    """[C - 2] of the others."""
    middle = np.array([np.median(ratios(rounds), axis=0) for rounds in taken])  # [processes, C - 1]
    seconds = np.median([np.median(rounds, axis=0) for rounds in taken], axis=0)
    aa, count = ratio_of(middle[:, 0]), sum(map(len, taken))
    return [Raced(float(seconds[i + 1]), ratio_of(middle[:, i]), aa, len(taken), count)
            for i in range(1, middle.shape[1])]  # fmt: skip


def ratio_of(values: Sequence[float] | NDArray[np.float64]) -> Ratio:
    """Of the processes' values."""
    plain = [float(value) for value in values]
    return Ratio(median(plain), min(plain), max(plain))
