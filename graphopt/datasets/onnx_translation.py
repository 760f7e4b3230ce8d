"""From an ONNX model with inferred shapes to a graph: what is constant, what becomes an op, what each op reads."""

import warnings
from collections import Counter
from collections.abc import Iterable
from functools import cache
from math import prod
from typing import Any

import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto

from graphopt.datasets.onnx_folding import SMALL, static_shape
from graphopt.datasets.onnx_operators import Call, Shape, category_of, flops, kind_of
from graphopt.datasets.onnx_vetting import BITS, subgraphs, values_of
from graphopt.graph import Graph, GraphError
from graphopt.graph_builder import GraphBuilder
from graphopt.operators import Category

_DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64", TensorProto.INT64: "int64", TensorProto.UINT64: "int64",
    TensorProto.INT32: "int32", TensorProto.UINT32: "int32", TensorProto.INT16: "int16", TensorProto.UINT16: "int16",
    TensorProto.INT8: "int8", TensorProto.UINT8: "uint8", TensorProto.BOOL: "bool", TensorProto.UINT4: "uint8",
    TensorProto.COMPLEX64: "float64", TensorProto.COMPLEX128: "float64",
}  # fmt: skip
"""Our element type; others are int8. Their bytes are counted by what they truly take (`BITS`)."""


class Translation:
    """One model on its way into a graph.

    A node whose inputs are all constant is folded: its results are weights. Only views of weights stay ops, since a
    view costs nothing and folding it would count the weight twice.
    """

    def __init__(self, model: ModelProto, name: str, family: str | None) -> None:
        self.name, self.graph = name, model.graph
        self.builder = GraphBuilder(name, family)
        self.opsets = {o.domain: o.version for o in model.opset_import}
        self.types = {v.name: v for v in (*self.graph.value_info, *self.graph.input, *self.graph.output)}
        self.weights: dict[str, TensorProto] = {w.name: w for w in self.graph.initializer}
        self.weights.update({n.output[0]: a.t for n in self.graph.node if n.op_type == "Constant" for a in n.attribute
                             if a.name == "value"})  # fmt: skip
        self.constant = set(self.weights) | {w.values.name for w in self.graph.sparse_initializer}
        self.folded = [self._fold(node) for node in self.graph.node]
        self.inputs = {v.name for v in self.graph.input}
        self.handles: dict[str, int] = {}
        self.shapeless: list[str] = []
        self.op_names: Counter[str] = Counter()

    def build(self, program: Any) -> Graph:
        nodes = self._kept()
        self.read = {name for node in nodes for name in self._operands(node)} | {v.name for v in self.graph.output}
        unknown: Counter[str] = Counter()
        for node in nodes:
            for name in self._live_results(node):
                self.handles[name] = self._tensor(name, weight=False)
        for node in nodes:
            if self._kind(node) is None:
                unknown[f"{node.domain}.{node.op_type}".strip(".")] += 1
            self._add(node)
        for value in self.graph.output:
            self.builder.output(self._handle(value.name, "the list of outputs"))
        self._warn(unknown)
        return self.builder.build(program)

    def _kind(self, node: NodeProto) -> str | None:
        return kind_of(node.domain, node.op_type)

    def _fold(self, node: NodeProto) -> bool:
        """Whether the node's results are constants; if so they are noted. Shapes of known tensors are constants too."""
        kind = self._kind(node)
        reads = _reads(node)
        static = node.op_type in ("Shape", "Size") and self._shape(node.input[0]) is not None
        foldable = kind not in (None, "random") and not subgraphs(node) and all(r in self.constant for r in reads)
        if node.op_type == "Constant" or static or (foldable and bool(reads)):
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
            for i, name in enumerate(_reads(node))
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
        label = node.name or (node.output[0] if node.output else node.op_type)
        self.op_names[label] += 1
        name = label if self.op_names[label] == 1 else f"{label}#{self.op_names[label]}"
        kind = self._kind(node)
        attributes = _attributes(node.attribute) | self._parameters(node)
        shapes = [[self._shape(n) if n else None for n in names] for names in (node.input, node.output)]
        count = flops(Call(node.op_type, attributes, shapes[0], shapes[1])) if kind is not None else None
        self.builder.op(kind or "opaque", [self._handle(n, name) for n in self._operands(node)],
                        [self.handles[n] for n in self._live_results(node)], flops=count, name=name,
                        attributes={"onnx": node.op_type, **attributes})  # fmt: skip

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
        num_bytes = (prod(shape) * BITS.get(kind, 8) + 7) // 8
        return self.builder.tensor(shape, _DTYPES.get(kind, "int8"), weight=weight, num_bytes=num_bytes)

    def _shape(self, name: str) -> Shape | None:
        if name in self.weights:
            return tuple(self.weights[name].dims)
        return static_shape(self.types[name]) if name in self.types else None

    def _element_type(self, name: str) -> int:
        if name in self.weights:
            return self.weights[name].data_type
        return self.types[name].type.tensor_type.elem_type if name in self.types else TensorProto.FLOAT

    def _parameters(self, node: NodeProto) -> dict[str, Any]:
        """Constant integer inputs that are not operands, under the names of the ONNX schema, e.g. {"axes": [1]}."""
        labels = _input_labels(node.op_type, self.opsets.get("", 1)) if self._kind(node) else ()
        operands = set(self._operands(node))
        return {label: values_of(self.weights[name], f"model {self.name!r}").tolist()
                for label, name in zip(labels, node.input, strict=False)
                if name in self.weights and name not in operands and self._element_type(name) == TensorProto.INT64
                and prod(self.weights[name].dims) <= SMALL
                and self.weights[name].data_location != TensorProto.EXTERNAL}  # fmt: skip

    def _warn(self, unknown: Counter[str]) -> None:
        parts = []
        if unknown:
            counts = ", ".join(f"{name} x{count}" for name, count in sorted(unknown.items()))
            parts.append(f"{sum(unknown.values())} ops of unknown operators are opaque ({counts})")
        if self.shapeless:
            names = ", ".join(self.shapeless[:5]) + (", ..." if len(self.shapeless) > 5 else "")
            parts.append(f"{len(self.shapeless)} tensors without a known shape count 0 bytes ({names})")
        if parts:
            warnings.warn(f"model {self.name!r}: {'; '.join(parts)}", stacklevel=4)


