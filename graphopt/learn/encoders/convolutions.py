"""Encoders made of torch_geometric's convolutions: GraphSAGE, GIN, GAT, and any other by name (`PyG`).

Each layer sees both directions with separate weights:
h <- LayerNorm(h + GELU(W h + conv(h, edges) + conv'(h, reversed edges))).

The residual frame is our choice. Edge features reach every layer: inside the messages where the convolution reads them,
else their mean over the incoming edges is added by a linear map.
Shape legend: N ops of all graphs of a batch, E edges, D width.
"""

import inspect
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch_geometric.nn
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATv2Conv, GINEConv, MessagePassing, SAGEConv

from graphopt.core.errors import ConfigError
from graphopt.core.utils.marks import AttentionHeads, Layers, Share, Width
from graphopt.learn.encoders.encoder import Edges, Encoder, both_ways
from graphopt.learn.encoders.features import EDGE_WIDTH

PACKAGE = "torch_geometric.nn"


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
        message_ND = self.conv(h_ND, edges.edge_index)
        summed: Tensor = self.edge(edges.mean).add_(message_ND)
        return summed


def reads_edges(conv: type[MessagePassing]) -> bool:
    """Whether a convolution puts edge features into its messages."""
    return "edge_dim" in inspect.signature(conv).parameters


class Layer(nn.Module):
    """One hop in both directions, with residual and normalisation. Sums in place: large graphs have large states."""

    def __init__(self, forward_conv: Convolution, backward_conv: Convolution, width: int, dropout: float) -> None:
        super().__init__()
        self.forward_conv, self.backward_conv = forward_conv, backward_conv
        self.own = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h_ND: Tensor, edges: Edges, reverse: Edges) -> Tensor:
        message_ND = self.own(h_ND).add_(self.forward_conv(h_ND, edges)).add_(self.backward_conv(h_ND, reverse))
        out: Tensor = self.norm(self.dropout(nn.functional.gelu(message_ND)).add_(h_ND))
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


class GraphSAGE(ConvolutionEncoder):
    """GraphSAGE (Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017, algorithm 1).

    `aggregation` is how messages are joined (section 3.3): `mean`, or `max` of relu(W h + b) (equation 3).
    """

    def __init__(self, *, name: str, width: Width, layers: Layers, dropout: Share, aggregation: Literal["mean", "max"],
                 extra_width: int) -> None:  # fmt: skip
        self._aggregation = aggregation
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> MessagePassing:
        pooling = self._aggregation == "max"
        return SAGEConv(self.width, self.width, aggr=self._aggregation, project=pooling, root_weight=False, bias=False)


class GIN(ConvolutionEncoder):
    """GIN (Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019, equation 4.1), with edge features
    in the messages as in GINE (Hu et al.: Strategies for Pre-training Graph Neural Networks, 2020).

    Sums messages, so it tells multisets apart that mean and max confuse; eps is learned, from 0.
    """

    def convolution(self) -> MessagePassing:
        mlp = nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, self.width))
        return GINEConv(mlp, train_eps=True, edge_dim=EDGE_WIDTH)


class GAT(ConvolutionEncoder):
    """GAT in its second version (Brody, Alon, Yahav: How Attentive are Graph Attention Networks?, 2022, equation 7).

    Attention over neighbours with `heads` heads; `width` is a multiple of `heads`.

    Sender and receiver share their weights, which halves the work; no self loops, the frame adds the op's own state.
    """

    def __init__(
        self, *, name: str, width: Width, layers: Layers, dropout: Share, heads: AttentionHeads, extra_width: int
    ) -> None:
        if width % heads:
            raise ConfigError(f"encoder {name!r}: width {width} is not a multiple of {heads} heads; change one of them")
        self._heads = heads
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> MessagePassing:
        return GATv2Conv(
            self.width, self.width // self._heads, heads=self._heads, edge_dim=EDGE_WIDTH, add_self_loops=False,
            share_weights=True, bias=False,
        )  # fmt: skip


class PyG(ConvolutionEncoder):
    """`encoder=pyg encoder.conv=torch_geometric.nn.TransformerConv`.

    conv: name of a convolution in torch_geometric.nn, built as conv(width, width, **options). options: keyword
    arguments of its constructor. It has to keep the width, so give attention `concat: false`.
    """

    def __init__(self, *, name: str, width: Width, layers: Layers, dropout: Share, conv: str,
                 options: Mapping[str, Any], extra_width: int) -> None:  # fmt: skip
        self._class, self._options = convolution_named(conv), dict(options)
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> MessagePassing:
        reads = reads_edges(self._class)
        edges = {"edge_dim": EDGE_WIDTH} if reads else {}
        attributes = {"edge_attr": torch.zeros(1, EDGE_WIDTH)} if reads else {}
        try:
            made: MessagePassing = self._class(self.width, self.width, **edges, **self._options)
            kept = made(torch.zeros(2, self.width), torch.tensor([[0], [1]]), **attributes).shape
        except (TypeError, ValueError, RuntimeError, AssertionError, AttributeError) as error:
            raise ConfigError(
                f"encoder.conv={self._class.__name__} cannot be built from two widths and encoder.options="
                f"{self._options} ({' '.join(str(error).split())[:160]}); give its keyword arguments in encoder.options"
            ) from None
        if kept != (2, self.width):
            raise ConfigError(
                f"encoder.conv={self._class.__name__} makes width {kept[-1]} of {self.width}; it has to keep "
                "the width, for example with +encoder.options.concat=false"
            )
        return made


def convolution_named(path: str) -> type[MessagePassing]:
    """The class. A checkpoint may name it too, so nothing is imported but torch_geometric.nn."""
    package, _, short = path.rpartition(".")
    found = getattr(torch_geometric.nn, short, None) if package in ("", PACKAGE) else None
    if not (inspect.isclass(found) and issubclass(found, MessagePassing)):
        raise ConfigError(f"encoder.conv={path} is no convolution of {PACKAGE}; give one, such as {PACKAGE}.GATv2Conv")
    return found
