"""ONNX models, with their weights, as programs.

Operators of the vocabulary become terms; results of constants alone are computed here; every other node stays opaque,
as it is. Small constants that are no weights (shapes, axes, scales) belong to the opaque nodes that read them. Tensors
whose shape is not known before the run have the shape (0,); only opaque nodes touch them.

`RULES` has the operators of the vocabulary, a function each: from a node to terms, or None where it means more. Such
are dilated windows, padding that means count, products with factors, further outputs in use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TypeProto

from graphopt.core.graph import DTYPES, GraphError
from graphopt.core.graph_builder import MOST, RANK
from graphopt.core.utils.limits import machine_memory
from graphopt.graphs.readers.onnx.folding import SIZES, SMALL, STANDARD, evaluated, shape_value, static_shape
from graphopt.graphs.readers.onnx.model import (
    dtype_of,
    label_of,
    opsets_of,
    plain_attributes,
    reads,
    subgraphs,
    types_of,
    values_of,
)
from graphopt.graphs.readers.onnx.onnx_operators import kind_of
from graphopt.graphs.readers.onnx.reader import checked, fix_dims, inferred, parse
from graphopt.rewrite.io.onnx_call import OnnxCall, OnnxOrigin, make_call
from graphopt.rewrite.ir.program_builder import Pads, ceiled_pads, same_pads
from graphopt.rewrite.ir.terms import Program, Terms, reachable
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError, TensorType

Results = Sequence[int] | None


@dataclass(frozen=True)
class OnnxNode:
    """One node: its attributes, types of its inputs and results, and where its operands come from.

    inputs: one type per input, None where it is left out. term: the term of an input. constant: its value, if known.
    used: whether something reads each output.
    """

    terms: Terms
    op_type: str
    attributes: Mapping[str, Any]
    opset: int
    inputs: Sequence[TensorType | None]
    outputs: Sequence[TensorType]
    used: Sequence[bool]
    term: Callable[[int], int]
    constant: Callable[[int], NDArray[Any] | None]

    def add(self, name: str, *params: Any, of: Sequence[int]) -> int:
        return self.terms.add(Operation(name, params), tuple(of))

    def shape(self, position: int = 0) -> tuple[int, ...]:
        kind = self.inputs[position]
        assert kind is not None  # the operator's first inputs are never left out
        return kind.shape

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def axis(self, default: int) -> int:
        """Counted from the start, of the first input."""
        return int(self.get("axis", default)) % len(self.shape())

    def reshaped(self, x: int) -> int:
        """x in the shape of the first output."""
        shape = self.outputs[0].shape
        return x if self.terms.shape(x) == shape else self.add("reshape", shape, of=[x])


def translate(node: OnnxNode) -> Results:
    """Terms of the node's outputs; None for a node that stays opaque. Raises ShapeError where shapes do not fit."""
    if node.op_type == "Identity":  # of any operator set and type: the export writes it for an output of two names
        return _same(node)
    rule = RULES.get(node.op_type)
    if rule is None or node.opset < OLDEST or (any(node.used[1:]) and node.op_type != "Split"):
        return None
    types = [t for t in (*node.inputs, *node.outputs[:1]) if t is not None]
    if any(t.dtype not in DTYPES for t in types[:1]) or any(0 in t.shape for t in types):
        return None
    if node.op_type not in MOVES and types[0].dtype not in ("float32", "float64"):
        return None
    return rule(node)


def _sum(r: OnnxNode) -> Results:
    total = r.term(0)
    for position in range(1, len(r.inputs)):
        total = r.add("add", of=[total, r.term(position)])
    return [total]


def _gemm(r: OnnxNode) -> Results:
    bias = r.has(2)
    if r.get("alpha", 1.0) != 1.0 or (bias and r.get("beta", 1.0) != 1.0):
        return None
    sides = [r.add("transpose", (1, 0), of=[r.term(i)]) if r.get(flag, 0) else r.term(i)
             for i, flag in enumerate(("transA", "transB"))]  # fmt: skip
    product = r.add("matmul", "none", of=sides)
    return [r.add("add", of=[product, r.term(2)]) if bias else product]


