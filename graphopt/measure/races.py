"""Races: a default and others by turns in several fresh processes, for what is to be reported.

What a process does to one subject (memory, caches, neighbours) it does to all. How processes differ is in the interval,
which the spread within one does not tell. Nothing is remembered: a race is run anew each time.
"""

from collections.abc import Sequence
from statistics import median

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unmeasured
from graphopt.measure.pool import Answer, LocalPool, Lost
from graphopt.measure.rounds import ratios
from graphopt.measure.subject import Comparing, Failure, Raced, Ratio, Subject
from graphopt.measure.timings import timings_of

Rounds = list[NDArray[np.float64]]
"""Per process: [R, C] seconds of the default, its copy and the others."""


def race(default: Subject, others: Sequence[Subject], how: Comparing, processes: int = 3) -> list[Raced | Failure]:
    """One for each of the others, each against the default in processes of its own, so that one that fails takes no
    other along. Raises Unmeasured where the default fails."""
    taken = [fresh_rounds(default, [other], how, processes) for other in others]
    return [one if isinstance(one, Failure) else raced(one)[0] for one in taken]


def fresh_rounds(default: Subject, others: Sequence[Subject], how: Comparing, processes: int) -> Rounds | Failure:
    """What so many processes measure, one after another, or why one of the others cannot be measured.

    Raises Unmeasured where the default cannot."""
    taken = Rounds()
    request = {"subjects": [subject.asked() for subject in (default, *others)], "how": how.asked()}
    for _ in range(processes):
        pool = LocalPool(how.device, how.threads)
        (answer,) = pool.ask([request], [how.limit_seconds])
        pool.end()
        rounds = _rounds_in(answer, default)
        if isinstance(rounds, Failure):
            return rounds
        taken.append(rounds)
    return taken


def _rounds_in(answer: Answer, default: Subject) -> NDArray[np.float64] | Failure:
    if isinstance(answer, Lost):
        if answer.at == 0:
            raise Unmeasured(f"{default.digest} cannot be measured{answer.reason}")
        return Failure(f"it cannot be measured{answer.reason}")
    if "error" in answer:
        raise Unmeasured(answer["error"])
    if answer["errors"]:
        return Failure(*next(iter(answer["errors"].values())))
    timings_of(answer["rounds"])  # raises for what are no times
    return np.asarray(answer["rounds"], np.float64)


def raced(taken: Rounds) -> list[Raced]:
    """[C - 2] of the others."""
    middle = np.array([np.median(ratios(rounds), axis=0) for rounds in taken])  # [processes, C - 1]
    seconds = [float(np.median(column)) for column in np.array([np.median(rounds, axis=0) for rounds in taken]).T]
    count = sum(map(len, taken))
    aa = ratio_of(middle[:, 0])
    return [Raced(seconds[i + 1], ratio_of(middle[:, i]), aa, len(taken), count) for i in range(1, middle.shape[1])]


def ratio_of(values: Sequence[float] | NDArray[np.float64]) -> Ratio:
    """Of the processes' values."""
    plain = [float(value) for value in values]
    return Ratio(median(plain), min(plain), max(plain))
