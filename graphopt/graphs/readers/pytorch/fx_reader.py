"""Traced FX graphs to `Graph`: empty views removed, constants folded, dead code dropped, kinds and FLOP given."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import getitem
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import Node

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category
from graphopt.graphs.readers.pytorch.aten_table import (
    ALIAS,
    KIND,
    METADATA_ONLY,
    WRITES_INTO,
    complex_factor,
    flops,
    kind_of,
)

log = logging.getLogger(__name__)

_CATEGORY = {name: OPERATORS[i].category for name, i in OPERATOR_ID.items()}
_LARGEST_ATTRIBUTE = 64  # longer lists of constants say nothing about cost


def read_fx(graph: FxGraph, *, name: str, family: str, weights: int, program: Any, keep_writes: bool = False) -> Graph:
    """The graph of a traced module whose first `weights` placeholders are parameters and buffers. keep_writes: values
    written into inputs count as outputs.

    Shapes come from `node.meta["val"]`. Values of weights and constants alone are folded into one weight tensor; a view
    of a weight stays a view where the weight itself is read as well. Constants with one value everywhere are immediates
    of elementwise readers: these read no tensor for them. Op names are FX node names. Raises GraphError on dynamic
    shapes, unknown dtypes and when nothing is computed.
    """
    reader = _FxReader(graph, name, weights)
    reader.classify()
    return reader.build(family, program, [node for node in reader.nodes if keep_writes and writes(node)])


class _FxReader:
    """`classify` walks all nodes, `build` keeps nodes that outputs need and writes ops. A node stands for its value."""

    def __init__(self, graph: FxGraph, name: str, weights: int) -> None:
        self.name, self.nodes = name, list(graph.nodes)
        self.weights = set([node for node in self.nodes if node.op == "placeholder"][:weights])
        self.same: dict[Node, Node] = {}  # node -> the earlier node of the same value
        self.constant: set[Node] = set(self.weights)  # known before the run
        self.uniform: set[Node] = set()  # constants with one value everywhere
        self.kind: dict[Node, str] = {}  # of calls
        self._first: dict[Any, Node] = {}  # expression -> its first node

    def root(self, node: Node) -> Node:
        return self.same.get(node, node)

    def operands(self, node: Node) -> list[Node]:
        """Tensors the node is given, in order, with repetitions. A reshape of a reshape reads the first's source."""
        given = [self.root(n) for n in nodes_in((node.args, node.kwargs))]
        if node.op == "call_function" and _op_name(node) == "copy_":
            return given[1:]  # its overwritten operand is not read
        if self.kind.get(node) == "reshape" and self.kind.get(given[0]) == "reshape" and given[0] not in self.constant:
            return self.operands(given[0])
        return given

    def value(self, node: Node) -> Any:
        """Shape and dtype of the node's result (a fake tensor or a `TensorType`), or a tuple of them."""
        value = node.meta["val"]
        return tuple(value) if isinstance(value, list) else value

    def classify(self) -> None:
        for node in self.nodes:
            if node.op == "get_attr":
                self.constant.add(node)
                if len(self.value(node).shape) == 0:
                    self.uniform.add(node)
            elif node.op == "call_function":
                self._classify_call(node)
            elif node.op not in ("placeholder", "output"):
                raise GraphError(f"{self.name}: node {node.name} ({node.op}) was not traced into tensor operators")

    def _classify_call(self, node: Node) -> None:
        operands = self.operands(node)
        if node.target is getitem:
            if operands[0] in self.constant:
                self.constant.add(node)
            self._deduplicate(node)
            return
        op, kind = _op_name(node), self._find_kind(node, operands)
        self.kind[node] = kind
        operands = self.operands(node)
        view = _CATEGORY[kind] is Category.VIEW
        if op in ALIAS or (view and self._changes_nothing(node, operands[0])):
            self.same[node] = operands[0]
        elif kind == "transpose" and (restored := self._restored(node, operands[0])) is not None:
            self.same[node] = restored
        else:
            if kind != "random" and (op in METADATA_ONLY or all(o in self.constant for o in operands)):
                self._fold(node, operands)
            if view or node in self.constant:
                self._deduplicate(node)

    def _find_kind(self, node: Node, operands: list[Node]) -> str:
        op = _op_name(node)
        kind = kind_of(op, str(getattr(node.target, "_overloadname", "")), node.args)
        if kind is None:
            return "opaque"
        return "pad" if op in WRITES_INTO and operands[0] in self.uniform else kind

    def _fold(self, node: Node, operands: list[Node]) -> None:
        self.constant.add(node)
        kind = self.kind[node]
        spreads = _CATEGORY[kind] in (Category.ELEMENTWISE, Category.VIEW) and kind != "iota"
        if kind == "fill" or (spreads and all(o in self.uniform for o in operands)):
            self.uniform.add(node)

    def _deduplicate(self, node: Node) -> None:
        """Repeated views, folded constants and `getitem`s of one value are one."""
        twin = self._first.setdefault((node.target, self._key(node.args), self._key(node.kwargs)), node)
        if twin is not node:
            self.same[node] = twin

    def _key(self, value: Any) -> Any:
        if isinstance(value, Node):
            return self.root(value)
        if isinstance(value, (list, tuple)):
            return tuple(self._key(v) for v in value)
        if isinstance(value, dict):
            return tuple((k, self._key(v)) for k, v in sorted(value.items()))
        return type(value), str(value)

    def _changes_nothing(self, node: Node, source: Node) -> bool:
        """A reshape, slice or broadcast that keeps shape and dtype, or a permutation that keeps the order."""
        value = self.value(node)
        given = self.value(source)
        if isinstance(value, (list, tuple)) or value.shape != given.shape or value.dtype != given.dtype:
            return False
        return self.kind[node] != "transpose" or list(_permutation(node)) == list(range(len(value.shape)))

    def _restored(self, node: Node, source: Node) -> Node | None:
        """x when the node is permute(permute(x)) in x's order, as autograd makes for every matrix product."""
        if self.kind.get(source) != "transpose":
            return None
        inner = _permutation(source)
        restores = [inner[i] for i in _permutation(node)] == list(range(len(inner)))
        return self.operands(source)[0] if restores else None

    def reads(self, node: Node) -> list[Node]:
        """Operands that are read from memory: neither immediates nor those of which only the shape matters."""
        if node.op != "call_function" or node in self.constant or _op_name(node) in METADATA_ONLY:
            return []
        kind = self.kind.get(node)
        if kind == "pad" or (kind is not None and _CATEGORY[kind] is Category.ELEMENTWISE):
            return [o for o in self.operands(node) if o not in self.uniform]
        return self.operands(node)

    def _alive(self, outputs: list[Node]) -> set[Node]:
        """Nodes that outputs need; folded constants are leaves."""
        alive: set[Node] = set()
        self._reach(outputs, alive)
        for node in [n for n in alive if n in self.constant and n not in self.weights]:
            path = self._view_path(node)
            if path and path[-1] in alive:  # the weight is there anyway: keep the view of it, which is free
                self.constant.difference_update(path[:-1])
                alive.discard(node)
                self._reach([node], alive)
        return alive

    def _reach(self, start: list[Node], alive: set[Node]) -> None:
        stack = list(start)
        while stack:
            node = stack.pop()
            if node not in alive:
                alive.add(node)
                stack.extend(self.reads(node))

    def _view_path(self, node: Node) -> list[Node]:
        """The chain from a folded node down to the whole weight of which it is a view; empty if it is none."""
        path = [node]
        while self.kind.get(path[-1]) in ("transpose", "reshape"):
            path.append(self.operands(path[-1])[0])
        return path if path[-1] in self.weights else []

    def build(self, family: str, program: Any, writes: list[Node]) -> Graph:
        outputs = [self.root(n) for n in (*self.nodes[-1].all_input_nodes, *writes)]
        alive = self._alive(outputs)
        parts: dict[Node, list[Node]] = defaultdict(list)  # several results: the getitems that are needed
        for node in self.nodes:
            if node.target is getitem and node in alive and node not in self.constant:
                parts[self.operands(node)[0]].append(node)
        builder, handles = GraphBuilder(self.name, family), dict[Node, int]()
        for node in self.nodes:
            if node in alive and (node in self.constant or node.op == "placeholder"):
                handles[node] = self._tensor(builder, node)
            elif node in alive and node.target is not getitem:
                results = parts.get(node, [node])
                for result in results:
                    handles[result] = self._tensor(builder, result)
                inputs, made = [handles[o] for o in self.reads(node)], [handles[r] for r in results]
                builder.op(self.kind[node], inputs, made, flops=self._flops(node, inputs, made, builder),
                           name=node.name, attributes=_attributes(node))  # fmt: skip
        for node in outputs:
            for result in parts.get(node, [node]):  # of a node with several results that writes into an operand
                builder.output(handles[result])
        self._warn(alive)
        return builder.build(program)

    def _warn(self, alive: set[Node]) -> None:
        """One warning that counts the operators that have no kind."""
        made = [n for n in self.nodes if n in alive and n not in self.constant]
        unknown = Counter(_op_name(n) for n in made if self.kind.get(n) == "opaque" and _op_name(n) not in KIND)
        if unknown:
            counts = ", ".join(f"{op} ({count})" for op, count in unknown.most_common())
            log.warning("%s: operators without a kind become opaque ops: %s", self.name, counts)

    def _flops(self, node: Node, inputs: list[int], outputs: list[int], builder: GraphBuilder) -> float:
        kind, made = self.kind[node], self.value(node)
        operands = [self.value(o) for o in self.operands(node)]
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        try:
            counted = flops(_op_name(node), kind, node.args, operands, results)
        except (IndexError, TypeError, ValueError) as error:
            raise GraphError(f"{self.name}: {node.name} has shapes that its operator does not take") from error
        plain = builder.default_flops(kind, inputs, outputs) if counted is None else counted
        return plain * complex_factor(kind, [*operands, *results])

    def _tensor(self, builder: GraphBuilder, node: Node) -> int:
        value = self.value(node)
        if not hasattr(value, "dtype"):
            raise GraphError(f"{self.name}: {node.name} makes no single tensor; capture the program again")
        dtype = str(value.dtype).removeprefix("torch.")
        if any(type(d) is not int for d in value.shape):
            raise GraphError(f"{self.name}: the shape of {node.name} depends on data; give a module with fixed shapes")
        return builder.tensor(value.shape, dtype, weight=node in self.constant)


