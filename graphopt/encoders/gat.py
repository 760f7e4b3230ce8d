"""GAT in its second version (Brody, Alon, Yahav: How Attentive are Graph Attention Networks?, 2022, equation 7)."""

import torch
from torch import Tensor, nn

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.encoder import Convolution, ConvolutionEncoder
from graphopt.encoders.messages import Edges, segment_softmax, segment_sum
from graphopt.errors import ConfigError


class AttentionConvolution(Convolution):
    """sum_u alpha_uv z_u with z = W h and alpha = softmax over u of a . leaky_relu(z_u + z_v + W_edge e_uv), per head.

    Sender and receiver share W; no self loops, the frame adds the op's own state.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.edge = nn.Linear(EDGE_WIDTH, width, bias=False)
        self.attention = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.attention)

    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor:
        z_ND = self.project(h_ND)
        sent_ED = z_ND.index_select(0, edges.sender)
        pair_ED = sent_ED + z_ND.index_select(0, edges.receiver) + self.edge(edges.attr)
        pair_EHC = nn.functional.leaky_relu(pair_ED, 0.2).view(-1, *self.attention.shape)
        alpha_EH = segment_softmax((pair_EHC * self.attention).sum(-1), edges)
        weighted_EHC = sent_ED.view_as(pair_EHC) * alpha_EH[:, :, None]
        return segment_sum(weighted_EHC.view_as(sent_ED), edges)


class GAT(ConvolutionEncoder):
    """Attention over neighbours with `heads` heads; `width` is a multiple of `heads`."""

    def __init__(self, *, name: str, width: int, layers: int, dropout: float, heads: int, extra_width: int) -> None:
        if width % heads:
            raise ConfigError(f"encoder {name!r}: width {width} is not a multiple of {heads} heads; change one of them")
        self._heads = heads
        super().__init__(name=name, width=width, layers=layers, dropout=dropout, extra_width=extra_width)

    def convolution(self) -> Convolution:
        return AttentionConvolution(self.width, self._heads)
