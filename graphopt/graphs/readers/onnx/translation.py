"""From an ONNX model with inferred shapes to a graph: its constants, ops, and the operands of each op.

If costs as much as its dearer branch, Loop and Scan as much as their body, as often as they run it.

The body of a loop is taken to keep the shapes that it begins with. Memory traffic within a body is not counted: an op
of the graph reads its operands, those that the body captures among them, and writes its results, once.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.core.operators import Category
from graphopt.core.utils.terminal import printable
from graphopt.graphs.readers.onnx.folding import SMALL, static_shape, stays_short
from graphopt.graphs.readers.onnx.inference import InferenceDied, inferred_once
from graphopt.graphs.readers.onnx.model import (
    BITS,
    captured,
    constants_of,
    dtype_of,
    label_of,
    opsets_of,
    plain_attributes,
    reads,
    subgraphs,
    types_of,
    values_of,
)
from graphopt.graphs.readers.onnx.onnx_operators import (
    FlopCount,
    NodeShapes,
    Shape,
    category_of,
    formula_of,
    kind_of,
    work_of,
)

BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
Types = dict[str, ValueInfoProto]


@dataclass
class Scope:
    """Where a node stands: types of tensors, stored constants, operator sets."""

    types: Types
    constants: dict[str, TensorProto]
    opsets: Mapping[str, int]
    source: str

    def shape(self, name: str) -> Shape | None:
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return static_shape(self.types[name]) if name in self.types else None

    def number(self, name: str) -> int | None:
        """The value of a constant of one element."""
        stored = self.constants.get(name)
        if stored is None or prod(stored.dims) != 1 or stored.data_location == TensorProto.EXTERNAL:
            return None
        return int(values_of(stored, self.source).item())


def node_work(node: NodeProto, scope: Scope) -> FlopCount:
    """FLOP of any node, those of its subgraphs included."""
    if node.op_type not in BODIES or kind_of(node.domain, node.op_type) is None:
        return work_of(NodeShapes(node.op_type, plain_attributes(node), [scope.shape(n) for n in node.input],
                            [scope.shape(n) for n in node.output], node.domain))  # fmt: skip
    bodies: dict[str, Callable[[NodeProto, Scope], FlopCount]] = {"If": _branches, "Loop": _loop, "Scan": _scan}
    try:
        return bodies[node.op_type](node, scope)
    except (MemoryError, InferenceDied):
        raise
    except Exception:  # any exception by a malformed body, of ONNX too
        return FlopCount(0.0, "its body is not counted")


def _branches(node: NodeProto, scope: Scope) -> FlopCount:
    return max((_body(graph, {}, scope) for graph in subgraphs(node)), key=lambda work: work.flop)


def _loop(node: NodeProto, scope: Scope) -> FlopCount:
    """Inputs: the number of trips, whether to begin, carried values; the body's: the trip, the condition, the same."""
    (body,) = subgraphs(node)
    carried = [scope.types.get(name) or _stated(name, scope) for name in node.input[2:]]
    known = {inner.name: outer for inner, outer in zip(body.input[2:], carried) if outer is not None}
    return _repeated(_body(body, known, scope), scope.number(node.input[0]) if node.input[0] else None)


def _scan(node: NodeProto, scope: Scope) -> FlopCount:
    """The last inputs are cut along an axis each; before them come carried values."""
    (body,) = subgraphs(node)
    attributes = plain_attributes(node)
    cut = int(attributes["num_scan_inputs"])
    if not 0 < cut <= len(node.input):
        raise ValueError(f"{cut} of {len(node.input)} inputs are cut")
    axes = attributes.get("scan_input_axes", [0] * cut)
    first, trips, known = len(node.input) - cut, None, dict[str, ValueInfoProto]()
    for place, (inner, name) in enumerate(zip(body.input, node.input, strict=True)):
        outer, shape = scope.types.get(name) or _stated(name, scope), scope.shape(name)
        if outer is None or shape is None:
            continue
        if place >= first:
            axis = axes[place - first] % len(shape)
            trips, shape = shape[axis], (*shape[:axis], *shape[axis + 1 :])
        known[inner.name] = onnx.helper.make_tensor_value_info(name, outer.type.tensor_type.elem_type, shape)
    return _repeated(_body(body, known, scope), trips)


def _repeated(once: FlopCount, trips: int | None) -> FlopCount:
    if trips is None:
        return FlopCount(once.flop, "; ".join(filter(None, ("trips not known, counted once", once.missing))))
    return FlopCount(max(trips, 0) * once.flop, once.missing)


def _body(graph: GraphProto, known: Types, scope: Scope) -> FlopCount:
    """FLOP of one run of a subgraph. known: types of its inputs."""
    inner = _inner_scope(graph, known, scope)
    works = [node_work(node, inner) for node in graph.node if node.op_type != "Constant"]
    missing = Counter(work.missing for work in works if work.missing)
    reasons = ", ".join(f"{reason} x{count}" for reason, count in missing.items())
    return FlopCount(sum(work.flop for work in works), f"within its body: {reasons}" if reasons else "")


