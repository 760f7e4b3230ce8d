"""`Fusible`: the graph as fusion sees it. Views are resolved into how their base tensor is read; every op knows its
iteration space, whether it has a choice, and how often each operand is read. Computed once per graph.

Shape legend: N ops, T tensors, E operand edges after views are resolved.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I32, I64, Bool, Graph, once_per_graph
from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category

CONTRACTION_TILE = 128  # an operand of a matrix product is read again for every tile of this many uses of each element


OP = np.dtype([
    ("in_start", np.int32), ("in_end", np.int32),  # operand edges (views have none)
    ("out_start", np.int32), ("out_end", np.int32),  # distinct consumers, through views
    ("result_start", np.int32), ("result_end", np.int32),  # tensors made
    ("numel", np.float64),  # elements of the largest result: how often the op is evaluated
    ("space", np.float64),  # iteration space: input elements for reductions, else numel
    ("flops", np.float64), ("out_bytes", np.float64),
    ("heavy", np.int8),  # 0, 1 = reduction, 2 = contraction
    ("is_view", np.bool_), ("can_inline", np.bool_), ("elementwise", np.bool_), ("expensive", np.bool_),
], align=True)  # fmt: skip
EDGE = np.dtype([
    ("op", np.int32),  # producing op, -1 for graph inputs and weights
    ("tensor", np.int32),  # base tensor
    ("reads", np.float64),  # elements read to compute the consumer once
    ("same", np.bool_),  # read element by element in the consumer's own order
    ("strided", np.bool_),  # read through a transposition
], align=True)  # fmt: skip
TENSOR = np.dtype([("numel", np.float64), ("num_bytes", np.float64), ("keep", np.bool_)], align=True)


class Fusible(NamedTuple):
    """The graph as fusion sees it: views resolved into how their base tensor is read. Record arrays, few and local,
    since Numba passes every array of an argument by its parts."""

    op: NDArray[np.void]  # [N] OP
    edge: NDArray[np.void]  # [E] EDGE
    out_op: I32  # consumers, see OP.out_start
    tensor: NDArray[np.void]  # [T] TENSOR; keep = base tensor of a graph output


def view_inline(graph: Graph) -> Bool:
    """[N] the least fused state: views inline, everything else stored."""
    return np.asarray(fusible(graph).op["is_view"]).copy()


@once_per_graph
def fusible(graph: Graph) -> Fusible:
    """The fusion view of a graph."""
    base, transposed = _bases(graph)
    is_view = graph.category == Category.VIEW
    heavy = np.select([graph.category == Category.REDUCTION, graph.category == Category.CONTRACTION], [1, 2], 0).astype(
        np.int8
    )
    numel_T = graph.numel.astype(np.float64)
    numel, space = _iteration_spaces(graph, numel_T)
    live = ~is_view[graph.operand_op]
    op, seen = graph.operand_op[live], graph.input_tensor[live]
    tensor = base[seen]
    strided = transposed[seen] & (heavy[op] != 2)
    first = np.flatnonzero(live) == graph.input_ptr[op]
    same, reads = _reads(graph, op, seen, tensor, strided, first, numel, space)
    keep = np.zeros(graph.num_tensors, np.bool_)
    keep[base[graph.is_output]] = True
    in_op = graph.producer[tensor]
    pairs = np.unique(np.stack([in_op, op], 1)[in_op >= 0], axis=0).reshape(-1, 2)
    ops = np.zeros(graph.num_ops, OP)
    in_ptr = np.searchsorted(op, np.arange(graph.num_ops + 1))
    out_ptr = np.searchsorted(pairs[:, 0], np.arange(graph.num_ops + 1))
    for name, ptr in (("in", in_ptr), ("out", out_ptr), ("result", graph.output_ptr)):
        ops[f"{name}_start"], ops[f"{name}_end"] = ptr[:-1], ptr[1:]
    ops["numel"], ops["space"], ops["flops"], ops["out_bytes"] = numel, space, graph.flops, graph.result_bytes
    ops["heavy"], ops["is_view"], ops["elementwise"] = heavy, is_view, graph.category == Category.ELEMENTWISE
    ops["can_inline"] = _can_inline(graph, heavy, is_view, keep, in_op, op, same, numel, space)
    ops["expensive"] = np.array([o.expensive for o in OPERATORS], np.bool_)[graph.kind]
    edges = np.zeros(len(op), EDGE)
    edges["op"], edges["tensor"], edges["reads"], edges["same"], edges["strided"] = in_op, tensor, reads, same, strided
    tensors = np.zeros(graph.num_tensors, TENSOR)
    tensors["numel"], tensors["num_bytes"], tensors["keep"] = np.maximum(numel_T, 1), graph.tensor_bytes, keep
    return Fusible(ops, edges, np.ascontiguousarray(pairs[:, 1], np.int32), tensors)


def _bases(graph: Graph) -> tuple[I64, Bool]:
    """Base tensor [T] behind chains of views, and whether a transposition lies between [T]."""
    base = np.arange(graph.num_tensors)
    transposed = np.zeros(graph.num_tensors, np.bool_)
    turn = OPERATOR_ID["transpose"]
    for op in np.flatnonzero(graph.category == Category.VIEW).tolist():
        operands = graph.operands(op)
        for tensor in graph.results(op) if len(operands) else ():
            base[tensor] = base[operands[0]]
            transposed[tensor] = transposed[operands[0]] or graph.kind[op] == turn
    return base, transposed


def _iteration_spaces(graph: Graph, numel_T: F64) -> tuple[F64, F64]:
    numel = np.ones(graph.num_ops)
    made = graph.producer >= 0
    np.maximum.at(numel, graph.producer[made], numel_T[made])
    space = numel.copy()
    for op in np.flatnonzero(graph.category == Category.REDUCTION).tolist():
        operands = graph.operands(op)
        space[op] = max(numel[op], numel_T[operands[0]] if len(operands) else 1.0)
    return numel, space


def _reads(
    graph: Graph, op: I32, seen: I32, tensor: I64, strided: Bool, first: Bool, numel: F64, space: F64
) -> tuple[Bool, F64]:
    """Per operand edge: is it read in the consumer's order, and how many elements are read in all."""
    category = graph.category[op]
    seen_numel, base_numel = graph.numel[seen].astype(np.float64), graph.numel[tensor].astype(np.float64)
    in_order = (seen_numel == space[op]) & (base_numel == seen_numel) & ~strided
    same = in_order & np.isin(category, [Category.ELEMENTWISE, Category.REDUCTION])
    gathers = (graph.kind[op] == OPERATOR_ID["gather"]) & first
    every = (category == Category.ELEMENTWISE) | gathers
    reads = np.where(every, numel[op], np.minimum(seen_numel, base_numel))
    uses = np.divide(graph.flops[op], 2 * base_numel, out=np.ones_like(reads), where=base_numel > 0)
    contraction = base_numel * np.maximum(1.0, uses / CONTRACTION_TILE)
    return same, np.maximum(np.where(category == Category.CONTRACTION, contraction, reads), 1.0)


def _can_inline(graph: Graph, heavy: NDArray[np.int8], is_view: Bool, keep: Bool, in_op: I32, op: I32, same: Bool,
                numel: F64, space: F64) -> Bool:  # fmt: skip
    """An op has a choice unless it is an output, opaque, unused, feeds an opaque op, or is a reduction or contraction
    whose consumers have another iteration space."""
    out: Bool = ~is_view & (graph.category != Category.OPAQUE)
    out[graph.producer[keep & (graph.producer >= 0)]] = False
    used = np.zeros(graph.num_ops, np.bool_)
    edge = in_op >= 0
    source, consumer = in_op[edge], op[edge]
    used[source] = True
    out &= used
    out[source[graph.category[consumer] == Category.OPAQUE]] = False
    elementwise = graph.category[consumer] == Category.ELEMENTWISE
    fits = elementwise & np.where(
        heavy[source] == 2, same[edge], (numel[consumer] == numel[source]) | (numel[consumer] == space[source])
    )
    out[source[(heavy[source] > 0) & ~fits]] = False
    return out
