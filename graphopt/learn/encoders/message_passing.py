"""REGAL's encoders (Paliwal et al.: Reinforced Genetic Algorithm Learning, 2020): message passing in both directions
(appendix), and its baseline GAS, graph as sequence, which reads the ops by a recurrent network (`Sequence`).

h_v from the op's features, e' = MLP(e) from the edge's. A round, for every edge from producer v to consumer u: m_vu =
MLP([h_v, h_u, e'_vu]) goes to the consumer. m'_uv = MLP'([h_u, h_v, e'_vu]) goes back to the producer. Then h_v <-
update([h_v, messages from producers, messages from consumers]).

Our choices: messages are averaged, not summed, since sums explode where a result has thousands of readers (how many
neighbours there are is among the features of ops); MLPs of messages have one hidden layer of the encoder's width; an
update by MLP is residual and normalised, one by GRU is neither, as its gates keep states bounded. Weights start at
scales that keep messages as large as states: from torch's own, an op is hardly heard two edges away before training.
Shape legend: N ops of all graphs of a batch, B graphs, L ops of the longest, E edges, D width.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch_geometric.data import Data

from graphopt.core.errors import ConfigError
from graphopt.core.utils.marks import Between, Width
from graphopt.learn.encoders.encoder import Edges, Encoder, both_ways, segment_sum
from graphopt.learn.encoders.features import EDGE_WIDTH

Rounds = Annotated[int, Between(0, 1000)]


class Messages(nn.Module):
    """The mean over senders v of MLP([h_v, h_u, e'_vu]) for every receiver u; 0 without any: [N, D].

    Linear maps change places with gathering and averaging, so that they run once per op and not once per edge. The
    hidden layer is W1 h_v + W2 h_u + W3 e', the output layer is applied to the mean.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sender = nn.Linear(width, width, bias=False)
        self.receiver = nn.Linear(width, width, bias=False)
        self.edge = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        for linear in (self.sender, self.receiver, self.edge, self.out):
            nn.init.kaiming_uniform_(linear.weight, nonlinearity="relu")

    def forward(self, h_ND: Tensor, edges: Edges, edge_ED: Tensor) -> Tensor:
        """edge_ED: `self.edge` of e'."""
        hidden_ED = self.sender(h_ND).index_select(0, edges.sender)
        hidden_ED += self.receiver(h_ND).index_select(0, edges.receiver)
        hidden_ED += edge_ED  # in place: at this size allocation costs more than addition
        hidden_ED.relu_()
        message_ND: Tensor = self.out(segment_sum(hidden_ED, edges) / edges.divisor) * edges.reached
        return message_ND


class GatedUpdate(nn.Module):
    """A GRU whose input are the messages of both directions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.GRUCell(2 * width, width)
        nn.init.xavier_uniform_(self.cell.weight_ih)
        nn.init.orthogonal_(self.cell.weight_hh)

    def forward(self, h_ND: Tensor, down_ND: Tensor, up_ND: Tensor) -> Tensor:
        out: Tensor = self.cell(torch.cat([down_ND, up_ND], 1), h_ND)
        return out


class ResidualUpdate(nn.Module):
    """LayerNorm(h + MLP([h, messages of both directions]))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(3 * width, width), nn.GELU(), nn.Linear(width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, h_ND: Tensor, down_ND: Tensor, up_ND: Tensor) -> Tensor:
        out: Tensor = self.norm(h_ND + self.mlp(torch.cat([h_ND, down_ND, up_ND], 1)))
        return out


class RoundWeights(nn.Module):
    """The weights of a round."""

    def __init__(self, width: int, update: str) -> None:
        super().__init__()
        self.down, self.up = Messages(width), Messages(width)
        self.update: nn.Module = GatedUpdate(width) if update == "gru" else ResidualUpdate(width)


class MessagePassing(Encoder):
    """`rounds` of messages, with the same weights (`shared`) or their own; `update` is `gru` or `mlp`."""

    def __init__(self, *, name: str, width: Width, rounds: Rounds, shared: bool,
                 update: Literal["gru", "mlp"], extra_width: int) -> None:  # fmt: skip
        super().__init__(name=name, width=width, extra_width=extra_width)
        self.rounds = rounds
        self.edge = nn.Sequential(nn.Linear(EDGE_WIDTH, width), nn.ReLU(), nn.Linear(width, width))
        self.steps = nn.ModuleList(RoundWeights(width, update) for _ in range(min(rounds, 1) if shared else rounds))

    def spread(self, h_ND: Tensor, data: Data) -> Tensor:
        edges, reverse = both_ways(data)
        down_ED, up_ED = self.edge(edges.attr), self.edge(reverse.attr)
        for step in self.steps:
            assert isinstance(step, RoundWeights)
            edge_down_ED, edge_up_ED = step.down.edge(down_ED), step.up.edge(up_ED)
            for _ in range(self.rounds // len(self.steps)):  # all of them where weights are shared, else one
                h_ND = step.update(h_ND, step.down(h_ND, edges, edge_down_ED), step.up(h_ND, reverse, edge_up_ED))
        return h_ND


class Sequence(Encoder):
    """GAS, in the spirit of Mirhoseini et al.: Device Placement Optimization with Reinforcement Learning, 2017.

    The ops of a graph are read in topological order, forwards and backwards, by `layers` of a recurrent network, with
    half of the even `width` each. Edges are not read; an op knows its neighbours by its features alone.
    """

    def __init__(self, *, name: str, width: Width, layers: Annotated[int, Between(1, 256)],
                 cell: Literal["gru", "lstm"], extra_width: int) -> None:  # fmt: skip
        if width % 2:
            raise ConfigError(f"encoder {name!r}: width {width} is odd; make it even, each direction has half of it")
        super().__init__(name=name, width=width, extra_width=extra_width)
        network = nn.GRU if cell == "gru" else nn.LSTM
        self.network = network(width, width // 2, num_layers=layers, bidirectional=True, batch_first=True)

    def spread(self, h_ND: Tensor, data: Data) -> Tensor:
        lengths = data.num_ops.tolist()
        padded_BLD = pad_sequence(list(torch.split(h_ND, lengths)), batch_first=True)
        packed = pack_padded_sequence(padded_BLD, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        read_BLD, _ = pad_packed_sequence(self.network(packed)[0], batch_first=True)
        return torch.cat([read_LD[:length] for read_LD, length in zip(read_BLD, lengths)])
