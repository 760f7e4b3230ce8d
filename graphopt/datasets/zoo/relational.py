"""Networks over entities: message passing (GraphNets) and ranking (DeepRank)."""

import torch
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import MLP

Built = tuple[nn.Module, tuple[Tensor, ...]]


class GraphBlock(nn.Module):
    """Updates edges, then nodes, then the global state (Battaglia et al. 2018, algorithm 1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge, self.node = MLP([4 * width, width, width], norm=True), MLP([3 * width, width, width], norm=True)
        self.all = MLP([3 * width, width, width], norm=True)

    def forward(
        self, nodes: Tensor, edges: Tensor, state: Tensor, sender: Tensor, receiver: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_edges, to_nodes = state.expand(len(edges), -1), state.expand(len(nodes), -1)
        edges = edges + self.edge(torch.cat([edges, nodes[sender], nodes[receiver], to_edges], -1))
        received = torch.zeros_like(nodes).index_add(0, receiver, edges)
        nodes = nodes + self.node(torch.cat([nodes, received, to_nodes], -1))
        means = [nodes.mean(0, keepdim=True), edges.mean(0, keepdim=True)]
        return nodes, edges, state + self.all(torch.cat([*means, state], -1))


class GraphNets(nn.Module):
    """Encode, process for several rounds, decode."""

    def __init__(self, rounds: int, width: int) -> None:
        super().__init__()
        self.nodes, self.edges, self.state = (MLP([16, width, width], norm=True) for _ in range(3))
        self.rounds = nn.ModuleList(GraphBlock(width) for _ in range(rounds))
        self.node_out, self.edge_out = MLP([width, width, 1]), MLP([width, width, 1])

    def forward(
        self, nodes: Tensor, edges: Tensor, state: Tensor, sender: Tensor, receiver: Tensor
    ) -> tuple[Tensor, Tensor]:
        nodes, edges, state = self.nodes(nodes), self.edges(edges), self.state(state)
        for block in self.rounds:
            nodes, edges, state = block(nodes, edges, state, sender, receiver)
        return self.node_out(nodes), torch.sigmoid(self.edge_out(edges))


def graph_nets(*, rounds: int = 4, nodes: int = 256, edges: int = 1024, width: int = 128) -> Built:
    ends = torch.zeros(2, edges, dtype=torch.int64)
    return GraphNets(rounds, width), (
        torch.zeros(nodes, 16),
        torch.zeros(edges, 16),
        torch.zeros(1, 16),
        ends[0],
        ends[1],
    )


class Tower(nn.Module):
    """Feature embeddings joined by cross layers (Wang et al. 2017) beside a deep network."""

    def __init__(self, features: int, width: int, layers: int, rows: int) -> None:
        super().__init__()
        joined = features * width
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(features))
        self.crosses = nn.ModuleList(nn.Linear(joined, 1) for _ in range(layers))
        self.deep = MLP([joined, *[256] * layers])
        self.out = nn.Linear(joined + 256, 64)

    def forward(self, ids: Tensor) -> Tensor:
        first = torch.cat([table(i) for table, i in zip(self.tables, ids.unbind(1))], -1)
        x = first
        for cross in self.crosses:
            x = first * cross(x) + x
        return torch.tanh(self.out(torch.cat([x, torch.relu(self.deep(first))], -1)))


class DeepRank(nn.Module):
    """Scores of candidates for a query: two towers, their interactions, and a softmax over the candidates."""

    def __init__(self, features: int, width: int, layers: int, rows: int) -> None:
        super().__init__()
        self.query, self.item = (Tower(features, width, layers, rows) for _ in range(2))
        self.score = MLP([64 * 3 + 1, *[128] * layers, 1])

    def forward(self, query: Tensor, items: list[Tensor]) -> Tensor:
        q, scores = self.query(query), []
        for ids in items:
            x = self.item(ids)
            cosine = (q * x).sum(-1, keepdim=True) * torch.rsqrt(
                (q * q).sum(-1, keepdim=True) * (x * x).sum(-1, keepdim=True) + 1e-6
            )
            scores.append(self.score(torch.cat([q * x, (q - x).abs(), x, cosine], -1)))
        return torch.cat(scores, -1).log_softmax(-1)


def deep_rank(
    *, layers: int = 3, candidates: int = 4, features: int = 8, batch: int = 64, width: int = 32, rows: int = 10_000
) -> Built:
    module = DeepRank(features, width, layers, rows)
    ids = [torch.zeros(batch, features, dtype=torch.int64) for _ in range(candidates + 1)]
    return module, (ids[0], ids[1:])  # type: ignore[return-value]
