"""How runners are timed, in blocks of runs, alone or by turns, over clocks that are given; and from rounds to timings.

Shape legend: R rounds, C columns (the default, its copy, then the other targets).
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unmeasured
from graphopt.core.utils.plain_json import is_seconds
from graphopt.hardware.measure.target import Ratio, Timing

LEAST = 3  # blocks or rounds of a target that takes longer than it should
MOST_ROUNDS = 400


@dataclass(frozen=True, slots=True)
class Runner:
    """run: one run. reset: runs before each run, outside of the time: runs that change their inputs would otherwise
    drift to other numbers; None where nothing changes. bits: digest of a run's results, where they count."""

    run: Callable[[], Any]
    reset: Callable[[], None] | None = None
    bits: str = ""


Timed = Callable[[Runner, int], float]
"""Seconds of so many runs."""


class Column(Protocol):
    """Seconds of so many runs of one target, wherever it runs. bits: of its `Runner`."""

    bits: str

    def __call__(self, runs: int) -> float: ...


def cpu_timed(clock: Callable[[], float]) -> Timed:
    """By a clock: `time.thread_time`, so that other processes do not count, where one thread does all the work."""

    def timed(runner: Runner, runs: int) -> float:
        run, reset, taken = runner.run, runner.reset, 0.0
        if reset is None:
            start = clock()
            for _ in range(runs):
                run()
            return clock() - start
        for _ in range(runs):
            reset()
            start = clock()
            run()
            taken += clock() - start
        return taken

    return timed


def runs_for(column: Column, seconds: float) -> int:
    """How many runs last that long, or one; of two blocks the shorter counts. Finding out warms up."""
    column(1)
    runs = 1
    while (took := min(column(runs), column(runs))) < seconds:
        runs = max(runs + 1, min(10 * runs, ceil(1.1 * runs * seconds / max(took, 1e-9))))
    return runs


def alone(column: Column, how: dict[str, Any]) -> dict[str, Any]:
    """Median and relative interquartile range of the seconds of one run, over blocks of equally many runs. how: fields
    of `Measuring`."""
    runs = runs_for(column, how["block_seconds"])
    blocks, end = list[float](), time.perf_counter() + how["op_seconds"]
    while True:
        blocks.append(column(runs) / runs)
        enough = len(blocks) >= how["blocks"] and spread_of(blocks) <= how["spread"]
        if enough or (len(blocks) >= LEAST and time.perf_counter() >= end):
            return {"seconds": float(np.median(blocks)), "spread": spread_of(blocks), "blocks": len(blocks)}


def by_turns(columns: Sequence[Column], runs: Sequence[int], how: dict[str, Any],
             rng: np.random.Generator) -> list[list[float]]:  # fmt: skip
    """[R, C] seconds of one run; in every round the columns come in another random order. how: `rounds`, `noise`,
    `seconds` of `Comparing`."""
    taken, end = list[list[float]](), time.perf_counter() + how["seconds"] * len(columns)
    while not _enough(taken, how, time.perf_counter() >= end):
        row = [0.0] * len(columns)
        for column in rng.permutation(len(columns)):
            row[column] = columns[column](runs[column]) / runs[column]
        taken.append(row)
    return taken


def _enough(taken: list[list[float]], how: dict[str, Any], late: bool) -> bool:
    if late or len(taken) >= MOST_ROUNDS:
        return len(taken) >= LEAST
    if len(taken) < max(how["rounds"], LEAST):
        return False
    return bool(relative_errors(np.asarray(taken)).max() <= how["noise"])


def ratios(taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """[R, C - 1] of the columns after the first to the first, in the same round."""
    found: NDArray[np.float64] = taken[:, 1:] / taken[:, :1]
    return found


def relative_errors(taken: NDArray[np.float64]) -> NDArray[np.float64]:
    """[C - 1] relative standard errors of the median ratios."""
    low, middle, high = np.quantile(ratios(taken), [0.25, 0.5, 0.75], axis=0)
    errors: NDArray[np.float64] = error_of_median((high - low) / middle, len(taken))
    return errors


def error_of_median(spread: Any, blocks: int) -> Any:
    """Relative, of a median of blocks whose middle half spreads over `spread` of it, the blocks being normal. Their
    standard deviation is spread / 1.349, that of their median 1.253 times as large over the root of their number."""
    return 1.253 / 1.349 * spread / math.sqrt(blocks)


def spread_of(blocks: Sequence[float]) -> float:
    """Interquartile range over the median."""
    low, middle, high = np.quantile(blocks, [0.25, 0.5, 0.75])
    return float((high - low) / max(middle, 1e-12))


class Rounds(list[NDArray[np.float64]]):
    """Per process: [R, C] seconds of the default, its copy and the others. unequal: which of the others, counted from
    1, give other bits than the default."""

    def __init__(self, rounds: Iterable[NDArray[np.float64]] = ()) -> None:
        super().__init__(rounds)
        self.unequal = set[int]()


RANGE_OF_QUARTILES = 1.349  # of normal numbers, in standard deviations


def rounds_in(taken: Any) -> NDArray[np.float64]:
    """[R, C] times of a process's answer. Raises Unmeasured for other values."""
    if not (isinstance(taken, list) and taken and all(isinstance(row, list) and len(row) == len(taken[0]) > 1
                                                      and all(map(is_seconds, row)) for row in taken)):  # fmt: skip
        raise Unmeasured(f"{str(taken)[:200]} are no times")
    return np.asarray(taken, np.float64)


def timings_of(rounds: NDArray[np.float64]) -> list[Timing]:
    """From [R, C] of one process: of the default itself (ratio 1), then of the columns after its copy."""
    return _timings(rounds, np.median(ratios(rounds), axis=0), relative_errors(rounds))


def timings_of_race(taken: Sequence[NDArray[np.float64]]) -> list[Timing]:
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


def ratio_of(values: Sequence[float] | NDArray[np.float64]) -> Ratio:
    """Of the processes' values."""
    plain = [float(value) for value in values]
    return Ratio(median(plain), min(plain), max(plain))