def _reads(node: NodeProto) -> list[str]:
    """Names read by a node in order, those captured by its subgraphs last; absent optional inputs are left out."""
    captured = {name: None for graph in subgraphs(node) for name in _captured(graph)}
    return [name for name in (*node.input, *captured) if name]


def _captured(graph: onnx.GraphProto) -> list[str]:
    made = {v.name for v in graph.input} | {w.name for w in graph.initializer}
    made.update(name for node in graph.node for name in node.output)
    wanted = [name for node in graph.node for name in _reads(node)] + [v.name for v in graph.output]
    return [name for name in wanted if name not in made]


def _is_view(kind: str | None) -> bool:
    return kind is not None and category_of(kind) is Category.VIEW


def _attributes(attributes: Iterable[AttributeProto]) -> dict[str, Any]:
    """Numbers, texts and lists of them; tensors and subgraphs are left to the program."""
    plain: dict[str, Any] = {}
    for attribute in attributes:
        if attribute.type in (AttributeProto.INT, AttributeProto.FLOAT):
            plain[attribute.name] = onnx.helper.get_attribute_value(attribute)
        elif attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS):
            plain[attribute.name] = list(onnx.helper.get_attribute_value(attribute))
        elif attribute.type == AttributeProto.STRING:
            plain[attribute.name] = attribute.s.decode(errors="replace")
    return plain


@cache
def _input_labels(op_type: str, opset: int) -> tuple[str, ...]:
    try:
        return tuple(i.name for i in onnx.defs.get_schema(op_type, opset, "").inputs)
    except onnx.defs.SchemaError:
        return ()
