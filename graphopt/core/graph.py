"""`Graph`: a computation graph as immutable arrays, as it was read; never mutated, never re-ordered.

Shape legend: N ops, T tensors, E operand edges (one per op input, in order), A total of shape entries.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.operators import OPERATORS
from graphopt.core.utils.terminal import encodable, printable

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


LONGEST_MESSAGE = 1000  # characters
MOST_BYTES = 2.0**53  # of all tensors of a graph, and elements of one: sums are exact in any order
MOST_WORK = 1e24  # FLOP, or seconds, of an op: sums of them are numbers


Known = TypeVar("Known")


class GraphError(ValueError):
    """The input cannot become a graph; the message has the cause and the remedy. It may quote names from a file:
    control characters are written out, and a very long name loses its middle."""

    def __init__(self, message: str) -> None:
        text, half = printable(message), LONGEST_MESSAGE // 2
        super().__init__(text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}")


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
    measured: Mapping[str, F64] = field(default_factory=dict)  # kind of device -> [N] seconds of each op alone, or inf
    together: I32 = field(
        default_factory=lambda: np.zeros(0, np.int32)
    )  # [N] the op whose device each op shares, or empty
    held_out: Bool = field(
        default_factory=lambda: np.zeros(0, np.bool_)
    )  # [N] ops that learners must not be taught by, since some of a test are like them, or empty
    program: Any = field(
        default=None, repr=False
    )  # its source, if any: FX GraphModule, FxProgram, the content of a program's file, ONNX model

    def __post_init__(self) -> None:
        for text in ("name", "family"):
            object.__setattr__(self, text, encodable(getattr(self, text)))
        object.__setattr__(self, "op_names", tuple(map(encodable, self.op_names)))
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
    def train_mask(self) -> Bool:
        """[N] ops that learners may be taught by."""
        return ~self.held_out if len(self.held_out) else np.ones(self.num_ops, np.bool_)

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


def _check_ranges(graph: Graph, n: int, t: int) -> None:
    """Raises GraphError where an index points at nothing, or a pointer does not lead through its array."""
    bounds = {
        "kind": (0, len(OPERATORS)), "input_tensor": (0, t), "producer": (-1, n), "dtype": (0, len(DTYPES)),
        "shape": (0, 2**62), "together": (0, n),
    }  # fmt: skip
    for name, (least, end) in bounds.items():
        array = getattr(graph, name)
        if len(array) and (array.min() < least or array.max() >= end):
            raise GraphError(
                f"graph {graph.name!r}: {name} holds {array.min()} to {array.max()}, of {least} to {end - 1}"
            )
    for name, over in (("input_ptr", graph.input_tensor), ("shape_ptr", graph.shape)):
        ptr = getattr(graph, name)
        if ptr[0] != 0 or ptr[-1] != len(over) or np.any(np.diff(ptr) < 0):
            raise GraphError(f"graph {graph.name!r}: {name} does not ascend from 0 to {len(over)}")


def _most_elements(graph: Graph) -> float:
    """Of the largest tensor. An element at least counts for an empty dimension, so that products of others show."""
    with np.errstate(over="ignore"):
        elements = np.ones(graph.num_tensors)
        of = np.repeat(np.arange(graph.num_tensors), np.diff(graph.shape_ptr))
        np.multiply.at(elements, of, np.maximum(graph.shape, 1))
    return float(elements.max(initial=0.0))


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
    if len(set(graph.op_names)) != n:
        raise GraphError(f"graph {graph.name!r}: two ops share a name")
    _check_ranges(graph, n, t)
    if t and (np.any(np.diff(graph.producer) < 0) or graph.producer[-1] >= n):
        raise GraphError(f"graph {graph.name!r}: tensors must be sorted by producer")
    source = graph.producer[graph.input_tensor]
    late = source >= np.repeat(np.arange(n), np.diff(graph.input_ptr))
    if late.any():
        raise GraphError(
            f"graph {graph.name!r}: an op reads a result made later; build it with GraphBuilder, which finds the order"
        )
    if any(len(s) != n or not np.all(s >= 0) for s in graph.measured.values()):
        raise GraphError(f"graph {graph.name!r}: measured seconds must be numbers, none negative, one for every op")
    if len(graph.together) and (
        len(graph.together) != n or not np.array_equal(graph.together[graph.together], graph.together)
    ):
        raise GraphError(f"graph {graph.name!r}: every op must share the device of an op that leads itself")
    if len(graph.held_out) not in (0, n):
        raise GraphError(f"graph {graph.name!r}: held_out must say of every op whether it is held out")
    if np.any(graph.tensor_bytes < 0) or np.any(graph.flops < 0) or not np.all(np.isfinite(graph.flops)):
        raise GraphError(f"graph {graph.name!r}: sizes and FLOP must be finite and not negative")
    every = (graph.flops, *graph.measured.values())
    work = max(float(costs[np.isfinite(costs)].max(initial=0.0)) for costs in every)  # inf: not on such a device
    if work > MOST_WORK or graph.tensor_bytes.sum(dtype=np.float64) > MOST_BYTES or _most_elements(graph) > MOST_BYTES:
        raise GraphError(
            f"graph {graph.name!r} is too large: an op has at most {MOST_WORK:g} FLOP or seconds, and all tensors "
            f"together {MOST_BYTES:.0f} bytes"
        )
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


def once_per_graph(function: Callable[[Graph], Known]) -> Callable[[Graph], Known]:
    """Remembers the result of a function of a graph for as long as the graph lives."""
    known: WeakKeyDictionary[Graph, Known] = WeakKeyDictionary()

    @wraps(function)
    def remembered(graph: Graph) -> Known:
        if graph not in known:
            known[graph] = function(graph)
        return known[graph]

    return remembered