def _same(r: OnnxNode) -> Results:
    return [r.term(0)]


def _dropout(r: OnnxNode) -> Results:
    """Nothing at inference; a training mode that is on, or not known, stays."""
    mode = r.constant(2) if r.has(2) else np.asarray(False)
    return None if mode is None or mode.any() else _same(r)


def _transpose(r: OnnxNode) -> Results:
    rank = len(r.shape())
    order = tuple(r.get("perm", range(rank - 1, -1, -1)))
    return _same(r) if order == tuple(range(rank)) else [r.add("transpose", order, of=[r.term(0)])]


def _concat(r: OnnxNode) -> Results:
    if len(r.inputs) == 1:
        return _same(r)
    return [r.add("concat", r.axis(1), of=[r.term(i) for i in range(len(r.inputs))])]


def _split(r: OnnxNode) -> Results:
    axis = r.axis(0)
    if len(r.outputs) == 1:
        return _same(r)
    sizes = tuple(t.shape[axis] for t in r.outputs)
    parts = r.add("split", axis, sizes, of=[r.term(0)])
    return [r.add("item", i, of=[parts]) for i in range(len(sizes))]


def _conv(r: OnnxNode) -> Results:
    if len(r.shape()) != 4 or any(d != 1 for d in r.get("dilations", (1, 1))):
        return None
    strides = tuple(r.get("strides", (1, 1)))
    pads = _pads(r, r.shape(1)[2:], strides)
    if r.get("group", 1) * r.shape(1)[1] != r.shape()[1]:
        return None
    return [r.add("conv", strides, pads, "none", of=[r.term(i) for i in range(3) if r.has(i)])]


def _pool(r: OnnxNode) -> Results:
    if len(r.shape()) != 4 or any(d != 1 for d in r.get("dilations", (1, 1))) or r.get("storage_order", 0):
        return None
    whole = r.shape()[2:] if r.op_type.startswith("Global") else ()
    kernel, strides = tuple(r.get("kernel_shape", whole)), tuple(r.get("strides", (1, 1)))
    pads = _pads(r, kernel, strides)
    if r.op_type == "AveragePool" and r.get("count_include_pad", 0) and any(pads):
        return None
    if r.get("ceil_mode", 0):
        pads = ceiled_pads(r.shape()[2:], r.outputs[0].shape[2:], kernel, strides, pads)
    return [r.add(_POOLS[r.op_type], kernel, strides, pads, of=[r.term(0)])]


def _batch_norm(r: OnnxNode) -> Results:
    if r.opset < 9 or r.get("training_mode", 0):
        return None
    epsilon = float(np.float32(r.get("epsilon", 1e-5)))
    return [r.add("batch_norm", epsilon, of=[r.term(i) for i in range(5)])]


def _softmax(r: OnnxNode) -> Results:
    """Before operator set 13 it went over all axes from one on."""
    rank = len(r.shape())
    axis = r.get("axis", -1 if r.opset >= 13 else 1) % max(rank, 1)
    return [r.add("softmax", axis, of=[r.term(0)])] if rank and (r.opset >= 13 or axis == rank - 1) else None


def _layer_norm(r: OnnxNode) -> Results:
    shape = r.shape()
    kinds = r.inputs[1:]
    if not shape or r.get("axis", -1) % len(shape) != len(shape) - 1 or any(k and k.shape != shape[-1:] for k in kinds):
        return None
    plain = r.inputs[0] is not None and r.inputs[0].dtype == "float32"
    if not r.has(2) and not plain:
        return None
    bias = r.term(2) if r.has(2) else r.add("fill", 0.0, shape[-1:], of=[])
    epsilon = float(np.float32(r.get("epsilon", 1e-5)))
    return [r.add("layer_norm", epsilon, of=[r.term(0), r.term(1), bias])]


