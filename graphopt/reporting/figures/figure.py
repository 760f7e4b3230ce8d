"""`Figure`: one number that an experiment is about."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Figure:
    """low, high: its 95 % interval, or extremes over processes; equal to the value where it has none."""

    name: str
    value: float
    low: float
    high: float
