"""ONNX models, with their weights, as programs.

What the vocabulary has becomes terms; what follows from constants alone is computed here; every other node stays
opaque, as it is. Small constants that are no floating-point numbers (shapes, axes) belong to the opaque nodes that
read them. Tensors whose shape is not known before the run have the shape (0,); only opaque nodes touch them.
"""

from collections.abc import Iterable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TypeProto

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import MOST, RANK
from graphopt.readers.onnx.folding import SIZES, SMALL, STANDARD, evaluated, shape_value, static_shape
from graphopt.readers.onnx.model import (
    dtype_of,
    label_of,
    opsets_of,
    plain_attributes,
    reads,
    subgraphs,
    types_of,
    values_of,
)
from graphopt.readers.onnx.onnx_operators import kind_of
from graphopt.readers.onnx.reader import checked, fix_dims, inferred, parse
from graphopt.rewrite.io.onnx_call import OnnxCall, OnnxOrigin, make_call
from graphopt.rewrite.io.onnx_vocabulary import RULES, OnnxNode, translate
from graphopt.rewrite.ir.terms import Program, Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError, TensorType
from graphopt.utils.limits import machine_memory

Array = NDArray[Any]
UNKNOWN = TensorType((0,))
FOLDED = 2**22  # elements that may be computed here, or four times as many as a model has weights if that is more
_HEAVY = frozenset({"matmul", "conv", "opaque"})  # work for when the program runs


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
    weights = {w.name: values_of(w, str(path)) for w in model.graph.initializer}
    if model.graph.sparse_initializer:
        raise GraphError(f"{path} has sparse weights, which cannot be rewritten; export it with dense ones")
    program = _OnnxImport(inferred(model, path), path, weights, origin).program()
    _check_size(program, path)
    return program


def _check_size(program: Program, path: Path) -> None:
    """Raises GraphError where the program is larger than this machine, since it has to be run."""
    sizes = {term: sum(size_of(kind) for kind in program.terms.types[term]) for term in program.live()}
    resident = sum(size for term, size in sizes.items() if program.terms.operation[term].name in ("input", "weight"))
    needed = resident + max(sizes.values(), default=0)
    if needed > machine_memory():
        raise GraphError(
            f"{path} needs {needed / 2**30:,.0f} GiB to run, and this machine has {machine_memory() / 2**30:,.0f}; "
            "give smaller dimensions"
        )


def size_of(kind: TensorType) -> int:
    """Bytes of a tensor; of text only those of its places."""
    return prod(kind.shape) * np.dtype(kind.dtype).itemsize


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
    metadata = tuple((p.key, p.value) for p in model.metadata_props)
    inputs = tuple(v for v in graph.input if v.name not in stored)
    return OnnxOrigin(tuple(sorted(opsets_of(model).items())), model.ir_version, graph.name, inputs, outputs, metadata)


