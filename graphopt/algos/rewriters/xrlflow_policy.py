"""The network of X-RLflow (He et al., MLSys 2023, section 3.3; layers and widths of its code): tensors into nodes,
graph attention, a sum over each graph, a score per candidate.

Where ours differ: heads. The released one (`flat`) reads all candidates in their slots, so that it depends on their
order and is tied to the number of slots. `each` scores every candidate by the same network of how it differs from the
current program: it is equivariant, and takes any number. And a node reads the tensors that come in (the paper's
formula; the code adds those that leave).

Shape legend: M nodes and E edges of all programs, B states, G graphs of all states, A actions at most, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.rewrite.environment.meta_graph import DIMS, KINDS, SIZES, TOTALS, MetaGraph
from graphopt.utils.ranges import NotNegative, Width

LARGEST_LOGIT = 30.0  # of attention: exponentials stay finite
NEVER = -1e10  # logit of a slot without a candidate
LARGEST_DIM = 4096.0  # the paper's scale of dimensions
PER_CENT = 100.0


@dataclass(frozen=True, kw_only=True)
class NetworkSizes:
    """layers: of attention; candidates are drawn as far as so many hops reach. graph: width of a graph's state. sizes:
    whether nodes know their size and activation, and dimensions are logarithms, so that small and large programs look
    alike (the paper: no). prior: how many nats a candidate's score is raised by each per cent of the additive price
    that it saves; it is learned on (the paper: 0)."""

    width: Width
    layers: Width
    graph: Width
    head: Literal["each", "flat"]
    sizes: bool
    prior: NotNegative


@dataclass(frozen=True, slots=True, eq=False)
class ProgramStates:
    """Several `MetaGraph`s as tensors."""

    kind: Tensor  # [M]
    sizes: Tensor  # [M, S]
    edges: Tensor  # [2, E]
    dims: Tensor  # [E, 4]
    graph: Tensor  # [M]
    hidden: Tensor  # [2, H] graph, node
    totals: Tensor  # [G, T]
    current: Tensor  # [G] the current program of each graph's state
    first: Tensor  # [B] these programs
    slot: Tensor  # [G] action that leads there


def states_of(several: Sequence[MetaGraph], like: Tensor) -> ProgramStates:
    """One after another. like: a tensor of the device and the precision."""
    graphs = [0, *accumulate(len(one) for one in several)]
    nodes = [0, *accumulate(len(one.kind) for one in several)]

    def tensor(parts: Sequence[np.ndarray], axis: int = 0) -> Tensor:  # type: ignore[type-arg]
        made = torch.from_numpy(np.concatenate(parts, axis)).to(like.device)
        return made.to(like.dtype) if made.is_floating_point() else made

    counts = [len(one) for one in several]
    return ProgramStates(
        tensor([one.kind for one in several]), tensor([one.sizes for one in several]),
        tensor([one.edges + first for one, first in zip(several, nodes)], 1), tensor([one.dims for one in several]),
        tensor([one.graph + first for one, first in zip(several, graphs)]),
        tensor([one.hidden + np.array([[g], [n]]) for one, g, n in zip(several, graphs, nodes)], 1),
        tensor([one.totals for one in several]), tensor([np.repeat(graphs[:-1], counts)]),
        tensor([np.array(graphs[:-1])]), tensor([np.arange(count) for count in counts]),
    )  # fmt: skip


class GraphAttention(nn.Module):
    """One head over what comes in and the node itself: h'_i = sum_j softmax_j(a [W h_j, W h_i]) W h_j, as in the code.
    Plain sums over edges take half the time of torch_geometric's `GATConv` on a CPU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.logit = nn.Linear(width, width), nn.Linear(width, 2, bias=False)

    def forward(self, h_MD: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h_MD = self.own(h_MD)
        sent_M, received_M = self.logit(h_MD).unbind(1)
        edge_E = (sent_M[source] + received_M[target]).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
        self_M = (sent_M + received_M).clamp(-LARGEST_LOGIT, LARGEST_LOGIT).exp()
        summed = (self_M[:, None] * h_MD).index_add(0, target, edge_E[:, None] * h_MD[source])
        out: Tensor = summed / self_M.index_add(0, target, edge_E)[:, None]
        return out


class ProgramNetwork(nn.Module):
    """(sums [G, D] over the nodes of each graph, nodes [G] that it has)."""

    def __init__(self, network: NetworkSizes) -> None:
        super().__init__()
        self.sizes = network.sizes
        self.node = nn.Linear(len(KINDS) + DIMS + len(SIZES) * network.sizes, network.width)
        self.attention = nn.ModuleList(GraphAttention(network.width) for _ in range(network.layers))

    def forward(self, states: ProgramStates) -> tuple[Tensor, Tensor]:
        kind_MK = nn.functional.one_hot(states.kind, len(KINDS)).to(states.dims.dtype)
        dims = torch.log2(1 + states.dims) / 12 if self.sizes else states.dims / LARGEST_DIM
        read_M4 = dims.new_zeros(len(kind_MK), DIMS).index_add(0, states.edges[1], dims)
        known = [kind_MK, read_M4, states.sizes / 12] if self.sizes else [kind_MK, read_M4]
        h_MD = self.node(torch.cat(known, 1))
        for layer in self.attention:
            h_MD = nn.functional.leaky_relu(layer(h_MD, states.edges))
        ones_M1 = h_MD.new_ones(len(h_MD), 1)
        sums = self._summed(torch.cat([h_MD, ones_M1], 1), states)
        return sums[:, :-1], sums[:, -1:]

    def _summed(self, h_MD: Tensor, states: ProgramStates) -> Tensor:
        """A candidate has the nodes that it draws, and those of the current program that it does not hide."""
        graphs = len(states.totals)
        own = h_MD.new_zeros(graphs, h_MD.shape[1]).index_add(0, states.graph, h_MD)
        hidden = torch.zeros_like(own).index_add(0, states.hidden[0], h_MD[states.hidden[1]])
        shares = (states.slot > 0).to(h_MD.dtype)[:, None]
        summed: Tensor = own + shares * own[states.current] - hidden
        return summed


class XRLflowPolicy(nn.Module):
    """Log-probabilities [B, A] of actions, and values [B]."""

    def __init__(self, network: NetworkSizes, cap: int) -> None:
        super().__init__()
        self.cap, self.head, width = cap, network.head, network.graph
        self.programs = ProgramNetwork(network)
        self.prior = nn.Parameter(torch.tensor(float(network.prior)))
        if network.head == "flat":
            self.graph = nn.Linear(network.width + len(TOTALS), width)
            self.policy, self.value = _mlp(cap * width, cap, 0.01), _mlp(cap * width, 1, 0.01)
        else:
            self.graph = nn.Linear(network.width, width)
            self.change = nn.Linear(network.width, width)
            known = 2 * width + 2 * len(TOTALS)
            self.policy, self.value = _mlp(known, 1, 2**0.5), _mlp(known, 1, 2**0.5)

    def forward(self, several: Sequence[MetaGraph]) -> tuple[Tensor, Tensor]:
        states = states_of(several, self.prior)
        sums_GD, nodes_G1 = self.programs(states)
        most = self.cap if self.head == "flat" else int(states.slot.max()) + 1
        state_G = torch.bucketize(states.current, states.first)
        score, value_B = (self._flat if self.head == "flat" else self._each)(states, sums_GD, nodes_G1, state_G)
        gain_G = states.totals[:, 0]
        score = score + self.prior * PER_CENT * (gain_G - gain_G[states.current])
        logits_BA = score.new_full((len(several), most), NEVER)
        logits_BA = logits_BA.index_put((state_G, states.slot), score)
        return torch.log_softmax(logits_BA, 1), value_B

    def _each(self, states: ProgramStates, sums_GD: Tensor, nodes_G1: Tensor, state_G: Tensor) -> tuple[Tensor, Tensor]:
        """Scores [G] of how candidates differ, values [B] of the current program and of candidates on average."""
        whole_GD = torch.tanh(self.graph(sums_GD / nodes_G1.clamp(min=1)))[states.current]
        change_GD = torch.tanh(self.change(sums_GD - sums_GD[states.current]))
        known = torch.cat([whole_GD, change_GD, states.totals, states.totals - states.totals[states.current]], 1)
        count = known.new_zeros(len(states.first)).index_add(0, state_G, torch.ones_like(known[:, 0]))
        mean = known.new_zeros(len(count), known.shape[1]).index_add(0, state_G, known)
        return self.policy(known)[:, 0], self.value(mean / count[:, None])[:, 0]

    def _flat(self, states: ProgramStates, sums_GD: Tensor, nodes_G1: Tensor, state_G: Tensor) -> tuple[Tensor, Tensor]:
        """The released head: states of all graphs in their slots, zeros where there is none."""
        known = self.graph(torch.cat([sums_GD, states.totals], 1))
        slots = known.new_zeros(len(states.first), self.cap, known.shape[1])
        slots = slots.index_put((state_G, states.slot), known).flatten(1)
        return self.policy(slots)[state_G, states.slot], self.value(slots)[:, 0]


def _mlp(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    """[256, 64] tanh. gain: of the orthogonal weights of hidden layers (the code's: .01, as of the last one)."""
    layers = [nn.Linear(inputs, 256), nn.Linear(256, 64), nn.Linear(64, outputs)]
    for layer, scale in zip(layers, (gain, gain, 0.01)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