def _pad(r: OnnxNode) -> Results:
    """Of zeros on the sides of all axes."""
    rank, listed = len(r.shape()), r.constant(1) if r.has(1) else np.array(r.get("pads", ()))
    value = r.constant(2) if r.has(2) else np.asarray(r.get("value", 0.0))
    if r.get("mode", "constant") not in ("constant", b"constant") or r.has(3) or listed is None or value is None:
        return None
    pads = tuple(int(pad) for pad in listed.flatten())
    if len(pads) != 2 * rank or min(pads, default=0) < 0 or value.any():
        return None
    return [r.add("pad", pads[:rank], pads[rank:], of=[r.term(0)])]


def _pads(r: OnnxNode, kernel: Sequence[int], strides: Sequence[int]) -> Pads:
    """(top, left, bottom, right) as ONNX lists them."""
    automatic = r.get("auto_pad", "NOTSET")
    if automatic in ("NOTSET", ""):
        return tuple(r.get("pads", (0, 0, 0, 0)))
    if automatic == "VALID":
        return (0, 0, 0, 0)
    lower = automatic == "SAME_LOWER"
    (top, bottom), (left, right) = (same_pads(n, k, s, lower) for n, k, s in zip(r.shape()[2:], kernel, strides))
    return top, left, bottom, right


_POOLS = {"MaxPool": "pool_max", "GlobalMaxPool": "pool_max", "AveragePool": "pool_avg",
          "GlobalAveragePool": "pool_avg"}  # fmt: skip
