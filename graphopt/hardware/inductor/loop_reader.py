"""A program's loops (`loop_program`), from one lowering in which every value is stored that could be."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import sympy
import torch
from sympy import Expr
from torch._inductor import config
from torch._inductor.codegen.common import DataTypePropagation, OptimizationContext
from torch._inductor.graph import GraphLowering
from torch._inductor.ir import ComputedBuffer, IRNode, MutationLayoutSHOULDREMOVE, StorageBox
from torch._inductor.loop_body import LoopBody, MemoryUsageType
from torch._inductor.scheduler import BaseSchedulerNode
from torch.fx import Node
from torch.utils._sympy.functions import FloorDiv, Mod, ModularIndexing

from graphopt.costs.loops.loop_bodies import Buffer, Hint, Index, LibraryCall, Loop, LoopProgram, Read
from graphopt.graphs.readers.pytorch.program_file import FxProgram
from graphopt.hardware.inductor.lowering import (
    BASE,
    Request,
    Requests,
    _started,
    carried_out,
    check_version,
    in_words,
    replaced,
)
from graphopt.hardware.inductor.truth_values import missed_share_of, missed_shares

NO_WORK = frozenset({"load", "store", "output", "store_reduction", "get_index", "index_expr", "constant",
                     "set_indirect", "check_bounds", "masked_subblock"})  # fmt: skip


class _HintRecorder(Requests):
    """Stores the value of every node with a choice, and notes when Inductor asks itself about it."""

    def __init__(self, free: Sequence[str]) -> None:
        super().__init__(dict.fromkeys(free, Request.STORE))
        self.asked: list[tuple[object, str]] = []  # node or box, kind of hint

    def note(self, box: StorageBox, kind: str) -> None:
        self.asked.append((box, kind))

    def lowered(self, node: Node, made: object) -> None:
        super().lowered(node, made)
        self.asked.append((node, "made"))

    def owners(self) -> dict[int, str]:
        """Identity of a box -> name of its node."""
        return {key: node.name for key, (_, node) in self._owner.items()}

    def stored_by(self) -> dict[str, str]:
        """Name of a buffer -> the node, with a choice, whose value it holds."""
        owned = [(box, node.name) for box, node in self._owner.values() if node.name in self.store]
        return {box.data.get_name(): name for box, name in owned if IRNode.is_realized_node(box.data)}

    def hints(self) -> tuple[Hint, ...]:
        owner = self.owners()
        named = [(of.name if isinstance(of, Node) else owner.get(id(of), ""), kind) for of, kind in self.asked]
        return tuple(Hint(name, kind) for name, kind in named if name in self.store)  # type: ignore[arg-type]


@contextmanager
def _watching(asked: _HintRecorder) -> Iterator[None]:
    """Inductor's questions are noted, and answered with no: values are stored only on request."""

    def reuse(box: StorageBox, users: int, *, graph_reuse: bool = True) -> None:
        if users > 1:
            asked.note(box, "reuse" if graph_reuse else "spread")

    def exceeded(box: StorageBox) -> bool:
        asked.note(box, "reads")
        return False

    with ExitStack() as stack:
        for name, method in (("mark_reuse", reuse), ("has_exceeded_max_reads", exceeded),
                             ("realize_hint", lambda box: asked.note(box, "will"))):  # fmt: skip
            stack.enter_context(replaced(StorageBox, name, method))
        yield


def loop_program(program: FxProgram, free: Sequence[str]) -> LoopProgram:
    """free: names of the nodes whose values may be stored or not. Raises GraphError."""
    check_version()
    asked, missed = _HintRecorder(free), missed_shares(program)
    with in_words(), config.patch(BASE), _started(program) as (graph, examples), carried_out(asked):
        with _watching(asked):
            graph.run(*examples)
        graph._update_scheduler()
        return _Reader(graph, asked, missed).program()


