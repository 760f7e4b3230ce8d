"""`Encoder`: reads a graph, gives a state per op and a state per graph.

Every encoder reads ops alike, lets their states spread in its own way, and pools them alike. The graph state, mean and
maximum of the ops', is our choice.
Shape legend: N ops of all graphs of a batch, B graphs, D width, X width of the learner's extra input.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphopt.core.operators import OPERATORS
from graphopt.encoders.features import WIDTH
from graphopt.encoders.messages import segment_max, segment_mean
from graphopt.utils.ranges import Width


class Encoder(nn.Module, ABC):
    """Reads a batch of graphs. `width` is D; `extra_width` is X, the width of a learner's own input (0: none)."""

    def __init__(self, *, name: str, width: Width, extra_width: int) -> None:
        super().__init__()
        self.name, self.width, self.extra_width = name, width, extra_width
        self.kind = nn.Embedding(len(OPERATORS), width)
        self.read = nn.Sequential(
            nn.Linear(width + WIDTH + extra_width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.pool = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))

    @abstractmethod
    def spread(self, h_ND: Tensor, data: Data) -> Tensor:
        """[N, D] states of ops that know of other ops, from states that each op has of its own features."""

    def forward(self, data: Data, extra_NX: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(h [N, D] states of ops, g [B, D] states of graphs). `data` as `graph_features` or `batch` give it."""
        h_ND = self.spread(self.read(self._inputs(data, extra_NX)), data)
        pooled = torch.cat([segment_mean(h_ND, data.num_ops), segment_max(h_ND, data.num_ops)], 1)
        return h_ND, self.pool(pooled)

    def _inputs(self, data: Data, extra_NX: Tensor | None) -> Tensor:
        given = 0 if extra_NX is None else extra_NX.shape[1]
        if given != self.extra_width:
            raise ValueError(
                f"encoder {self.name!r} was built for extra input of width {self.extra_width}, got {given}"
            )
        parts = [self.kind(data.kind), data.x]
        return torch.cat(parts if extra_NX is None else [*parts, extra_NX], 1)
