"""ONNX models, with their weights, as programs.

What the vocabulary has becomes terms; what follows from constants alone is computed here; every other node stays
opaque, as it is. Small constants that are no floating-point numbers (shapes, axes) belong to the opaque nodes that
read them. Tensors whose shape is not known before the run have the shape (0,); only opaque nodes touch them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TypeProto

from graphopt.datasets.onnx import checked, fix_dims, inferred, parse
from graphopt.datasets.onnx_folding import SMALL, static_shape
from graphopt.datasets.onnx_operators import kind_of
from graphopt.graph import GraphError
from graphopt.rewrite.onnx_call import STANDARD, OnnxCall, OnnxOrigin, make_call, subgraphs
from graphopt.rewrite.onnx_vocabulary import RULES, Reading, translate
from graphopt.rewrite.terms import Program, Terms
from graphopt.rewrite.vocabulary import Operation, ShapeError, TensorType

Array = NDArray[Any]
UNKNOWN = TensorType((0,))
_KEPT = frozenset({"DequantizeLinear", "QuantizeLinear"})  # folding them would undo a quantisation


def import_onnx(source: str | Path | ModelProto, dims: Mapping[str, int] | None = None) -> Program:
    """The program of a file or a model in memory; `dims` fixes open dimensions by name.

    Raises GraphError, in one sentence, for what is not a model, lacks weights, has open dimensions or a cycle.
    """
    if isinstance(source, ModelProto):
        path, copy = Path(source.graph.name or "model"), ModelProto()
        copy.CopyFrom(source)
        model = checked(copy, path)
    else:
        path = Path(source)
        model = parse(path, external=True)
    outputs = tuple(_with_dims(value, dims or {}) for value in model.graph.output)
    fix_dims(model, dims or {}, path)
    origin = _origin(model, outputs)
    weights = {w.name: onnx.numpy_helper.to_array(w) for w in model.graph.initializer}
    if model.graph.sparse_initializer:
        raise GraphError(f"{path} has sparse weights, which cannot be rewritten; export it with dense ones")
    return _Import(inferred(model, path), path, weights, origin).program()


def _with_dims(value: onnx.ValueInfoProto, dims: Mapping[str, int]) -> onnx.ValueInfoProto:
    """What the model states of an output, with the open dimensions that are given a size."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    for dim in copy.type.tensor_type.shape.dim if copy.type.HasField("tensor_type") else ():
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]
    return copy


def _origin(model: ModelProto, outputs: tuple[onnx.ValueInfoProto, ...]) -> OnnxOrigin:
    graph = model.graph
    stored = {w.name for w in graph.initializer}
    opsets = tuple(sorted((o.domain if o.domain != "ai.onnx" else "", o.version) for o in model.opset_import))
    metadata = tuple((p.key, p.value) for p in model.metadata_props)
    inputs = tuple(v for v in graph.input if v.name not in stored)
    return OnnxOrigin(opsets, model.ir_version, graph.name, inputs, outputs, metadata)


