"""`Graph`: a computation graph as immutable arrays. What was given; never mutated, never re-ordered.

Shape legend: N ops, T tensors, E operand edges (one per op input, in order), A total of shape entries.
"""

import hashlib
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.operators import OPERATOR_ID, OPERATORS, Category

I16 = NDArray[np.int16]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Bool = NDArray[np.bool_]

DTYPES: tuple[str, ...] = (
    "float32",
    "float16",
    "bfloat16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)
DTYPE_BYTES: tuple[int, ...] = (4, 2, 2, 8, 8, 4, 2, 1, 1, 1)


class GraphError(ValueError):
    """The input cannot become a graph; the message says what is wrong and what to do."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A computation graph. Ops are stored in a topological order; tensors are sorted by producer.

    Tensors 0 .. first_result-1 have no producer (graph inputs and weights); the results of op n follow those of op n-1.
    A tensor may feed several ops, or one op twice; an op may make several tensors, or none.
    """

    name: str
    family: str  # architecture family; splits never share one
    kind: I16  # [N] index into OPERATORS
    op_names: tuple[str, ...]  # [N] unique; decision files refer to them
    input_ptr: I64  # [N+1] CSR over operands
    input_tensor: I32  # [E] tensor read by each operand, in the op's order
    producer: I32  # [T] op that makes the tensor, -1 for graph inputs and weights; non-decreasing
    is_weight: Bool  # [T] resident for the whole run
    is_output: Bool  # [T] graph outputs stay in memory to the end
    dtype: NDArray[np.int8]  # [T] index into DTYPES
    tensor_bytes: I64  # [T] bytes
    shape_ptr: I64  # [T+1]
    shape: I64  # [A] dimensions of each tensor, concatenated
    flops: F64  # [N] FLOP to compute the op once
    attributes: tuple[Mapping[str, Any], ...] = ()  # [N] operator attributes, or empty when there are none
    measured: Mapping[str, F64] = field(default_factory=dict)  # kind of device -> [N] seconds of each op alone
    together: I32 = field(
        default_factory=lambda: np.zeros(0, np.int32)
    )  # [N] the op whose device each op shares, or empty
    program: Any = field(default=None, repr=False)  # the executable it came from (FX GraphModule, ONNX model), if any

    def __post_init__(self) -> None:
        _validate(self)

    @property
    def num_ops(self) -> int:
        return len(self.kind)

    @property
    def num_tensors(self) -> int:
        return len(self.producer)

    @cached_property
    def hash(self) -> str:
        """Content digest (16 hex digits) of structure, kinds, shapes and costs; names and program do not count."""
        digest = hashlib.sha256()
        for array in (self.kind, self.input_ptr, self.input_tensor, self.producer, self.is_weight, self.is_output,
                      self.dtype, self.tensor_bytes, self.shape_ptr, self.shape, self.flops):  # fmt: skip
            digest.update(np.ascontiguousarray(array).tobytes())
            digest.update(b"|")
        for kind, seconds in sorted(self.measured.items()):
            digest.update(f"measured {kind}|".encode() + np.ascontiguousarray(seconds).tobytes())
        if len(self.together):
            digest.update(b"together|" + np.ascontiguousarray(self.together, np.int32).tobytes())
        return digest.hexdigest()[:16]

    @cached_property
    def category(self) -> NDArray[np.int8]:
        """[N] `Category` of every op."""
        return np.array([int(operator.category) for operator in OPERATORS], np.int8)[self.kind]

    @cached_property
    def output_ptr(self) -> I64:
        """[N+1] results of op n are tensors output_ptr[n] .. output_ptr[n+1]-1."""
        return np.searchsorted(self.producer, np.arange(self.num_ops + 1)).astype(np.int64)

    @cached_property
    def numel(self) -> I64:
        """[T] elements of every tensor (1 for scalars)."""
        logs = np.ones(self.num_tensors, np.int64)
        np.multiply.at(logs, np.repeat(np.arange(self.num_tensors), np.diff(self.shape_ptr)), self.shape)
        return logs

    @cached_property
    def weight_bytes(self) -> I64:
        """[N] bytes of the weights read by each op (a shared weight counts for every reader)."""
        per_operand = np.where(self.is_weight, self.tensor_bytes, 0)[self.input_tensor]
        return np.bincount(self.operand_op, per_operand, self.num_ops).astype(np.int64)

    @cached_property
    def result_bytes(self) -> I64:
        """[N] bytes of all results of each op."""
        made = self.producer >= 0
        return np.bincount(self.producer[made], self.tensor_bytes[made], self.num_ops).astype(np.int64)

    @cached_property
    def operand_op(self) -> I32:
        """[E] the op that reads each operand."""
        return np.repeat(np.arange(self.num_ops, dtype=np.int32), np.diff(self.input_ptr))

    @cached_property
    def edges(self) -> tuple[I32, I32, I32]:
        """(source op, destination op, tensor), each [E'], operands made by ops only, no repetitions, by destination."""
        source = self.producer[self.input_tensor]
        keep = source >= 0
        triples = np.stack([self.operand_op[keep], source[keep], self.input_tensor[keep]], 1)
        triples = np.unique(triples, axis=0) if len(triples) else triples.reshape(0, 3)
        return triples[:, 1].astype(np.int32), triples[:, 0].astype(np.int32), triples[:, 2].astype(np.int32)

    @cached_property
    def predecessors(self) -> tuple[I64, I32]:
        """CSR (ptr [N+1], op) of distinct producing ops."""
        return _csr(self.edges[1], self.edges[0], self.num_ops)

    @cached_property
    def successors(self) -> tuple[I64, I32]:
        """CSR (ptr [N+1], op) of distinct consuming ops."""
        return _csr(self.edges[0], self.edges[1], self.num_ops)

    @cached_property
    def consumers(self) -> tuple[I64, I32]:
        """CSR (ptr [T+1], op) of the distinct ops that read each tensor."""
        return _csr(self.input_tensor, self.operand_op, self.num_tensors)

    def tensor_shape(self, tensor: int) -> tuple[int, ...]:
        return tuple(int(d) for d in self.shape[self.shape_ptr[tensor] : self.shape_ptr[tensor + 1]])

    def operands(self, op: int) -> I32:
        """Tensors read by the op, in order."""
        return self.input_tensor[self.input_ptr[op] : self.input_ptr[op + 1]]

    def results(self, op: int) -> range:
        """Tensors made by the op."""
        return range(int(self.output_ptr[op]), int(self.output_ptr[op + 1]))

    def __repr__(self) -> str:
        return f"Graph({self.name}: {self.num_ops} ops, {self.num_tensors} tensors, {self.hash})"


def _csr(row: I32, column: I32, rows: int) -> tuple[I64, I32]:
    """Distinct (row, column) pairs as CSR."""
    pairs = np.unique(row.astype(np.int64) << 32 | column.astype(np.int64))
    ptr = np.searchsorted(pairs >> 32, np.arange(rows + 1)).astype(np.int64)
    return ptr, (pairs & 0xFFFFFFFF).astype(np.int32)


def _validate(graph: Graph) -> None:
    n, t = len(graph.kind), len(graph.producer)
    if n == 0:
        raise GraphError(
            f"graph {graph.name!r} has no ops: there is nothing to optimise. Give a model with at least one op."
        )
    if len(graph.op_names) != n or len(graph.input_ptr) != n + 1 or len(graph.flops) != n:
        raise GraphError(f"graph {graph.name!r}: arrays over ops disagree in length")
    if len(graph.shape_ptr) != t + 1 or any(
        len(a) != t for a in (graph.is_weight, graph.is_output, graph.dtype, graph.tensor_bytes)
    ):
        raise GraphError(f"graph {graph.name!r}: arrays over tensors disagree in length")
    if t and (np.any(np.diff(graph.producer) < 0) or graph.producer[-1] >= n):
        raise GraphError(f"graph {graph.name!r}: tensors must be sorted by producer")
    source = graph.producer[graph.input_tensor]
    late = source >= np.repeat(np.arange(n), np.diff(graph.input_ptr))
    if late.any():
        raise GraphError(
            f"graph {graph.name!r}: an op reads a result made later; build it with GraphBuilder, which finds the order"
        )
    if any(len(s) != n or not np.all(np.isfinite(s) & (s >= 0)) for s in graph.measured.values()):
        raise GraphError(f"graph {graph.name!r}: measured seconds must be finite and not negative, one for every op")
    if len(graph.together) and (
        len(graph.together) != n or not np.array_equal(graph.together[graph.together], graph.together)
    ):
        raise GraphError(f"graph {graph.name!r}: every op must share the device of an op that leads itself")
    if np.any(graph.tensor_bytes < 0) or np.any(graph.flops < 0) or not np.all(np.isfinite(graph.flops)):
        raise GraphError(f"graph {graph.name!r}: sizes and FLOP must be finite and not negative")
    for array in (
        graph.kind,
        graph.input_ptr,
        graph.input_tensor,
        graph.producer,
        graph.tensor_bytes,
        graph.shape,
        graph.flops,
    ):
        array.setflags(write=False)


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

    def tensor(
        self, shape: Sequence[int], dtype: str = "float32", *, weight: bool = False, num_bytes: int | None = None
    ) -> int:
        """Adds a tensor, returns its handle. `num_bytes` overrides shape x element size."""
        if dtype not in DTYPES:
            raise GraphError(f"unknown dtype {dtype!r}; known: {', '.join(DTYPES)}")
        dims = tuple(int(d) for d in shape)
        count = int(np.prod(dims, dtype=np.int64)) if dims else 1
        size = count * DTYPE_BYTES[DTYPES.index(dtype)] if num_bytes is None else int(num_bytes)
        self._tensors.append(_Tensor(dims, dtype, size, weight))
        return len(self._tensors) - 1

    def op(self, kind: str, inputs: Sequence[int], outputs: Sequence[int], *, flops: float | None = None,
           name: str | None = None, attributes: Mapping[str, Any] | None = None,
           seconds: Mapping[str, float] | None = None, together: str | None = None) -> int:  # fmt: skip
        """Adds an op that reads `inputs` (in order) and makes `outputs`. FLOP default: the kind's per-element count.

        seconds: measured, by kind of device; for every op or for none. together: ops of one name share a device.
        """
        for tensor in outputs:
            if self._tensors[tensor].maker >= 0:
                raise GraphError(f"graph {self.name!r}: tensor {tensor} is made by two ops")
            self._tensors[tensor].maker = len(self._ops)
        count = self._default_flops(kind, inputs, outputs) if flops is None else float(flops)
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

    def _default_flops(self, kind: str, inputs: Sequence[int], outputs: Sequence[int]) -> float:
        operator = OPERATORS[_kind_id(kind)]
        counted = inputs[:1] if operator.category is Category.REDUCTION else outputs
        return operator.flop * float(sum(np.prod(self._tensors[t].shape, dtype=np.float64) for t in counted))

    def build(self, program: Any = None) -> Graph:
        """Packs into a `Graph`. Raises GraphError on an empty or cyclic graph or a repeated op name."""
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
        """Stable topological order: among ready ops the one added first goes first."""
        waiting = [len({t for t in op[2] if self._tensors[t].maker >= 0}) for op in self._ops]
        readers: dict[int, list[int]] = {}
        for i, op in enumerate(self._ops):
            for t in set(op[2]):
                readers.setdefault(t, []).append(i)
        ready = [i for i, count in enumerate(waiting) if count == 0]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            op_id = heapq.heappop(ready)
            order.append(op_id)
            for reader in (r for t in self._ops[op_id][3] for r in readers.get(t, ())):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, reader)
        if len(order) < len(self._ops):
            stuck = next(self._ops[i][1] for i, count in enumerate(waiting) if count > 0)
            raise GraphError(
                f"graph {self.name!r} has a cycle through or before op {stuck!r}; computation graphs must be acyclic"
            )
        return order


def _kind_id(kind: str) -> int:
    if kind not in OPERATOR_ID:
        raise GraphError(f"unknown operator kind {kind!r}; readers map unknown operators to 'opaque'")
    return OPERATOR_ID[kind]
