"""What all benchmarks print: JSON lines {"name", "value", "unit", "low", "high"}, a median with its extremes."""

import json
from collections.abc import Mapping
from statistics import median


def say(name: str, values: list[float], unit: str, details: Mapping[str, object] | None = None) -> None:
    line = {"name": name, "value": median(values), "unit": unit, "low": min(values), "high": max(values)}
    print(json.dumps(line | dict(details or {})), flush=True)
