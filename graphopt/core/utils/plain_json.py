"""Standard JSON: an infinite number is null, and NaN is refused. And a check of the numbers that a measuring process
returns.

A file that only we read (an answer's header, a table of measurements) may hold `Infinity`, which Python's reader knows.
"""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any


def dumps(value: Any, indent: int | None = None) -> str:
    """Raises ValueError, with the place, where a number is NaN."""
    refuse_nan(value)
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def refuse_nan(value: Any) -> None:
    """Raises ValueError, with the place, where a number is NaN."""
    for place in places_of_nan(value):
        raise ValueError(f"{place or 'the value'} is no number (NaN)")


def places_of_nan(value: Any, where: str = "") -> Iterator[str]:
    """Keys of numbers that are NaN, such as `trace[2]`."""
    if isinstance(value, float) and math.isnan(value):
        yield where
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from places_of_nan(inner, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for i, inner in enumerate(value):
            yield from places_of_nan(inner, f"{where}[{i}]")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_seconds(value: Any) -> bool:
    """Finite and positive."""
    return is_finite(value) and value > 0


def is_finite(value: Any) -> bool:
    """A number, and neither infinite nor none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63


def is_measurement(answer: Mapping[str, Any]) -> bool:
    """Whether an answer has valid `seconds`, and a valid relative `spread` and number of `blocks` where present."""
    spread, blocks = answer.get("spread", 0.0), answer.get("blocks", 1)
    return is_seconds(answer.get("seconds")) and is_finite(spread) and spread >= 0 and is_seconds(blocks)


def tuples(value: Any) -> Any:
    """A value of JSON with tuples in the place of its lists."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value