class _Import:
    """One model on its way. values: what every tensor is so far, a term or a constant that no term stands for yet."""

    def __init__(self, model: ModelProto, path: Path, weights: Mapping[str, Array], origin: OnnxOrigin) -> None:
        self.graph, self.path, self.origin = model.graph, path, origin
        self.opsets = dict(origin.opsets)
        self.terms = Terms()
        self.weights: dict[str, Array] = {}  # of those that terms read
        self.opaque: dict[str, OnnxCall] = {}
        self.values: dict[str, int | Array] = dict(weights)
        self.protos = {v.name: v.type for v in (*self.graph.value_info, *self.graph.input, *self.graph.output)}
        self.types = {v.name: kind for v in (*self.graph.value_info, *self.graph.input, *self.graph.output)
                      if (kind := _type_of(v)) is not None}  # fmt: skip

    def program(self) -> Program:
        inputs = tuple(self._input(value.name) for value in self.origin.inputs)
        nodes = self._sorted()
        self.read = {name for node in nodes for name in reads(node)} | {v.name for v in self.graph.output}
        for node in nodes:
            self._node(node)
        names = tuple(v.name for v in self.graph.output)
        outputs = tuple(self._term(name, "the list of outputs") for name in names)
        return Program(self.terms, outputs, names, inputs, self.weights, self.opaque, self.origin)

    def _input(self, name: str) -> int:
        if name not in self.types:
            raise GraphError(f"{self.path}: input {name!r} has no shape, or is no tensor; export it with fixed shapes")
        self.values[name] = term = self.terms.add(Operation("input", (name, *self.types[name])))
        return term

    def _sorted(self) -> list[NodeProto]:
        """Nodes in an order in which everything is made before it is read. Raises GraphError on a cycle."""
        maker = {name: i for i, node in enumerate(self.graph.node) for name in node.output if name}
        needs = [{maker[n] for n in reads(node) if n in maker} for node in self.graph.node]
        done, order = [False] * len(needs), list[int]()
        for start in range(len(needs)):
            stack = [start]
            on_way = set[int]()
            while stack:
                top = stack[-1]
                missing = [i for i in needs[top] if not done[i]]
                if not done[top] and not missing:
                    done[top] = True
                    order.append(top)
                if done[top]:
                    on_way.discard(stack.pop())
                    continue
                on_way.add(top)
                if not on_way.isdisjoint(missing):
                    raise GraphError(f"{self.path} has a cycle through node {_name(self.graph.node[top])!r}; models "
                                     "must be acyclic: export it again")  # fmt: skip
                stack.extend(missing)
        return [self.graph.node[i] for i in order]

    def _node(self, node: NodeProto) -> None:
        for name in reads(node):
            self._known(name, _name(node))
        folded = self._folded(node)
        if folded is not None:
            self.values.update(folded)
            return
        results = self._translated(node)
        if results is None:
            results = self._opaque(node)
        self.values.update(zip([n for n in node.output if n], results))

    def _known(self, name: str, reader: str) -> int | Array:
        if name not in self.values:
            raise GraphError(f"{self.path}: {reader!r} reads {name!r}, which nothing makes; export it again")
        return self.values[name]

    def _term(self, name: str, reader: str = "") -> int:
        """The term of a tensor; a constant becomes a weight."""
        value = self._known(name, reader)
        if isinstance(value, np.ndarray):
            self.weights[name] = value
            value = self.terms.add(Operation("weight", (name, value.shape, value.dtype.name)))
            self.values[name] = value
        return value

    def _constant(self, name: str) -> Array | None:
        value = self.values[name]
        if isinstance(value, np.ndarray):
            return value
        operation = self.terms.operation[value]
        return self.weights[operation.params[0]] if operation.name == "weight" else None

    def _type(self, name: str) -> TensorType | None:
        """What is known of a tensor; None where its shape is not."""
        value = self.values.get(name)
        if isinstance(value, np.ndarray):
            return TensorType(value.shape, value.dtype.name)
        return self.types.get(name)

    def _folded(self, node: NodeProto) -> dict[str, Array] | None:
        """Results that follow from constants alone; products of weights and the like are left to terms."""
        if node.op_type in ("Shape", "Size") and node.domain in STANDARD and (kind := self._type(node.input[0])):
            return _evaluated(node, {node.input[0]: np.broadcast_to(np.zeros((), np.int8), kind.shape)}, self.opsets)
        names = reads(node)
        constants = {name: value for name in names if (value := self._constant(name)) is not None}
        if node.op_type == "Constant" and node.domain in STANDARD:
            return _evaluated(node, {}, self.opsets)
        static = {name: term for name in names if isinstance(term := self.values[name], int)
                  and name not in constants and self.terms.static[term]}  # fmt: skip
        if not names or len(constants) + len(static) < len(names) or subgraphs(node) or node.op_type in _KEPT:
            return None
        if kind_of(node.domain, node.op_type) in (None, "random"):
            return None
        if node.op_type in RULES and (static or any(value.dtype.kind == "f" for value in constants.values())):
            return None
        constants |= self._computed(static) if static else {}
        return _uniform(node, constants) or _evaluated(node, constants, self.opsets)

    def _computed(self, static: Mapping[str, int]) -> dict[str, Array]:
        """Values of terms that weights alone decide."""
        from graphopt.rewrite.execution import static_values, to_array  # torch

        values = static_values(Program(self.terms, (), (), (), self.weights), static.values(), double=False)
        return {name: to_array(values[term]) for name, term in static.items()}

    def _translated(self, node: NodeProto) -> list[int] | None:
        """Terms of the node's outputs where the vocabulary has it and all shapes are known and agree."""
        made = [name for name in node.output if name]
        inputs = [self._type(name) if name else None for name in node.input]
        outputs = [self.types.get(name, None if name in self.read else UNKNOWN) for name in made]
        lost = any(name and kind is None for name, kind in zip(node.input, inputs))
        if node.domain not in STANDARD or subgraphs(node) or lost or None in outputs or not node.input:
            return None
        known = [kind for kind in outputs if kind is not None]
        attributes = {a.name: _plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
        reading = Reading(self.terms, node.op_type, attributes, self.opsets.get("", 1), inputs, known,
                          [name in self.read for name in made], lambda i: self._term(node.input[i]),
                          lambda i: self._constant(node.input[i]))  # fmt: skip
        try:
            results = translate(reading)
        except ShapeError:  # the vocabulary does not have it in this form
            return None
        if results is None or any(self.terms.type_of(t) != kind for t, kind in zip(results, known)):
            return None
        return list(results)

    def _opaque(self, node: NodeProto) -> list[int]:
        """Items of the node as it is."""
        constants = {name: value for name in reads(node) if (value := self._constant(name)) is not None
                     and value.dtype.kind != "f" and value.size <= SMALL}  # fmt: skip
        operands = [name for name in reads(node) if name not in constants]
        call = make_call(node, [(name, self._proto(name)) for name in operands], constants, self.opsets)
        key = call.key
        if kind_of(node.domain, node.op_type) == "random":
            key += f".{len(self.opaque)}"  # two draws are not one
        self.opaque[key] = call
        types = tuple(tuple(self.types.get(name, UNKNOWN)) for name in node.output if name)
        term = self.terms.add(Operation("opaque", (key, types)), [self._term(name) for name in operands])
        return [self.terms.add(Operation("item", (i,)), (term,)) for i in range(len(types))]

    def _proto(self, name: str) -> TypeProto | None:
        value = self.values[name]
        if isinstance(value, np.ndarray):
            return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)
        if name in self.protos:
            proto: TypeProto = self.protos[name]
            return proto
        operation = self.terms.operation[value]
        if operation.name != "weight":
            return None
        dtype = self.weights[operation.params[0]].dtype
        return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(dtype), None)


