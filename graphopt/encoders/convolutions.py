"""Encoders made of torch_geometric's convolutions. Each layer sees both directions with separate weights:
h <- LayerNorm(h + GELU(W h + conv(h, edges) + conv'(h, reversed edges))).

The residual frame is our choice. Edge features reach every layer: inside the messages where the convolution reads them,
else their mean over the incoming edges is added by a linear map.
Shape legend: N ops of all graphs of a batch, E edges, D width.
"""

import inspect
from abc import abstractmethod

from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import MessagePassing

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.encoder import Encoder
from graphopt.encoders.messages import Edges, both_ways, segment_mean
from graphopt.utils.ranges import Layers, Share, Width


class Convolution(nn.Module):
    """A convolution along edges of one direction: h [N, D] -> [N, D]. The op's own state is added by the frame."""

    def __init__(self, conv: MessagePassing, width: int) -> None:
        super().__init__()
        self.conv = conv
        self.edge = None if reads_edges(type(conv)) else nn.Linear(EDGE_WIDTH, width, bias=False)

    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor:
        if self.edge is None:
            out: Tensor = self.conv(h_ND, edges.edge_index, edge_attr=edges.attr)
            return out
        summed: Tensor = self.conv(h_ND, edges.edge_index) + self.edge(segment_mean(edges.attr, edges.degree))
        return summed


def reads_edges(conv: type[MessagePassing]) -> bool:
    """Whether a convolution puts edge features into its messages."""
    return "edge_dim" in inspect.signature(conv).parameters


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


class ConvolutionEncoder(Encoder):
    """Layers of convolutions."""

    def __init__(self, *, name: str, width: Width, layers: Layers, dropout: Share, extra_width: int) -> None:
        super().__init__(name=name, width=width, extra_width=extra_width)
        self.hops = nn.ModuleList(Layer(self._one_way(), self._one_way(), width, dropout) for _ in range(layers))

    def _one_way(self) -> Convolution:
        return Convolution(self.convolution(), self.width)

    @abstractmethod
    def convolution(self) -> MessagePassing:
        """A new convolution [N, D] -> [N, D] of torch_geometric. Called while the encoder is built."""

    def spread(self, h_ND: Tensor, data: Data) -> Tensor:
        edges, reverse = both_ways(data)
        for hop in self.hops:
            h_ND = hop(h_ND, edges, reverse)
        return h_ND