def nodes_in(value: Any) -> Iterator[Node]:
    """All nodes in a nesting of lists and mappings, in order."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from nodes_in(item)
    elif isinstance(value, dict):
        yield from nodes_in(list(value.values()))


def _op_name(node: Node) -> str:
    """`add` of `aten.add.Tensor`."""
    target: Any = node.target
    return target._opname if isinstance(target, torch._ops.OpOverload) else str(getattr(target, "__name__", target))


def writes(node: Node) -> bool:
    """Whether the node writes into one of its operands."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def _permutation(node: Node) -> list[int]:
    order: Any = node.args[1]
    return [int(d) % len(order) for d in order]


def _attributes(node: Node) -> dict[str, Any]:
    """Arguments that are not tensors, by the schema's names, as plain JSON values."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    given = dict(zip((a.name for a in node.target._schema.arguments), node.args)) | dict(node.kwargs)
    plain = {key: _plain(value) for key, value in given.items() if key not in ("layout", "device", "pin_memory")}
    return {key: value for key, value in plain.items() if value is not None}


def _plain(value: Any) -> Any:
    """The value as JSON has it; None for tensors and long lists."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and len(value) <= _LARGEST_ATTRIBUTE:
        return list(value) if all(isinstance(v, (bool, int, float)) for v in value) else None
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None
