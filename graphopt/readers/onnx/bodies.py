"""What loops and branches cost: If its dearer branch, Loop and Scan their body as often as they run it.

The body of a loop is taken to keep the shapes that it begins with. Memory traffic within a body is not counted: an op
of the graph reads its operands, those that the body captures among them, and writes its results, once.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.readers.onnx.folding import SMALL, static_shape, stays_short
from graphopt.readers.onnx.formulas import NodeShapes, Shape
from graphopt.readers.onnx.inference import InferenceDied, inferred_once
from graphopt.readers.onnx.model import captured, constants_of, subgraphs, types_of, values_of
from graphopt.readers.onnx.onnx_operators import FlopCount, kind_of, work_of

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
    """FLOP of any node, with what its subgraphs do."""
    if node.op_type not in BODIES or kind_of(node.domain, node.op_type) is None:
        return work_of(NodeShapes(node.op_type, plain_attributes(node), [scope.shape(n) for n in node.input],
                            [scope.shape(n) for n in node.output], node.domain))  # fmt: skip
    bodies: dict[str, Callable[[NodeProto, Scope], FlopCount]] = {"If": _branches, "Loop": _loop, "Scan": _scan}
    try:
        return bodies[node.op_type](node, scope)
    except (MemoryError, InferenceDied):
        raise
    except Exception:  # what a malformed body raises here, or ONNX says of it
        return FlopCount(0.0, "its body is not counted")


def _branches(node: NodeProto, scope: Scope) -> FlopCount:
    return max((_body(graph, {}, scope) for graph in subgraphs(node)), key=lambda work: work.flop)


def _loop(node: NodeProto, scope: Scope) -> FlopCount:
    """Inputs: the number of trips, whether to begin, what is carried; the body's: the trip, the condition, the same."""
    (body,) = subgraphs(node)
    carried = [scope.types.get(name) or _stated(name, scope) for name in node.input[2:]]
    known = {inner.name: outer for inner, outer in zip(body.input[2:], carried) if outer is not None}
    return _repeated(_body(body, known, scope), scope.number(node.input[0]) if node.input[0] else None)


def _scan(node: NodeProto, scope: Scope) -> FlopCount:
    """The last inputs are cut along an axis each; before them comes what is carried."""
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
    """Types of all tensors of a subgraph, by inference on it as a model of its own, which takes what it captures."""
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


def plain_attributes(node: NodeProto) -> dict[str, Any]:
    """Numbers, texts and lists of them; tensors and subgraphs are left to the program."""
    plain: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
            plain[attribute.name] = onnx.helper.get_attribute_value(attribute)
        elif attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            plain[attribute.name] = list(onnx.helper.get_attribute_value(attribute))
        elif attribute.type == AttributeProto.STRING:
            plain[attribute.name] = attribute.s.decode(errors="replace")
    return plain
