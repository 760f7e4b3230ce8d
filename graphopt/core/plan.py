"""`Plans`: what would be executed. The waist between tasks (which make plans) and cost models (which price them).

Shape legend: B plans, N ops, T tensors, D devices.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph

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

    def __post_init__(self) -> None:
        shape = (len(self.device), self.graph.num_ops)
        if any(a.shape != shape for a in (self.device, self.priority, self.inline)):
            raise ValueError(f"plans for {self.graph.name!r} must have arrays of shape [B, N] = {shape}")

    def __len__(self) -> int:
        return len(self.device)

    def copy(self) -> "Plans":
        """With arrays of its own."""
        transfer = None if self.transfer is None else self.transfer.copy()
        return Plans(self.graph, self.device.copy(), self.priority.copy(), self.inline.copy(), transfer)

    def __getitem__(self, b: int | slice | NDArray[np.int64]) -> "Plans":
        """One plan (still a batch, of one) or a slice of the batch."""
        rows = slice(b, b + 1) if isinstance(b, int) else b
        transfer = None if self.transfer is None else self.transfer[rows]
        return Plans(self.graph, self.device[rows], self.priority[rows], self.inline[rows], transfer)
