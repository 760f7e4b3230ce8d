"""`GraphBuilder`: makes a `Graph` of tensors and ops that come in any order."""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from graphopt.core.graph import DTYPE_BYTES, DTYPES, F64, I32, Graph, GraphError
from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category

MOST = (
    2**53
)  # elements or bytes of all tensors of a graph: sums of fewer are exact in any order, and no integer overflows
RANK = 64
ALIKE: dict[str, tuple[str, int]] = {
    "uint16": ("int16", 2), "uint32": ("int32", 4), "uint64": ("int64", 8), "complex32": ("float32", 4),
    "complex64": ("float64", 8), "complex128": ("float64", 16), "float8_e4m3fn": ("int8", 1),
    "float8_e5m2": ("int8", 1), "float8_e4m3fnuz": ("int8", 1), "float8_e5m2fnuz": ("int8", 1),
    "float8_e8m0fnu": ("int8", 1), "float4_e2m1fn_x2": ("int8", 1), "uint4": ("uint8", 1),
}  # fmt: skip
"""Further element types: the one that a graph calls them, and their own size in bytes."""


def known_dtype(name: str) -> str:
    """The element type, or int8 where tensors have no such type."""
    return name if name in DTYPES or name in ALIKE else "int8"


@dataclass
class _Tensor:
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    weight: bool = False
    output: bool = False
    maker: int = -1


