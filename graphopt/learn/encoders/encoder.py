"""`Encoder`: reads a graph, gives a state per op and a state per graph.

Every encoder reads ops alike, lets their states spread in its own way, and pools them alike. The graph state, mean and
maximum of the ops', is our choice.
Messages travel along edges sorted by receiver: gather, then reduce contiguous segments. On 80,000 ops this is faster
than scattering unsorted edges, deterministic on the CPU, and needs no compiled extension.
Shape legend: N ops of all graphs of a batch, B graphs, D width, X width of the learner's extra input, E edges,
S segments.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from graphopt.core.errors import UserError
from graphopt.core.operators import OPERATORS
from graphopt.core.utils.marks import Width
from graphopt.learn.encoders.features import WIDTH

if TYPE_CHECKING:
    from torch_geometric.data import Data


class Edges(NamedTuple):
    """Edges of one direction, sorted by receiver."""

    edge_index: Tensor  # int64 [2, E] sender and receiver; receivers do not decrease
    degree: Tensor  # int64 [N] edges that each op receives
    attr: Tensor  # float32 [E, EDGE_WIDTH]
    mean: Tensor  # float32 [N, EDGE_WIDTH] of the edges that each op receives
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
        return Edges(index, degree, attr, segment_mean(attr, degree), count_N1.clamp(min=1), count_N1 > 0)

    @property
    def sender(self) -> Tensor:
        """int64 [E]"""
        return self.edge_index[0]

    @property
    def receiver(self) -> Tensor:
        """int64 [E], non-decreasing"""
        return self.edge_index[1]


def both_ways(data: "Data") -> tuple[Edges, Edges]:
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


# ---- how large a network may be that a configuration asks for: said before its memory is taken

MOST = 100_000_000  # numbers of a network while it is built; training takes four times their bytes, REGAL eight times
LEAST = 1_000  # numbers that every tensor counts for, however small it is: many take long


class TooLarge(UserError):
    """A network of more numbers than are built here."""


class Allowance(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, new tensors may have `most` numbers together, those that initialisers work with included; copies do
    not count. A larger request raises `TooLarge` before torch asks the system for memory."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most, self._left = most, most

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if args and isinstance(args[0], list | tuple) and all(isinstance(size, int) for size in args[0]):
            self._left -= max(LEAST, math.prod(args[0]))  # it makes a tensor, of which the shape comes first
            if self._left < 0:
                raise TooLarge(
                    f"the network takes more than {self._most:,} numbers to build; "
                    "choose a smaller encoder.width, fewer layers or rounds, or smaller sizes of algo's network"
                )
        return func(*args, **(kwargs or {}))


class Encoder(nn.Module, ABC):
    """Reads a batch of graphs. `width` is D; `extra_width` is X, the width of a learner's own input (0: none)."""

    def __init__(self, *, name: str, width: Width, extra_width: int) -> None:
        super().__init__()
        self.name, self.width, self.extra_width = name, width, extra_width
        self.kind = nn.Embedding(len(OPERATORS), width)
        self.read = nn.Sequential(
            nn.Linear(width + WIDTH + extra_width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width)
        )
        self.pool = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width), nn.LayerNorm(width))

    @abstractmethod
    def spread(self, h_ND: Tensor, data: "Data") -> Tensor:
        """[N, D] states of ops that know of other ops, from states that each op has of its own features."""

    def forward(self, data: "Data", extra_NX: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(h [N, D] states of ops, g [B, D] states of graphs). `data` as `graph_features` or `batch` give it."""
        h_ND = self.spread(self.read(self._inputs(data, extra_NX)), data)
        pooled = torch.cat([segment_mean(h_ND, data.num_ops), segment_max(h_ND, data.num_ops)], 1)
        return h_ND, self.pool(pooled)

    def _inputs(self, data: "Data", extra_NX: Tensor | None) -> Tensor:
        given = 0 if extra_NX is None else extra_NX.shape[1]
        if given != self.extra_width:
            raise ValueError(
                f"encoder {self.name!r} was built for extra input of width {self.extra_width}, got {given}"
            )
        parts = [self.kind(data.kind), data.x]
        return torch.cat(parts if extra_NX is None else [*parts, extra_NX], 1)
