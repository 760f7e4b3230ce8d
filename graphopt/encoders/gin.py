"""GIN (Xu, Hu, Leskovec, Jegelka: How Powerful are Graph Neural Networks?, 2019, equation 4.1), with edge features
in the messages as in GINE (Hu et al.: Strategies for Pre-training Graph Neural Networks, 2020)."""

from torch import nn
from torch_geometric.nn import GINEConv, MessagePassing

from graphopt.encoders.columns import EDGE_WIDTH
from graphopt.encoders.convolutions import ConvolutionEncoder


class GIN(ConvolutionEncoder):
    """Sums messages, so it tells multisets apart that mean and max confuse; eps is learned, from 0."""

    def convolution(self) -> MessagePassing:
        mlp = nn.Sequential(nn.Linear(self.width, self.width), nn.ReLU(), nn.Linear(self.width, self.width))
        return GINEConv(mlp, train_eps=True, edge_dim=EDGE_WIDTH)
