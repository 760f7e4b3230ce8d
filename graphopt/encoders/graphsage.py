"""GraphSAGE (Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017, algorithm 1)."""

from typing import Literal

from torch import Tensor, nn

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.encoder import Convolution, ConvolutionEncoder
from graphopt.encoders.messages import Edges, segment_max, segment_mean, segment_sum
from graphopt.errors import ConfigError


class MeanConvolution(Convolution):
    """W mean_u [h_u, e_uv] (mean aggregator, section 3.3)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(EDGE_WIDTH, width, bias=False)

    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor:
        mean_ND = segment_sum(h_ND.index_select(0, edges.sender), edges) / edges.divisor
        out: Tensor = self.neighbours(mean_ND) + self.edge(segment_mean(edges.attr, edges.degree))
        return out


class MaxConvolution(Convolution):
    """W max_u relu(W_pool h_u + W_edge e_uv + b) (pooling aggregator, section 3.3, equation 3)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before = nn.Linear(width, width)
        self.edge = nn.Linear(EDGE_WIDTH, width, bias=False)
        self.neighbours = nn.Linear(width, width, bias=False)

    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor:
        message_ED = (self.before(h_ND).index_select(0, edges.sender) + self.edge(edges.attr)).relu()
        out: Tensor = self.neighbours(segment_max(message_ED, edges.degree))
        return out


class GraphSAGE(ConvolutionEncoder):
    """`aggregation` is how messages are joined: `mean` or `max`."""

    def __init__(self, *, name: str, width: int, layers: int, dropout: float, aggregation: Literal["mean", "max"],
                 extra_width: int) -> None:  # fmt: skip
        if aggregation not in ("mean", "max"):
            raise ConfigError(f"encoder {name!r}: aggregation is mean or max, not {aggregation!r}")
        self._aggregation = aggregation
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> Convolution:
        return MeanConvolution(self.width) if self._aggregation == "mean" else MaxConvolution(self.width)
