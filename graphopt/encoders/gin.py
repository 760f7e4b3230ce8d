"""GIN (Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019, equation 4.1), with edge features
in the messages as in GINE (Hu et al.: Strategies for Pre-training Graph Neural Networks, 2020)."""

import torch
from torch import Tensor, nn

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.encoder import Convolution, ConvolutionEncoder
from graphopt.encoders.messages import Edges, segment_sum


class SumConvolution(Convolution):
    """MLP((1 + eps) h_v + sum_u relu(h_u + W_edge e_uv)), eps learned from 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.edge = nn.Linear(EDGE_WIDTH, width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))

    def forward(self, h_ND: Tensor, edges: Edges) -> Tensor:
        message_ED = (h_ND.index_select(0, edges.sender) + self.edge(edges.attr)).relu()
        out: Tensor = self.mlp((1 + self.eps) * h_ND + segment_sum(message_ED, edges))
        return out


class GIN(ConvolutionEncoder):
    """Sums messages, so it tells multisets apart that mean and max confuse."""

    def convolution(self) -> Convolution:
        return SumConvolution(self.width)
