"""Training steps for tests: random ones as graphs, and modules whose result is a loss."""

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder


def random_step(seed: int, ops: int = 8) -> Graph:
    """A chain-like forward pass of `ops` ops with skips and views, its mirror image as backward pass."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"step{seed}")
    values, kinds = [b.tensor((64,))], []
    for n in range(ops):
        view = bool(rng.random() < 0.25) and n > 0
        sources = [values[-1]] + ([values[int(rng.integers(len(values)))]] if not view and rng.random() < 0.4 else [])
        size = int(rng.integers(1, 200)) * 4
        made = b.tensor((size // 4,), num_bytes=size)
        last = n == ops - 1
        about = {"late": False, "alias": [0 if view else -1], "returned": [1 if last else 0],
                 "fixed": not view and bool(rng.random() < 0.1), "saved": bool(rng.random() < 0.5)}  # fmt: skip
        b.op("reshape" if view else "add", sources, [made], name=f"f{n}", attributes=about)
        values.append(made)
        kinds.append(sources)
    gradient = b.tensor((4,))
    for n in reversed(range(ops)):
        made = b.tensor((16,), num_bytes=int(rng.integers(1, 100)) * 4)
        reads = [
            gradient,
            *(s for s in kinds[n] if rng.random() < 0.8),
            *([values[n + 1]] if rng.random() < 0.5 else []),
        ]
        about = {"late": True, "alias": [-1], "returned": [2 if n == 0 or rng.random() < 0.3 else 0], "fixed": False,
                 "saved": False}  # fmt: skip
        b.op("mul", reads, [made], name=f"b{n}", attributes=about)
        gradient = made
    return b.build()


class Stack(nn.Module):
    """Blocks of linear, gelu, linear with residuals and a loss; with dropout a random mask in each."""

    def __init__(self, blocks: int = 10, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                          nn.Dropout(dropout)) for _ in range(blocks))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


def stack(**settings: float) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Stack(**settings), [torch.randn(512, 32)]  # type: ignore[arg-type]