def _inner_scope(graph: GraphProto, known: Types, scope: Scope) -> Scope:
    """Types of all tensors of a subgraph, by inference on it as a model of its own, with captured tensors as inputs."""
    model = ModelProto(ir_version=8)
    model.opset_import.extend(onnx.helper.make_opsetid(domain, version) for domain, version in scope.opsets.items())
    model.graph.CopyFrom(graph)
    for value in model.graph.input:
        if value.name in known:
            value.type.CopyFrom(known[value.name].type)
    taken = [name for name in dict.fromkeys(captured(graph)) if name in scope.types or name in scope.constants]
    for name in taken:
        if name in scope.constants and prod(scope.constants[name].dims) <= SMALL:
            model.graph.initializer.append(scope.constants[name])
        elif (outer := scope.types.get(name) or _stated(name, scope)) is not None:
            model.graph.input.add(name=name).type.CopyFrom(outer.type)
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    model = inferred_once(model, scope.source, follow=stays_short(model))
    around = {name: scope.constants[name] for name in taken if name in scope.constants}
    return Scope(types_of(model.graph), around | constants_of(model.graph), scope.opsets, scope.source)


def _stated(name: str, scope: Scope) -> ValueInfoProto | None:
    stored = scope.constants.get(name)
    return None if stored is None else onnx.helper.make_tensor_value_info(name, stored.data_type, stored.dims)


# --- The graph.


@dataclass
class Account:
    """Warnings about a model: ops that stay opaque, and ops whose FLOP are not all counted."""

    unknown: Counter[str] = field(default_factory=Counter)
    opaque: Counter[str] = field(default_factory=Counter)  # whose operator is known
    uncounted: Counter[str] = field(default_factory=Counter)

    def add(self, node: NodeProto, *, known: bool, missing: str) -> None:
        label = f"{node.domain}.{node.op_type}".strip(".")
        if not known:
            self.unknown[label] += 1
        elif kind_of(node.domain, node.op_type) == "opaque":
            self.opaque[label] += 1
        if missing:
            self.uncounted[f"{label}: {missing}"] += 1

    def sentence(self, ops: int, shapeless: list[str]) -> str:
        """Empty when there is nothing to say."""
        opaque, parts = self.unknown.total() + self.opaque.total(), []
        if self.unknown:
            parts.append(f"{self.unknown.total()} ops of unknown operators are opaque ({_listed(self.unknown)})")
        if self.opaque:
            parts.append(f"{self.opaque.total()} ops of known operators are opaque ({_listed(self.opaque)})")
        if opaque:
            parts.append(f"opaque ops, which nothing is fused with, are {opaque} of {ops} ops ({opaque / ops:.0%})")
        if self.uncounted:
            parts.append(f"FLOP are not all counted of {self.uncounted.total()} ops ({_listed(self.uncounted)})")
        if shapeless:
            names = ", ".join(shapeless[:5]) + (", ..." if len(shapeless) > 5 else "")
            parts.append(f"{len(shapeless)} tensors without a known shape count 0 bytes ({names})")
        return printable("; ".join(parts))


def _listed(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} x{count}" for name, count in sorted(counts.items())[:12])
    return shown + (", ..." if len(counts) > 12 else "")


