"""Prices of rows in words."""

import math

from graphopt.problems.cost_model import Price, amount, better
from graphopt.report.changes import BETTER
from graphopt.run.records.rows import Row


def as_price(row: Row) -> Price:
    return Price(row["judged"], row.get("noise", 0.0))


def in_bytes(row: Row) -> bool:
    return bool(row.get("objective") == "peak_memory")


def price(row: Row, value: float) -> str:
    """A price in words: 109.8 us, 4.95 MB."""
    if not math.isfinite(value):
        return "does not fit"
    return amount(value) if in_bytes(row) else duration(value)


def duration(seconds: float) -> str:
    """Seconds in words."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def gain(row: Row) -> str:
    initial, judged = row["initial"], row["judged"]
    by = f", by {row['judge']}"
    if not math.isfinite(initial):
        return f"{price(row, judged)}; the default does not fit the devices' memory{by}"
    if judged >= initial * (1 - BETTER):
        worse = judged > initial * (1 + BETTER)
        said = f"{price(row, judged)}, worse than the default's" if worse else "nothing better found than the default's"
        return f"{said} {price(row, initial)}{by}"
    if not better(as_price(row), Price(initial, row.get("noise", 0.0))):
        return f"{price(row, initial)} -> {price(row, judged)}{noise_words(row)}: within the noise{by}"
    ratio = f"{initial / judged:.3f}x, " if judged > 0 else ""
    less = 100 * (1 - judged / initial)
    return f"{price(row, initial)} -> {price(row, judged)}{noise_words(row)}: {ratio}{less:.3g} % less{by}"


def noise_words(row: Row) -> str:
    """Of measured prices their standard error."""
    return f" ± {100 * row['noise']:.2g} %" if row.get("noise") else ""
