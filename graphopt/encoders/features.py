"""Graph -> torch_geometric `Data`: the only door to PyG. Everything is finite and clipped to [-LIMIT, LIMIT].

Shape legend: N ops, E edges, B graphs.
"""

from collections.abc import Sequence
from copy import copy
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import Batch, Data

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.encoders.columns import EDGE_FEATURES, EDGE_WIDTH, FEATURES, WIDTH, Columns, edge_columns, op_columns

__all__ = ["EDGE_WIDTH", "LIMIT", "WIDTH", "batch", "graph_features"]

LIMIT = 5.0

_CACHE: "WeakKeyDictionary[Graph, dict[Machine, Data]]" = WeakKeyDictionary()


def graph_features(graph: Graph, machine: Machine) -> Data:
    """Features of a graph on a machine, computed once; the tensors are shared, so never write into them.

    kind int64 [N] operator id; x float32 [N, WIDTH]; edge_index int64 [2, E] producer -> consumer, sorted by consumer;
    edge_attr float32 [E, EDGE_WIDTH]; reverse_index, reverse_attr: the same edges turned round, sorted by producer;
    num_ops int64 [1].
    """
    per_machine = _CACHE.setdefault(graph, {})
    if machine not in per_machine:
        per_machine[machine] = _data(graph, machine)
    return copy(per_machine[machine])  # `Data.to` works in place: the caller's copy moves, the stored one stays


def batch(datas: Sequence[Data]) -> Batch:
    """B graphs as one disconnected graph: fields joined, indices shifted; `num_ops` is [B], `batch` is [N]."""
    return Batch.from_data_list(list(datas))


def _data(graph: Graph, machine: Machine) -> Data:
    source, target, tensor = graph.edges
    edge_attr = _stack(edge_columns(graph), EDGE_FEATURES, len(tensor))
    turned = np.lexsort((target, source))
    return Data(
        kind=torch.from_numpy(graph.kind.astype(np.int64)),
        x=torch.from_numpy(_stack(op_columns(graph, machine), FEATURES, graph.num_ops)),
        edge_index=torch.from_numpy(np.stack([source, target]).astype(np.int64)),
        edge_attr=torch.from_numpy(edge_attr),
        reverse_index=torch.from_numpy(np.stack([target[turned], source[turned]]).astype(np.int64)),
        reverse_attr=torch.from_numpy(edge_attr[turned]),
        num_ops=torch.tensor([graph.num_ops]),
    )


def _stack(columns: Columns, names: tuple[str, ...], rows: int) -> NDArray[np.float32]:
    out = np.empty((rows, len(names)), np.float32)
    for i, name in enumerate(names):
        np.clip(columns[name], -LIMIT, LIMIT, out=out[:, i], casting="unsafe")
    return out