class Translation:
    """One model on its way into a graph.

    A node whose inputs are all constant is folded: its results are weights. Only views of weights stay ops, since a
    view costs nothing and folding it would count the weight twice.
    """

    def __init__(self, model: ModelProto, name: str, family: str | None) -> None:
        self.name, self.graph = name, model.graph
        self.builder = GraphBuilder(name, family)
        self.weights = constants_of(self.graph)
        self.scope = Scope(types_of(self.graph), self.weights, opsets_of(model), f"model {name!r}")
        self.constant = set(self.weights) | {w.values.name for w in self.graph.sparse_initializer}
        self.folded = [self._fold(node) for node in self.graph.node]
        self.inputs = {v.name for v in self.graph.input}
        self.handles: dict[str, int] = {}
        self.shapeless: list[str] = []
        self.op_names: Counter[str] = Counter()
        self.account = Account()

    def build(self, program: Any) -> Graph:
        nodes = self._kept()
        self.read = {name for node in nodes for name in self._operands(node)} | {v.name for v in self.graph.output}
        for node in nodes:
            for name in self._live_results(node):
                self.handles[name] = self._tensor(name, weight=False)
        for node in nodes:
            self._add(node)
        for value in self.graph.output:
            self.builder.output(self._handle(value.name, "the list of outputs"))
        said = self.account.sentence(len(nodes), self.shapeless)
        if said:
            warnings.warn(f"model {self.name!r}: {said}", stacklevel=3)
        return self.builder.build(program)

    def _kind(self, node: NodeProto) -> str | None:
        return kind_of(node.domain, node.op_type)

    def _fold(self, node: NodeProto) -> bool:
        """Whether the node's results are constants; if so they are noted. Shapes of known tensors are constants too."""
        kind = self._kind(node)
        names = reads(node)
        static = node.op_type in ("Shape", "Size") and bool(node.input) and self._shape(node.input[0]) is not None
        foldable = kind not in (None, "random") and not subgraphs(node) and all(r in self.constant for r in names)
        if node.op_type == "Constant" or static or (foldable and bool(names)):
            self.constant.update(node.output)
            return True
        return False

    def _kept(self) -> list[NodeProto]:
        """Nodes that become ops: all that are not folded, and views of weights, which cost nothing and copy nothing."""
        needed = {v.name for v in self.graph.output}
        kept: list[NodeProto] = []
        for node, folded in zip(reversed(self.graph.node), reversed(self.folded), strict=True):
            if not folded or (_is_view(self._kind(node)) and any(name in needed for name in node.output)):
                kept.append(node)
                needed.update(self._operands(node))
        return kept[::-1]

    def _operands(self, node: NodeProto) -> list[str]:
        """Tensors read at run time: not constant scalars, nor constant shapes and axes, which the kernel contains."""
        kind = self._kind(node)
        return [
            name
            for i, name in enumerate(reads(node))
            if (i == 0 and _is_view(kind)) or name not in self.constant or not self._is_parameter(kind, i, name)
        ]

    def _is_parameter(self, kind: str | None, position: int, name: str) -> bool:
        if kind is None:
            return False  # an unknown operator may do anything with it
        shape = self._shape(name)
        if shape is not None and prod(shape) == 1:
            return True
        if _is_view(kind) or kind in ("pad", "upsample"):
            return position > 0
        axes = category_of(kind) is Category.REDUCTION or kind in ("topk", "iota", "fill")
        return axes and self._element_type(name) == TensorProto.INT64

    def _add(self, node: NodeProto) -> None:
        label = label_of(node)
        self.op_names[label] += 1
        name = label if self.op_names[label] == 1 else f"{label}#{self.op_names[label]}"
        kind = self._kind(node) or "opaque"
        if _is_view(kind) and not self._operands(node):
            raise GraphError(f"model {self.name!r}: {name!r} ({node.op_type}) has no input; export it again")
        attributes = {"onnx": node.op_type, **plain_attributes(node), **self._parameters(node)}
        work = node_work(node, self.scope)
        if work.missing:
            attributes["uncounted"] = work.missing
        if kind == "opaque" or work.missing:
            self.account.add(node, known=self._kind(node) is not None, missing=work.missing)
        self.builder.op(kind, [self._handle(n, name) for n in self._operands(node)],
                        [self.handles[n] for n in self._live_results(node)], flops=self._count(node, work), name=name,
                        attributes=attributes)  # fmt: skip

    def _count(self, node: NodeProto, work: FlopCount) -> float | None:
        """FLOP by formula or body; None for the kind's own count of the results that are read."""
        by_formula = node.op_type in BODIES or formula_of(NodeShapes(node.op_type, {}, [], [], node.domain)) is not None
        return work.flop if by_formula and self._kind(node) is not None else None

    def _live_results(self, node: NodeProto) -> list[str]:
        """Results that something reads; when nobody reads any, the first."""
        named = [n for n in node.output if n]
        return [n for n in named if n in self.read] or named[:1]

    def _handle(self, name: str, reader: str) -> int:
        if name not in self.handles:
            if name not in self.constant and name not in self.inputs:
                raise GraphError(
                    f"model {self.name!r}: {reader!r} reads {name!r}, which nothing makes; export it again"
                )
            self.handles[name] = self._tensor(name, weight=name in self.constant)
        return self.handles[name]

    def _tensor(self, name: str, *, weight: bool) -> int:
        shape = self._shape(name)
        if shape is None:
            self.shapeless.append(name)
            return self.builder.tensor((0,), weight=weight)
        kind = self._element_type(name)
        num_bytes = (prod(shape) * BITS.get(kind, 8) + 7) // 8  # their true size
        return self.builder.tensor(shape, known_dtype(dtype_of(kind)), weight=weight, num_bytes=num_bytes)

    def _shape(self, name: str) -> Shape | None:
        return self.scope.shape(name)

    def _element_type(self, name: str) -> int:
        if name in self.weights:
            return self.weights[name].data_type
        known = self.scope.types.get(name)
        return known.type.tensor_type.elem_type if known is not None else TensorProto.FLOAT

    def _parameters(self, node: NodeProto) -> dict[str, Any]:
        """Constant integer inputs that are not operands, under the names of the ONNX schema, e.g. {"axes": [1]}."""
        labels = _input_labels(node.op_type, self.scope.opsets.get("", 1)) if self._kind(node) else ()
        operands = set(self._operands(node))
        return {label: values_of(self.weights[name], f"model {self.name!r}").tolist()
                for label, name in zip(labels, node.input, strict=False)
                if name in self.weights and name not in operands and self._element_type(name) == TensorProto.INT64
                and prod(self.weights[name].dims) <= SMALL
                and self.weights[name].data_location != TensorProto.EXTERNAL}  # fmt: skip


def _is_view(kind: str | None) -> bool:
    return kind is not None and category_of(kind) is Category.VIEW


@cache
def _input_labels(op_type: str, opset: int) -> tuple[str, ...]:
    try:
        return tuple(i.name for i in onnx.defs.get_schema(op_type, opset, "").inputs)
    except onnx.defs.SchemaError:
        return ()
