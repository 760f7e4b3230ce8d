"""Small modules whose programs tests run in many orders."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.graphs.readers.pytorch.capture import capture


class Branches(nn.Module):
    """Two branches, dropout, indices, batch statistics, views, a constant that reads only a shape."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.back, self.norm = nn.Linear(16, 64), nn.Linear(64, 16), nn.BatchNorm1d(64)
        self.drop, self.table = nn.Dropout(0.2), nn.Embedding(10, 16)

    def forward(self, x: Tensor, index: Tensor) -> Tensor:
        left = self.drop(torch.relu(self.norm(self.wide(x))))
        right = self.drop(torch.tanh(self.wide(x + self.table(index))))
        return self.back(left * right + torch.zeros_like(left) + left.flip(1)).softmax(-1)


INPUTS = (torch.randn(32, 16), torch.randint(0, 10, (32,)))


def branches(backward: bool, module: nn.Module | None = None) -> Graph:
    return capture(module or Branches(), INPUTS, name="branches", family="b", backward=backward, keep_program=True)


def plans(graph: Graph, priority: NDArray[np.float64]) -> Plans:
    """On one device, op by op."""
    inline = np.broadcast_to(view_inline(graph), priority.shape)
    return Plans(graph, np.zeros(priority.shape, np.int16), priority, inline)