class _OnnxImport:
    """One model on its way. values: what every tensor is so far, a term or a constant that no term stands for yet."""

    def __init__(self, model: ModelProto, path: Path, weights: Mapping[str, Array], origin: OnnxOrigin) -> None:
        self.graph, self.path, self.origin = model.graph, path, origin
        self.opsets = dict(origin.opsets)
        self.terms = Terms()
        self.weights: dict[str, Array] = {}  # of those that terms read
        self.opaque: dict[str, OnnxCall] = {}
        self.values: dict[str, int | Array] = dict(weights)
        self.left = max(FOLDED, 4 * sum(w.size for w in weights.values()))  # elements that may still be computed here
        self.stated = types_of(self.graph)
        self.types = {name: kind for name, v in self.stated.items() if (kind := _type_of(v)) is not None}

    def program(self) -> Program:
        inputs = tuple(self._input(value.name) for value in self.origin.inputs)
        self.read = {name for node in self.graph.node for name in reads(node)} | {v.name for v in self.graph.output}
        for node in self.graph.node:
            self._node(node)
        names = tuple(v.name for v in self.graph.output)
        outputs = tuple(self._term(name, "the list of outputs") for name in names)
        return Program(self.terms, outputs, names, inputs, self.weights, self.opaque, self.origin)

    def _input(self, name: str) -> int:
        if name not in self.types:
            raise GraphError(f"{self.path}: input {name!r} has no shape, or is no tensor; export it with fixed shapes")
        self.values[name] = term = self.terms.add(Operation("input", (name, *self.types[name])))
        return term

    def _node(self, node: NodeProto) -> None:
        for name in reads(node):
            self._known(name, label_of(node))
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
            self.weights[name], self.types[name] = value, TensorType(value.shape, value.dtype.name)
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
        if node.op_type in ("Shape", "Size") and node.domain in STANDARD:
            kind = self._type(node.input[0]) if node.input else None
            return shape_value(node, kind.shape) if kind else None
        names = dict.fromkeys(reads(node))
        if node.domain not in STANDARD or subgraphs(node) or (not names and node.op_type != "Constant"):
            return None
        constants = {name: value for name in names if (value := self._constant(name)) is not None}
        static = {name: term for name in names if isinstance(term := self.values[name], int)
                  and name not in constants and self.terms.static[term]}  # fmt: skip
        if len(constants) + len(static) < len(names) or node.op_type not in (*SIZES, "Constant"):
            return None
        if node.op_type in RULES and (static or any(value.dtype.kind == "f" for value in constants.values())):
            return None
        if static and not self._affordable(static.values()):
            return None
        constants |= self._computed(static) if static else {}
        return _uniform(node, constants) or self._evaluated(node, constants)

    def _evaluated(self, node: NodeProto, given: Mapping[str, Array]) -> dict[str, Array] | None:
        found = evaluated(node, given, self.opsets, self.left)
        self.left -= (
            sum(x.size for x in (*given.values(), *(found or {}).values())) if node.op_type != "Constant" else 0
        )
        return found

    def _affordable(self, static: Iterable[int]) -> bool:
        """Whether terms that weights alone decide are few enough elements to be computed here."""
        order = reachable(self.terms, static)
        work = sum(size_of(kind) for term in order for kind in self.terms.types[term])
        return work <= self.left * 4 and all(self.terms.operation[t].name not in _HEAVY for t in order)

    def _computed(self, static: Mapping[str, int]) -> dict[str, Array]:
        """Values of terms that weights alone decide."""
        from graphopt.rewrite.ir.execution import static_values, to_array  # torch

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
        typed = OnnxNode(self.terms, node.op_type, plain_attributes(node), self.opsets.get("", 1), inputs, known,
                          [name in self.read for name in made], lambda i: self._term(node.input[i]),
                          lambda i: self._constant(node.input[i]))  # fmt: skip
        try:
            results = translate(typed)
        except (ShapeError, ArithmeticError, IndexError, TypeError, ValueError):
            return None  # the vocabulary does not have it in this form, or the node's attributes mean nothing
        if results is None or any(self.terms.type_of(t) != kind for t, kind in zip(results, known)):
            return None
        return list(results)

    def _opaque(self, node: NodeProto) -> list[int]:
        """Items of the node as it is."""
        names = dict.fromkeys(reads(node))
        constants = {name: value for name in names if (value := self._constant(name)) is not None
                     and value.dtype.kind != "f" and value.size <= SMALL}  # fmt: skip
        operands = [name for name in names if name not in constants]
        call = make_call(node, [(name, self._proto(name)) for name in operands], constants, self.opsets)
        key = call.key
        if kind_of(node.domain, node.op_type) == "random":
            key += f".{len(self.opaque)}"  # two draws are not one
        self.opaque[key] = call
        types = tuple(tuple(self.types.get(name, UNKNOWN)) for name in node.output if name)
        term = self.terms.add(Operation("opaque", (key, types)), [self._term(name) for name in operands])
        return [self.terms.add(Operation("item", (i,)), (term,)) for i in range(len(types))]

    def _proto(self, name: str) -> TypeProto | None:
        value = self._constant(name)
        if value is not None and (name not in self.stated or isinstance(self.values[name], np.ndarray)):
            return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), None)
        return self.stated[name].type if name in self.stated else None


def _type_of(value: onnx.ValueInfoProto) -> TensorType | None:
    shape, kind = static_shape(value), value.type.tensor_type.elem_type
    if shape is None or not kind:
        return None
    return TensorType(shape, dtype_of(kind))


def _uniform(node: NodeProto, given: Mapping[str, Array]) -> dict[str, Array] | None:
    """The result of ConstantOfShape without the memory that it would take; None where it is none."""
    if node.op_type != "ConstantOfShape" or given[node.input[0]].size > RANK:
        return None
    shape = tuple(int(d) for d in given[node.input[0]].ravel())
    if min(shape, default=0) < 0 or prod(shape) > MOST:
        return None
    stored = [values_of(a.t, "the model") for a in node.attribute if a.name == "value" and a.t.dims == [1]]
    value = stored[0].reshape(()) if stored else np.zeros((), np.float32)
    return {node.output[0]: np.broadcast_to(value, shape)}
