"""Races: a default and others by turns in several fresh processes, for what is to be reported.

What a process does to one subject (memory, caches, neighbours) it does to all. How processes differ is in the interval,
which the spread within one does not tell.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Unmeasured
from graphopt.measure.pool import Answer, LocalPool, Lost
from graphopt.measure.subject import Comparing, Failure, Raced, Subject
from graphopt.measure.timings import Rounds, raced, rounds_in


def race(default: Subject, others: Sequence[Subject], how: Comparing, processes: int = 3) -> list[Raced | Failure]:
    """One for each of the others, each against the default in processes of its own, so that one that fails takes no
    other along; nothing is remembered. Raises Unmeasured where the default fails."""
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
        rounds = _answered(answer, default)
        if isinstance(rounds, Failure):
            return rounds
        taken.append(rounds)
    return taken


def _answered(answer: Answer, default: Subject) -> NDArray[np.float64] | Failure:
    if isinstance(answer, Lost):
        if answer.at == 0:
            raise Unmeasured(f"{default.digest} cannot be measured{answer.reason}")
        return Failure(f"it cannot be measured{answer.reason}")
    if "error" in answer:
        raise Unmeasured(f"{default.digest} cannot be measured: {answer['error']}")
    if answer["errors"]:
        return Failure(*next(iter(answer["errors"].values())))
    return rounds_in(answer["rounds"])
