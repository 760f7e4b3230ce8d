"""How tests measure: little, and in little time."""

from typing import Any

from graphopt.hardware.measure.target import Comparing, Measuring

ALONE: dict[str, Any] = {"device": "cpu", "threads": 1, "block_seconds": 0.001, "blocks": 3, "spread": 0.1,
                         "op_seconds": 0.05, "limit_seconds": 60}  # fmt: skip
TURNS: dict[str, Any] = {"device": "cpu", "threads": 1, "block_seconds": 0.0005, "rounds": 5, "noise": 0.2,
                         "seconds": 0.5, "limit_seconds": 20.0, "pool": "local", "workers": 1,
                         "address": None}  # fmt: skip


def alone(**changes: Any) -> Measuring:
    return Measuring(**(ALONE | changes))


def turns(**changes: Any) -> Comparing:
    return Comparing(**(TURNS | changes))
