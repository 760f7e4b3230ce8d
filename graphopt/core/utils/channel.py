"""What measuring processes answer, and how: nothing that a library prints gets between answers, and nothing is believed
that cannot be a measurement."""

import math
from collections.abc import Mapping
from typing import Any


def is_seconds(value: Any) -> bool:
    """Finite and positive."""
    return is_finite(value) and value > 0


def is_finite(value: Any) -> bool:
    """A number, and neither infinite nor none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63


def is_measurement(answer: Mapping[str, Any]) -> bool:
    """`seconds`, and of how they were measured what is there: `spread`, relative, and the number of `blocks`."""
    spread, blocks = answer.get("spread", 0.0), answer.get("blocks", 1)
    return is_seconds(answer.get("seconds")) and is_finite(spread) and spread >= 0 and is_seconds(blocks)