class _Reader:
    """Numbers buffers as they come."""

    def __init__(self, graph: GraphLowering, asked: _HintRecorder, missed: Mapping[str, float]) -> None:
        self.graph, self.asked, self.missed = graph, asked, missed
        self.numbers: dict[str, int] = {}
        self.buffers: list[Buffer] = []
        self.op = asked.stored_by()
        self.kept = frozenset(graph.get_output_names())

    def program(self) -> LoopProgram:
        leaves = [leaf for node in self.graph.scheduler.nodes for leaf in node.get_nodes()]
        leaves.sort(key=lambda leaf: leaf.min_order)
        return LoopProgram(steps=tuple(map(self.step, leaves)), buffers=tuple(self.buffers), hints=self.asked.hints())

    def number(self, name: str) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.buffers)
            self.buffers.append(self.described(name))
        return self.numbers[name]

    def described(self, name: str) -> Buffer:
        buffer = self.graph.try_get_buffer(name)
        if not isinstance(buffer, IRNode) or not buffer.has_tensor_output():  # none, or several tensors at once
            return Buffer(name, 1, 4)
        layout = buffer.get_layout()
        kept = name in self.kept or isinstance(layout, MutationLayoutSHOULDREMOVE)
        dtype = layout.dtype
        missed = missed_share_of(self.graph, name, self.missed) if dtype == torch.bool else None
        return Buffer(name, int(sympy.prod(layout.size)), dtype.itemsize, not dtype.is_floating_point, kept, missed)

    def step(self, leaf: BaseSchedulerNode) -> Loop | LibraryCall:
        node = leaf.node
        if isinstance(node, ComputedBuffer) and not leaf.is_extern() and hasattr(leaf, "_body"):
            return self.loop(node)
        reads = tuple(sorted({self.number(dep.name) for dep in leaf.read_writes.reads}))
        return LibraryCall(reads, tuple(self.number(name) for name in leaf.get_buffer_names()))

    def loop(self, node: ComputedBuffer) -> Loop:
        (shape, reduced), body, (first, summed) = node.get_default_sizes_body()
        place = {variable: d for d, variable in enumerate((*first, *summed))}
        name = node.get_name()
        return Loop(buffer=self.number(name), op=self.op.get(name, ""), shape=_whole(shape), reduced=_whole(reduced),
                    stride=_strides(body, first), reads=self.reads(body, place), ops=_work(node, body),
                    size=_size(node))  # fmt: skip

    def reads(self, body: LoopBody, place: dict[Any, int]) -> tuple[Read, ...]:
        entries = [(e.buffer_name, e.index_name) for e in body.memory_usage[MemoryUsageType.LOAD] if e.buffer_name]
        found = {var: k for k, var in enumerate(body.indirect_vars)}
        made = [Read(self.number(name), _index(body.indexing_exprs[of], place, found)) for name, of in entries]
        return tuple(dict.fromkeys(made))


def _whole(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)


def _strides(body: LoopBody, variables: Sequence[Any]) -> tuple[int, ...]:
    """Of the first thing that is written; 0 where its place is read from memory."""
    kinds = (MemoryUsageType.STORE, MemoryUsageType.STORE_REDUCTION)
    written = [body.indexing_exprs[e.index_name] for kind in kinds for e in body.memory_usage[kind]]
    if not written:
        return (0,) * len(variables)
    zero = dict.fromkeys(written[0].free_symbols, 0)
    start = written[0].subs(zero)
    return tuple(int(written[0].subs({**zero, v: 1}) - start) if v in zero else 0 for v in variables)


def _work(node: ComputedBuffer, body: LoopBody) -> dict[str, float]:
    made = {name: float(count) for name, count in body.op_counts.items() if name not in NO_WORK}
    if "reduction" in made:
        made[f"reduction.{node.get_reduction_type()}"] = made.pop("reduction")
    if wide := _wide(body):
        made["wide"] = float(wide)
    if any(e.mode == "atomic_add" for e in body.memory_usage[MemoryUsageType.STORE]):
        made["atomic_add"] = 1.0
    return made


def _wide(body: LoopBody) -> int:
    """Operations on numbers of 64 bits."""
    DataTypePropagation.propagate_loopbody(body)

    def is_wide(node: Node) -> bool:
        known = node.meta.get(OptimizationContext.key)
        return known is not None and known.dtype in (torch.int64, torch.float64)

    working = [node for node in body.root_block.graph.nodes if node.op == "call_method" and node.target not in NO_WORK]
    return sum(any(map(is_wide, (node, *node.all_input_nodes))) for node in working)


def _size(node: ComputedBuffer) -> int:
    counted = node.data.inner_fn_opcount()
    return max(counted.num_ops - len(counted.read_buffers), 0)


_TWO: dict[Any, str] = {FloorDiv: "div", Mod: "mod"}


def _index(expression: Expr | int, place: dict[Any, int], found: dict[Any, int]) -> Index:
    def of(e: Any) -> Index:
        if isinstance(e, (int, sympy.Integer)):
            return ("number", int(e))
        if isinstance(e, sympy.Symbol):
            return ("loop", place[e]) if e in place else ("found", found.get(e, 0))
        if isinstance(e, ModularIndexing):
            base, divisor, modulus = map(of, e.args)
            return ("mod", ("div", base, divisor), modulus)
        if isinstance(e, (sympy.Add, sympy.Mul)):
            return ("add" if isinstance(e, sympy.Add) else "mul", *map(of, e.args))
        if type(e) in _TWO:
            return (_TWO[type(e)], *map(of, e.args))
        return ("found", len(found) + sum(map(ord, str(e))) % 1000)  # neither a sum nor a product: some place

    return of(expression)
