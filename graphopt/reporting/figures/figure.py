"""`Figure`: one number that an experiment is about."""

from dataclasses import dataclass

from graphopt.reporting.tables.statistics import Interval


@dataclass(frozen=True, slots=True)
class Figure:
    """low, high: its 95 % interval, or extremes over processes; equal to the value where it has none."""

    name: str
    value: float
    low: float
    high: float


def figure(name: str, mean: Interval) -> Figure:
    """Of an interval that may be none."""
    return Figure(name, mean.mean, *((mean.low, mean.high) if mean.known else (mean.mean, mean.mean)))
