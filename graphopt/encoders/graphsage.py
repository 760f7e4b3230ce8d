"""GraphSAGE (Hamilton, Ying, Leskovec: Inductive Representation Learning on Large Graphs, 2017, algorithm 1)."""

from typing import Literal

from torch_geometric.nn import MessagePassing, SAGEConv

from graphopt.encoders.convolutions import ConvolutionEncoder
from graphopt.errors import ConfigError
from graphopt.utils.ranges import Layers, Share, Width


class GraphSAGE(ConvolutionEncoder):
    """`aggregation` is how messages are joined (section 3.3): `mean`, or `max` of relu(W h + b) (equation 3)."""

    def __init__(self, *, name: str, width: Width, layers: Layers, dropout: Share, aggregation: Literal["mean", "max"],
                 extra_width: int) -> None:  # fmt: skip
        if aggregation not in ("mean", "max"):
            raise ConfigError(f"encoder {name!r}: aggregation is mean or max, not {aggregation!r}")
        self._aggregation = aggregation
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> MessagePassing:
        pooling = self._aggregation == "max"
        return SAGEConv(self.width, self.width, aggr=self._aggregation, project=pooling, root_weight=False, bias=False)