def reads(node: NodeProto) -> list[str]:
    """Names read by a node, once each, those that its subgraphs capture last."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        made = {v.name for v in graph.input} | {w.name for w in graph.initializer}
        made.update(name for inner in graph.node for name in inner.output)
        wanted = [name for inner in graph.node for name in reads(inner)] + [v.name for v in graph.output]
        names += [name for name in wanted if name not in made]
    return list(dict.fromkeys(names))


def _name(node: NodeProto) -> str:
    return node.name or next(iter(node.output), node.op_type)


def _type_of(value: onnx.ValueInfoProto) -> TensorType | None:
    shape, kind = static_shape(value), value.type.tensor_type.elem_type
    if shape is None or not kind:
        return None
    return TensorType(shape, onnx.helper.tensor_dtype_to_np_dtype(kind).name)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _uniform(node: NodeProto, given: Mapping[str, Array]) -> dict[str, Array] | None:
    """The result of ConstantOfShape without the memory that it would take."""
    if node.op_type != "ConstantOfShape":
        return None
    stored = [onnx.numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"]
    value = stored[0].reshape(()) if stored else np.zeros((), np.float32)
    return {node.output[0]: np.broadcast_to(value, tuple(int(d) for d in given[node.input[0]]))}


def _evaluated(node: NodeProto, given: Mapping[str, Array], opsets: Mapping[str, int]) -> dict[str, Array] | None:
    """Results by ONNX's reference implementation; None when it cannot run the node."""
    from onnx.reference import ReferenceEvaluator  # slow to import, and few models need it

    if node.op_type == "Constant":
        stored = [a.t for a in node.attribute if a.name == "value"]
        if stored:
            return {node.output[0]: onnx.numpy_helper.to_array(stored[0])}
    made = [name for name in node.output if name]
    graph = onnx.helper.make_graph([node], "one", _stated(given), [onnx.helper.make_empty_tensor_value_info(n)
                                                                   for n in made])  # fmt: skip
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    try:
        results: Any = ReferenceEvaluator(model).run(None, dict(given))  # type: ignore[no-untyped-call]
    except Exception:  # it raises all kinds of errors; the node then stays opaque
        return None
    if not all(isinstance(r, np.ndarray | np.generic) for r in results):
        return None
    return {name: np.asarray(r) for name, r in zip(made, results)}


def _stated(given: Mapping[str, Array]) -> list[onnx.ValueInfoProto]:
    return [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in given.items()]  # fmt: skip
