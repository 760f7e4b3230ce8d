"""Joint graphs whose gradients do not depend on how Inductor lays saved values out in memory.

`as_strided` reads places of a storage, not elements of a value. Inductor gives values that a forward program saves
other strides than they had when the program was traced (channels last). A backward program that computes such a read
again, from saved values, then finds other elements at these places. GroupNorm on a CPU is decomposed into such reads.
"""

from collections.abc import Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch._inductor.inductor_prims import force_stride_order
from torch._prims_common import is_contiguous_or_false, is_non_overlapping_and_dense_or_false
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph as FxGraph
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._mode_utils import no_dispatch

from graphopt.core.graph import GraphError

aten = torch.ops.aten
READ, COPY, WRITE = aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default


class StridedReadsPass(CustomGraphPass):
    """For `torch._inductor.config.joint_custom_post_pass`, which before torch 2.13 is one pass: those of the user, then
    `fix_strided_reads`. Torch's own partitioner comes after it."""

    def __init__(self, before: Sequence[Any]) -> None:
        self._before = before

    def __call__(self, graph: FxGraph) -> None:
        for one in self._before:
            one(graph)
        fix_strided_reads(graph)

    def uuid(self) -> Any:
        return [get_hash_for_files((__file__,)), *(one.uuid() for one in self._before)]


def with_strided_reads_fixed() -> dict[str, Any]:
    """Inductor's options that add this pass to those of the user."""
    own = config.joint_custom_post_pass
    before = own if isinstance(own, list | tuple) else [] if own is None else [own]
    return {"joint_custom_post_pass": StridedReadsPass(before)}


def fix_strided_reads(graph: FxGraph) -> dict[Node, Node]:
    """Rewrites every read of a storage whose strides Inductor may choose as a read of a value that has the traced
    strides; where shapes are open, as a view. (Views of fixed shapes make GroupNorm slower by up to a third.) Writes go
    to a row, which has one order only. Returns the nodes that this adds, each with the read or write that it is for.
    Raises GraphError where that cannot be."""
    added: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "call_function" and node.target in (READ, COPY, WRITE):
            base = _owner(node.args[0]) if node.target is READ else node.args[0]
            if base.op == "call_function" and base.meta["val"].dim() > 1:  # inputs keep their strides
                _fix(graph, node, base, added)
    return added


def _fix(graph: FxGraph, node: Node, base: Node, added: dict[Node, Node]) -> None:
    given: Any = node.args[0]
    value, found = base.meta["val"], node.meta["val"]
    fixed = all(type(number) is int for number in (*value.shape, *value.stride()))
    if node.target is READ and not fixed and _reshapes(value, found):
        node.target, node.args, node.kwargs = aten.view.default, (base, node.args[1]), {}
        return
    known = fixed and (node.target is READ or (node.target is WRITE and value.is_contiguous()))
    if value.dtype != given.meta["val"].dtype or not known or not _fills(value):
        raise GraphError(f"gradients would depend on how TorchInductor lays out {base.name}, which as_strided reads; "
                         "compile this module with dynamic=False, or without graphopt and with "
                         "options={'layout_optimization': False}")  # fmt: skip
    with graph.inserting_before(node):
        if node.target is WRITE:
            _write_row(graph, node, base, added)
            return
        kept = _with_traced_strides(graph, base)
        node.args = (kept, *node.args[1:3], found.storage_offset())
        added[kept] = node


def _write_row(graph: FxGraph, node: Node, base: Node, added: dict[Node, Node]) -> None:
    value = base.meta["val"]
    row = graph.call_function(aten.view.default, (base, [value.numel()]))
    written = graph.call_function(WRITE, (row, *node.args[1:]))
    row.meta, written.meta = {"val": _row(value)}, {"val": _row(value)}
    node.target, node.args, node.kwargs = aten.view.default, (written, list(value.shape)), {}
    added |= {row: node, written: node}


def _with_traced_strides(graph: FxGraph, base: Node) -> Node:
    """The same value, copied where it is laid out otherwise."""
    value = base.meta["val"]
    if value.is_contiguous():
        kept = graph.call_function(aten.clone.default, (base,), {"memory_format": torch.contiguous_format})
    else:
        kept = graph.call_function(force_stride_order, (base, list(value.stride())))
    kept.meta = {"val": value}
    return kept


def _row(value: Any) -> Tensor:
    """A fake one; made without operators, since torch asks solvers while it dispatches none."""
    with no_dispatch():
        return FakeTensor(value.fake_mode, torch.empty(value.numel(), dtype=value.dtype, device="meta"), value.device)


def _owner(node: Node) -> Node:
    """The node that makes the storage of a value: views on the way only say where in it the value lies."""
    storage = node.meta["val"].untyped_storage()._cdata
    while node.op == "call_function":
        whole: Any = node.args[0] if node.target is getitem else node
        values = [(maker, maker.meta["val"]) for maker in whole.all_input_nodes]
        makers = [m for m, v in values if isinstance(v, Tensor) and v.untyped_storage()._cdata == storage]
        if not makers:
            break
        node = makers[0]
    return node


def _fills(value: Tensor) -> bool:
    """Whether a storage holds the elements of a value, each once, and nothing else."""
    room = value.untyped_storage().nbytes()
    return (
        bool(is_non_overlapping_and_dense_or_false(value))
        and value.storage_offset() == 0
        and room == value.numel() * value.element_size()
    )


def _reshapes(value: Tensor, found: Tensor) -> bool:
    return (
        bool(is_contiguous_or_false(value) and is_contiguous_or_false(found))
        and statically_known_true(found.storage_offset() == 0)
        and statically_known_true(found.numel() == value.numel())
    )
