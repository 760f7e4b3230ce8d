"""Ranges of settings, said with their types: `rounds: Annotated[int, Between(0, 1000)]`; `construct` checks them."""

from dataclasses import dataclass
from typing import Annotated, Any


@dataclass(frozen=True)
class Between:
    """From `least` to `most`, both included; what is no number is in no range."""

    least: float
    most: float

    def holds(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most)

    def __str__(self) -> str:
        return f"from {_said(self.least)} to {_said(self.most)}"


def _said(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


# What several classes share. Limits are far beyond what is useful; behind them lie only hours and full memories.
Count = Annotated[int, Between(1, 10**9)]  # at least one
Whole = Annotated[int, Between(0, 10**9)]  # 0: never, or none
Few = Annotated[int, Between(1, 1000)]  # of things that are all in memory at once
Width = Annotated[int, Between(1, 4096)]  # of a network
Layers = Annotated[int, Between(0, 256)]
AttentionHeads = Annotated[int, Between(1, 64)]
Workers = Annotated[int, Between(1, 512)]
Share = Annotated[float, Between(0.0, 1.0)]
Positive = Annotated[float, Between(1e-12, 1e12)]
NotNegative = Annotated[float, Between(0.0, 1e12)]
