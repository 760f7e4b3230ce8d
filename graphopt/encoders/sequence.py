"""GAS, graph as sequence: REGAL's baseline (Paliwal et al., 2020) that puts a recurrent network in place of the graph
network, in the spirit of Mirhoseini et al.: Device Placement Optimization with Reinforcement Learning, 2017.

The ops of a graph are read in topological order, forwards and backwards. Edges are not read; what an op knows of its
neighbours is what its features say.
Shape legend: N ops of all graphs of a batch, B graphs, L ops of the longest, D width.
"""

from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch_geometric.data import Data

from graphopt.encoders.encoder import Encoder
from graphopt.errors import ConfigError
from graphopt.utils.ranges import Between, Width


class Sequence(Encoder):
    """`layers` of a recurrent network in both directions, `cell` is `gru` or `lstm`; half of the even `width` each."""

    def __init__(self, *, name: str, width: Width, layers: Annotated[int, Between(1, 256)],
                 cell: Literal["gru", "lstm"], extra_width: int) -> None:  # fmt: skip
        if cell not in ("gru", "lstm"):
            raise ConfigError(f"encoder {name!r}: cell is gru or lstm, not {cell!r}")
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
