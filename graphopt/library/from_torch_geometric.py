"""torch-geometric: stacks of the convolutions of many papers, on a graph of given size."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from graphopt.library.catalogue import LibraryModel
from graphopt.library.weightless import weightless

PACKAGE, LICENCE, SOURCE = "torch_geometric", "MIT", "https://github.com/pyg-team/pytorch_geometric"
NODES, WIDTH = 500, 64
ALONE = {"add_self_loops": False}  # whether a graph has loops already is a question about its values

# Convolution -> settings beside its widths.
CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "SAGEConv": {"aggr": ["mean", "max"]},
    "GCNConv": ALONE,
    "GATConv": ALONE,
    "GATv2Conv": ALONE,
    "SGConv": ALONE | {"K": 2},
    "EGConv": ALONE,
    "GraphConv": {},
    "TAGConv": {},
    "ARMAConv": {"num_layers": 2},
    "TransformerConv": {},
    "ResGatedGraphConv": {},
    "LEConv": {},
    "GENConv": {},
    "FiLMConv": {},
    "GeneralConv": {"attention": True},
}


class Stack(nn.Module):
    """Convolutions with a nonlinearity between them: features [N, 64] and edges [2, E] to features [N, 64]."""

    def __init__(self, kind: str, layers: int) -> None:
        from torch_geometric import nn as convolutions

        super().__init__()
        made = getattr(convolutions, kind)
        self.layers = nn.ModuleList(made(WIDTH, WIDTH, **CONVOLUTIONS[kind]) for _ in range(layers))

    def forward(self, features: Tensor, edges: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            features = layer(features, edges).relu()
        result: Tensor = self.layers[-1](features, edges)
        return result


def entries() -> Iterator[LibraryModel]:
    for kind in CONVOLUTIONS:
        for backward in (False, True):
            yield LibraryModel("torch_geometric", kind, kind.lower(), "small", backward)
        yield LibraryModel("torch_geometric", kind, kind.lower())


def build(entry: LibraryModel) -> tuple[Any, list[Any]]:
    with weightless():
        model = Stack(entry.model, 2 if entry.size == "small" else 8)
    edges = torch.zeros(2, NODES * entry.pick(4, 8), dtype=torch.long)
    return model, [(torch.zeros(NODES, WIDTH), edges)]