class GraphBuilder:
    """Collects tensors and ops in any order, then finds a topological order and packs the arrays.

    >>> b = GraphBuilder("tiny")
    >>> x = b.tensor((8, 4)); y = b.tensor((8, 4))
    >>> b.op("relu", [x], [y]); b.output(y); graph = b.build()
    """

    def __init__(self, name: str, family: str | None = None) -> None:
        self.name, self.family = name, family if family is not None else name
        self._tensors: list[_Tensor] = []
        self._ops: list[tuple[str, str, list[int], list[int], float, Mapping[str, Any]]] = []
        self._measured: dict[int, Mapping[str, float]] = {}
        self._groups: dict[int, str] = {}
        self._total = 0

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", *, weight: bool = False, num_bytes: int | None = None
    ) -> int:
        """Adds a tensor.

        Args:
            shape: one size for each axis, 0 allowed; () is a scalar.
            dtype: a name of `DTYPES`, or of `ALIKE`, which is kept as the type it is alike to, in its own size.
            weight: whether the values are known before the run.
            num_bytes: in place of shape x element size.
        Returns: its handle.
        Raises: GraphError for an unknown dtype, a negative size, or more bytes than `MOST` in all.
        """
        if dtype not in DTYPES and dtype not in ALIKE:
            raise GraphError(f"unknown dtype {dtype!r}; known: {', '.join((*DTYPES, *ALIKE))}")
        kept, element = ALIKE[dtype] if dtype in ALIKE else (dtype, DTYPE_BYTES[DTYPES.index(dtype)])
        dims = tuple(int(d) for d in shape)
        if len(dims) > RANK or min(dims, default=0) < 0:
            raise GraphError(f"graph {self.name!r}: no tensor has the shape {str(dims)[:80]}")
        count = prod(dims)
        size = count * element if num_bytes is None else int(num_bytes)
        self._total += max(count, size)
        if self._total > MOST:
            raise GraphError(f"graph {self.name!r}: its tensors take more than {MOST:,} bytes; give smaller shapes")
        self._tensors.append(_Tensor(dims, kept, size, weight))
        return len(self._tensors) - 1

    def op(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], *, flops: float | None = None,
           name: str | None = None, attributes: Mapping[str, Any] | None = None,
           seconds: Mapping[str, float] | None = None, together: str | None = None) -> int:  # fmt: skip
        """Adds an op.

        Args:
            kind: a name of `OPERATOR_ID`.
            inputs, outputs: handles of the tensors that it reads, in order, and makes.
            flops: floating-point operations; by default the kind's count per element.
            name: unique in the graph.
            attributes: plain values that files and pictures keep.
            seconds: measured run times, by kind of device; for every op or for none.
            together: ops of one such name share a device.
        Returns: its number, in the order of the calls.
        Raises: GraphError where another op makes one of the outputs.
        """
        for tensor in outputs:
            if self._tensors[tensor].maker >= 0:
                raise GraphError(f"graph {self.name!r}: tensor {tensor} is made by two ops")
            self._tensors[tensor].maker = len(self._ops)
        count = self.default_flops(kind, inputs, outputs) if flops is None else float(flops)
        label = name if name is not None else f"{kind}_{len(self._ops)}"
        if seconds:
            self._measured[len(self._ops)] = seconds
        if together is not None:
            self._groups[len(self._ops)] = together
        self._ops.append((kind, label, list(inputs), list(outputs), count, attributes or {}))
        return len(self._ops) - 1

    def output(self, tensor: int) -> None:
        """Marks a tensor as a graph output."""
        self._tensors[tensor].output = True

    def default_flops(self, kind: str, inputs: Sequence[int], outputs: Sequence[int]) -> float:
        """FLOP by the kind's count per real element."""
        operator = OPERATORS[_kind_id(kind)]
        counted = inputs[:1] if operator.category is Category.REDUCTION else outputs
        return operator.flop * float(sum(np.prod(self._tensors[t].shape, dtype=np.float64) for t in counted))

    def build(self, program: Any = None) -> Graph:
        """Finds a topological order and packs the arrays.

        Args:
            program: the executable form of the graph, for cost models that run it.
        Returns: the `Graph`.
        Raises: GraphError for an empty or cyclic graph, or a name that two ops share.
        """
        order = self._order()
        rank = {op: i for i, op in enumerate(order)}
        names = tuple(self._ops[op][1] for op in order)
        if len(set(names)) != len(names):
            raise GraphError(f"graph {self.name!r}: two ops share a name")
        makers = [rank[t.maker] if t.maker >= 0 else -1 for t in self._tensors]
        tensor_order = sorted(range(len(makers)), key=lambda t: (makers[t], t))
        new_id = {t: i for i, t in enumerate(tensor_order)}
        tensors = [self._tensors[t] for t in tensor_order]
        ops = [self._ops[op] for op in order]
        any_attributes = any(op[5] for op in ops)
        return Graph(
            name=self.name, family=self.family,
            kind=np.array([_kind_id(op[0]) for op in ops], np.int16), op_names=names,
            input_ptr=np.cumsum([0, *(len(op[2]) for op in ops)], dtype=np.int64),
            input_tensor=np.array([new_id[t] for op in ops for t in op[2]], np.int32),
            producer=np.array(sorted(makers), np.int32),
            is_weight=np.array([t.weight for t in tensors], bool),
            is_output=np.array([t.output for t in tensors], bool),
            dtype=np.array([DTYPES.index(t.dtype) for t in tensors], np.int8),
            tensor_bytes=np.array([t.num_bytes for t in tensors], np.int64),
            shape_ptr=np.cumsum([0, *(len(t.shape) for t in tensors)], dtype=np.int64),
            shape=np.array([d for t in tensors for d in t.shape], np.int64),
            flops=np.array([op[4] for op in ops], np.float64),
            attributes=tuple(op[5] for op in ops) if any_attributes else (), program=program,
            measured=self._seconds(order), together=self._leaders(order),
        )  # fmt: skip

    def _seconds(self, order: list[int]) -> dict[str, F64]:
        kinds = {kind for seconds in self._measured.values() for kind in seconds}
        nothing: Mapping[str, float] = {}
        missing = [op for op in order if kinds - set(self._measured.get(op, nothing))]
        if missing:
            raise GraphError(
                f"graph {self.name!r}: op {self._ops[missing[0]][1]!r} lacks measured seconds, others have"
            )
        return {kind: np.array([self._measured[op][kind] for op in order], np.float64) for kind in sorted(kinds)}

    def _leaders(self, order: list[int]) -> I32:
        """[N] the first op of each group that is no view (views have no device of their own), else the first."""
        leader: dict[str, int] = {}
        for view in (False, True):
            for place, op in enumerate(order):
                if op in self._groups and view == (OPERATORS[_kind_id(self._ops[op][0])].category is Category.VIEW):
                    leader.setdefault(self._groups[op], place)
        shared = [leader[self._groups[op]] if op in self._groups else place for place, op in enumerate(order)]
        return np.array(shared if self._groups else [], np.int32)

    def _order(self) -> list[int]:
        order = stable_order([{self._tensors[t].maker for t in op[2]} - {-1} for op in self._ops])
        if len(order) < len(self._ops):
            stuck = self._ops[min(set(range(len(self._ops))) - set(order))][1]
            raise GraphError(
                f"graph {self.name!r} has a cycle through or before op {stuck!r}; computation graphs must be acyclic"
            )
        return order


def stable_order(needs: Sequence[set[int]]) -> list[int]:
    """A topological order of items that need others: among ready items the first goes first. Items on a cycle, or
    behind one, are left out."""
    waiting = [len(others) for others in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for item, others in enumerate(needs):
        for other in others:
            readers[other].append(item)
    ready = [item for item, count in enumerate(waiting) if count == 0]  # ascending, so it is a heap
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, reader)
    return order


def _kind_id(kind: str) -> int:
    if kind not in OPERATOR_ID:
        raise GraphError(f"unknown operator kind {kind!r}; readers map unknown operators to 'opaque'")
    return OPERATOR_ID[kind]
