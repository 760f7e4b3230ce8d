"""GAT in its second version (Brody, Alon, Yahav: How Attentive are Graph Attention Networks?, 2022, equation 7)."""

from torch_geometric.nn import GATv2Conv, MessagePassing

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.convolutions import ConvolutionEncoder
from graphopt.errors import ConfigError
from graphopt.utils.ranges import AttentionHeads, Layers, Share, Width


class GAT(ConvolutionEncoder):
    """Attention over neighbours with `heads` heads; `width` is a multiple of `heads`.

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
