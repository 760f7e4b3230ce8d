"""`Encoder`: reads a graph, gives a state per op and a state per graph. `ConvolutionEncoder`: what convolutions share.

Every encoder reads ops alike, lets their states spread in its own way, and pools them alike. Each layer of convolutions
sees both directions with separate weights:
h <- LayerNorm(h + GELU(W h + conv(h, edges) + conv'(h, reversed edges))).
The residual frame, the graph state (mean and maximum) and the edge features in every message are our choice.
Shape legend: N ops of all graphs of a batch, E edges, B graphs, D width, X width of the learner's extra input.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphopt.encoders.features import WIDTH
from graphopt.encoders.messages import Edges, both_ways, segment_max, segment_mean
from graphopt.operators import OPERATORS


class Convolution(nn.Module, ABC):
    """Gathers messages along edges of one direction: h [N, D] -> [N, D]. The op's own state is added by the frame."""

    @abstractmethod
    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor: ...


class Layer(nn.Module):
    """One hop in both directions, with residual and normalisation."""

    def __init__(self, forward_conv: Convolution, backward_conv: Convolution, width: int, dropout: float) -> None:
        super().__init__()
        self.forward_conv, self.backward_conv = forward_conv, backward_conv
        self.own = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h_ND: Tensor, edges: Edges, reverse: Edges) -> Tensor:
        message_ND = self.own(h_ND) + self.forward_conv(h_ND, edges) + self.backward_conv(h_ND, reverse)
        out: Tensor = self.norm(h_ND + self.dropout(nn.functional.gelu(message_ND)))
        return out


class Encoder(nn.Module, ABC):
    """Reads a batch of graphs. `width` is D; `extra_width` is X, the width of a learner's own input (0: none)."""

    def __init__(self, *, name: str, width: int, extra_width: int) -> None:
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


class ConvolutionEncoder(Encoder):
    """Layers of convolutions."""

    def __init__(self, *, name: str, width: int, layers: int, dropout: float, extra_width: int) -> None:
        super().__init__(name=name, width=width, extra_width=extra_width)
        self.hops = nn.ModuleList(Layer(self.convolution(), self.convolution(), width, dropout) for _ in range(layers))

    @abstractmethod
    def convolution(self) -> Convolution:
        """A new convolution of one direction. Called while the encoder is built."""

    def spread(self, h_ND: Tensor, data: Data) -> Tensor:
        edges, reverse = both_ways(data)
        for hop in self.hops:
            h_ND = hop(h_ND, edges, reverse)
        return h_ND
