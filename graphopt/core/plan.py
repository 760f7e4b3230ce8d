"""`Plans`: what would be executed. The waist between tasks (which make plans) and cost models (which price them).

Shape legend: B plans, N ops, T tensors, D devices.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph

CHOICE = "choice_"  # what names of arrays of choices begin with
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Plans:
    """A batch of plans for one graph.

    An op with `inline` is computed inside every kernel that needs it (no kernel of its own); a task sets it only where
    fusion is legal, and always for views. A kernel runs on the device of its stored op.
    """

    graph: Graph
    device: NDArray[np.int16]  # [B, N] device of every op
    priority: Floats  # [B, N] among ready kernels of a device the highest starts first, ties by op id
    inline: NDArray[np.bool_]  # [B, N]
    transfer: NDArray[np.float64] | None = None  # [B, T, D] transfer priorities, else those of the producing op
    choices: Mapping[str, NDArray[np.int16]] = field(default_factory=dict)
    """What else is decided, by the names of heads of role `choice`: [B, N], or [B, ...] for what is no op's own."""

    def __post_init__(self) -> None:
        shape = (len(self.device), self.graph.num_ops)
        if any(a.shape != shape for a in (self.device, self.priority, self.inline)):
            raise ValueError(f"plans for {self.graph.name!r} must have arrays of shape [B, N] = {shape}")
        if any(a.shape[:1] != shape[:1] for a in self.choices.values()):
            raise ValueError(f"plans for {self.graph.name!r} must have choices of shape [B, ...], B = {shape[0]}")

    def __len__(self) -> int:
        return len(self.device)

    def copy(self) -> "Plans":
        """With arrays of its own."""
        return self._with(np.copy)

    def __getitem__(self, b: int | slice | NDArray[np.int64]) -> "Plans":
        """One plan (still a batch, of one) or a slice of the batch."""
        rows = slice(b, b + 1) if isinstance(b, int) else b
        return self._with(lambda array: array[rows])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it holds, by names that no two parts share."""
        own = {"device": self.device, "priority": self.priority, "inline": self.inline}
        sends = {} if self.transfer is None else {"transfer": self.transfer}
        return {**own, **sends, **{CHOICE + name: array for name, array in self.choices.items()}}

    def _with(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Plans":
        transfer = None if self.transfer is None else change(self.transfer)
        choices = {name: change(array) for name, array in self.choices.items()}
        return Plans(self.graph, change(self.device), change(self.priority), change(self.inline), transfer, choices)
