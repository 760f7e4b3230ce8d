"""Message passing on edges sorted by receiver: gather, then reduce contiguous segments. Deterministic on the CPU.

On 80,000 ops this is faster than scattering unsorted edges, and it needs no compiled extension.
Shape legend: N ops, E edges, D width, H heads, S segments.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data


class Edges(NamedTuple):
    """Edges of one direction, sorted by receiver."""

    edge_index: Tensor  # int64 [2, E] sender and receiver; receivers do not decrease
    degree: Tensor  # int64 [N] edges that each op receives
    attr: Tensor  # float32 [E, EDGE_WIDTH]
    divisor: Tensor  # float32 [N, 1] degree, at least 1: of means
    reached: Tensor  # bool [N, 1] whether an op receives any

    @staticmethod
    def of(index: Tensor, attr: Tensor, num_ops: int) -> "Edges":
        """From an index [2, E] whose second row does not decrease."""
        index = index.contiguous()
        receiver = index[1]
        ends = torch.searchsorted(receiver, torch.arange(num_ops + 1, device=receiver.device))
        degree = ends.diff()
        count_N1 = degree[:, None].to(attr.dtype)
        return Edges(index, degree, attr, count_N1.clamp(min=1), count_N1 > 0)

    @property
    def sender(self) -> Tensor:
        """int64 [E]"""
        return self.edge_index[0]

    @property
    def receiver(self) -> Tensor:
        """int64 [E], non-decreasing"""
        return self.edge_index[1]


def both_ways(data: Data) -> tuple[Edges, Edges]:
    """Edges from producers to consumers, and the same turned round."""
    num_ops = len(data.kind)
    return (
        Edges.of(data.edge_index, data.edge_attr, num_ops),
        Edges.of(data.reverse_index, data.reverse_attr, num_ops),
    )


def segment_sum(value_ED: Tensor, edges: Edges) -> Tensor:
    """[N, ...] sum of the messages that each op receives; 0 without any."""
    out = value_ED.new_zeros((len(edges.degree), *value_ED.shape[1:]))
    return out.index_add(0, edges.receiver, value_ED)


def segment_mean(value_ED: Tensor, count_S: Tensor) -> Tensor:
    """[S, D] mean of consecutive segments of `count_S` rows; 0 for empty ones."""
    total = torch.segment_reduce(value_ED, "sum", lengths=count_S, axis=0, unsafe=True, initial=0)
    return total / count_S.clamp(min=1).to(total.dtype)[:, None]


def segment_max(value_ED: Tensor, count_S: Tensor) -> Tensor:
    """[S, D] maximum of consecutive segments of `count_S` rows; 0 for empty ones."""
    largest = torch.segment_reduce(value_ED, "max", lengths=count_S, axis=0, unsafe=True)
    return torch.where((count_S > 0)[:, None], largest, 0.0)