OLDEST = 7  # older operator sets broadcast by attributes; their nodes stay opaque
# For any element type.
MOVES = frozenset(("Dropout", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Concat", "Split"))
RULES: dict[str, Callable[[OnnxNode], Results]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid"), lambda r: [r.add(r.op_type.lower(), of=[r.term(0)])]),
    **dict.fromkeys(("Add", "Mul"), lambda r: [r.add(r.op_type.lower(), of=[r.term(0), r.term(1)])]),
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze", "Reshape"), lambda r: [r.reshaped(r.term(0))]),
    **dict.fromkeys(_POOLS, _pool),
    "Sum": _sum,
    "MatMul": lambda r: [r.add("matmul", "none", of=[r.term(0), r.term(1)])],
    "Gemm": _gemm,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Gather": lambda r: [r.add("gather", r.axis(0), of=[r.term(0), r.term(1)])] if r.shape() else None,
    "Pad": _pad,
}


Array = NDArray[Any]
UNKNOWN = TensorType((0,))
FOLDED = 2**22  # elements that may be computed here, or four times as many as a model has weights if that is more
_HEAVY = frozenset({"matmul", "conv", "opaque"})  # work for when the program runs
SETTINGS = frozenset({"Dropout", "NonMaxSuppression", "Range", "Resize", "Upsample"})  # which read numbers, not weights


def import_onnx(source: str | Path | ModelProto, dims: Mapping[str, int] | None = None) -> Program:
    """The program of a file or a model in memory; `dims` fixes open dimensions by name.

    Raises GraphError, in one sentence, for a file that is no model, lacks weights, has open dimensions or a cycle.
    """
    if isinstance(source, ModelProto):
        path, copy = Path(source.graph.name or "model"), ModelProto()
        copy.CopyFrom(source)
        model = checked(copy, path)
    else:
        path = Path(source)
        model = parse(path, external=True)
    outputs, graph = tuple(_with_dims(value, dims or {}) for value in model.graph.output), model.graph
    fix_dims(model, dims or {}, path)
    weights = {w.name: values_of(w, str(path)) for w in graph.initializer}
    origin = OnnxOrigin(tuple(sorted(opsets_of(model).items())), model.ir_version, graph.name,
                        tuple(v for v in graph.input if v.name not in weights), outputs,
                        tuple((p.key, p.value) for p in model.metadata_props))  # fmt: skip
    if graph.sparse_initializer:
        raise GraphError(f"{path} has sparse weights, which cannot be rewritten; export it with dense ones")
    program = _OnnxImport(inferred(model, path), path, weights, origin).program()
    sizes = {term: sum(size_of(kind) for kind in program.terms.types[term]) for term in program.live()}
    resident = sum(size for term, size in sizes.items() if program.terms.operation[term].name in ("input", "weight"))
    needed = resident + max(sizes.values(), default=0)
    if needed > machine_memory():  # it has to be run
        raise GraphError(
            f"{path} needs {needed / 2**30:,.0f} GiB to run, and this machine has {machine_memory() / 2**30:,.0f}; "
            "give smaller dimensions"
        )
    return program


def size_of(kind: TensorType) -> int:
    """Bytes of a tensor; of text only those of its places."""
    return prod(kind.shape) * np.dtype(kind.dtype).itemsize


def _with_dims(value: onnx.ValueInfoProto, dims: Mapping[str, int]) -> onnx.ValueInfoProto:
    """The model's declaration of an output, with the open dimensions that are given a size."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    for dim in copy.type.tensor_type.shape.dim if copy.type.HasField("tensor_type") else ():
        if dim.dim_param in dims:
            dim.dim_value = dims[dim.dim_param]
    return copy


class _OnnxImport:
    """One model on its way. values: of every tensor so far, a term or a constant that no term stands for yet."""

    def __init__(self, model: ModelProto, path: Path, weights: Mapping[str, Array], origin: OnnxOrigin) -> None:
        self.graph, self.path, self.origin = model.graph, path, origin
        self.opsets = dict(origin.opsets)
        self.terms = Terms()
        self.weights: dict[str, Array] = {}  # of those that terms read
        self.opaque: dict[str, OnnxCall] = {}
        self.op_names: dict[int, str] = {}
        self.values: dict[str, int | Array] = dict(weights)
        self.left = max(FOLDED, 4 * sum(w.size for w in weights.values()))  # elements that may still be computed here
        self.stated = types_of(self.graph)
        self.types = {name: kind for name, v in self.stated.items() if (kind := _type_of(v)) is not None}

    def program(self) -> Program:
        inputs = tuple(self._input(value.name) for value in self.origin.inputs)
        self.read = {name for node in self.graph.node for name in reads(node)} | {v.name for v in self.graph.output}
        for node in self.graph.node:
            for name in reads(node):
                self._known(name, label_of(node))
            folded = self._folded(node)
            if folded is not None:
                self.values.update(folded)
                continue
            known = len(self.terms)
            results = self._translated(node)
            made = self._opaque(node) if results is None else results
            self.op_names |= dict.fromkeys(range(known, len(self.terms)), label_of(node))
            self.values.update(zip([n for n in node.output if n], made))
        names = tuple(v.name for v in self.graph.output)
        outputs = tuple(self._term(name, "the list of outputs") for name in names)
        return Program(self.terms, outputs, names, inputs, self.weights, self.opaque, self.origin, names=self.op_names)

    def _input(self, name: str) -> int:
        if name not in self.types:
            raise GraphError(f"{self.path}: input {name!r} has no shape, or is no tensor; export it with fixed shapes")
        self.values[name] = term = self.terms.add(Operation("input", (name, *self.types[name])))
        return term

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
        """The type of a tensor; None where its shape is not known."""
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
        if static:  # terms that weights alone decide, where they are few enough elements
            from graphopt.rewrite.ir.execution import static_values, to_array  # torch

            order = reachable(self.terms, static.values())
            work = sum(size_of(kind) for term in order for kind in self.terms.types[term])
            if work > self.left * 4 or any(self.terms.operation[t].name in _HEAVY for t in order):
                return None
            values = static_values(Program(self.terms, (), (), (), self.weights), static.values(), double=False)
            constants |= {name: to_array(values[term]) for name, term in static.items()}
        found = _uniform(node, constants)
        if not found:
            found = evaluated(node, constants, self.opsets, self.left)
            if node.op_type != "Constant":
                self.left -= sum(x.size for x in (*constants.values(), *(found or {}).values()))
        return found

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
                     and (value.dtype.kind != "f" or node.op_type in SETTINGS) and value.size <= SMALL}  # fmt: skip
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
