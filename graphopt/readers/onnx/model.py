"""What an ONNX model consists of, for both readers: that of graphs (translation.py) and of programs (rewrite/io)."""

from collections.abc import Iterable, Iterator
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import stable_order

DEPTH = 32  # subgraphs within each other; the file format itself ends at about that many
BITS: dict[int, int] = {
    TensorProto.FLOAT: 32, TensorProto.FLOAT16: 16, TensorProto.BFLOAT16: 16, TensorProto.DOUBLE: 64,
    TensorProto.INT64: 64, TensorProto.UINT64: 64, TensorProto.INT32: 32, TensorProto.UINT32: 32,
    TensorProto.INT16: 16, TensorProto.UINT16: 16, TensorProto.INT8: 8, TensorProto.UINT8: 8, TensorProto.BOOL: 8,
    TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4, TensorProto.INT2: 2, TensorProto.UINT2: 2,
    TensorProto.COMPLEX64: 64, TensorProto.COMPLEX128: 128,
}  # fmt: skip
"""Bits of an element; of those not listed (texts, floats of 6 and 8 bits) eight."""


def stored_in(model: ModelProto, source: str) -> Iterator[TensorProto]:
    """All dense tensors: weights and attributes, those of subgraphs and functions too."""
    for graph in graphs_of(model, source):
        yield from graph.initializer
        yield from _attributes(graph.node)
    yield from _attributes(node for function in model.functions for node in function.node)


def _attributes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for a in node.attribute:
            yield from (*([a.t] if a.HasField("t") else []), *a.tensors)


def graphs_of(model: ModelProto, source: str) -> Iterator[GraphProto]:
    """The graph and all subgraphs, those of functions too. Raises GraphError where they are nested too deep."""
    waiting = [(model.graph, 0), *((g, 1) for f in model.functions for n in f.node for g in subgraphs(n))]
    while waiting:
        graph, depth = waiting.pop()
        if depth > DEPTH:
            raise GraphError(f"{source} has subgraphs nested more than {DEPTH} deep; export it without")
        yield graph
        waiting += [(inner, depth + 1) for node in graph.node for inner in subgraphs(node)]


def subgraphs(node: NodeProto) -> list[GraphProto]:
    """The graphs among a node's attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.type == AttributeProto.GRAPH else a.graphs)]


def constants_of(graph: GraphProto) -> dict[str, TensorProto]:
    """Stored tensors by name: weights, and what Constant nodes hold."""
    held = [(node.output[0], a.t) for node in graph.node if node.op_type == "Constant" and node.output
            for a in node.attribute if a.name == "value"]  # fmt: skip
    return {**{w.name: w for w in graph.initializer}, **dict(held)}


def types_of(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """What is stated of tensors, by name."""
    return {v.name: v for v in (*graph.value_info, *graph.input, *graph.output)}


def dtype_of(kind: int) -> str:
    """numpy's name of an element type; empty where none is stated."""
    return str(onnx.helper.tensor_dtype_to_np_dtype(kind).name) if kind else ""


def opsets_of(model: ModelProto) -> dict[str, int]:
    """Versions of the operator sets; the standard one is ""."""
    return {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}


def label_of(node: NodeProto) -> str:
    return node.name or next(iter(node.output), node.op_type)


def put_in_order(graph: GraphProto, source: str) -> None:
    """Reorders nodes, in place, so that everything is made before it is read. Raises GraphError on a cycle."""
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    order = stable_order([{maker[name] for name in reads(node) if name in maker} for node in graph.node])
    if len(order) < len(graph.node):
        stuck = graph.node[min(set(range(len(graph.node))) - set(order))]
        raise GraphError(f"{source} has a cycle through or before node {label_of(stuck)!r}; models must be acyclic: "
                         "export it again")  # fmt: skip
    if order != sorted(order):
        nodes = [graph.node[i] for i in order]
        del graph.node[:]
        graph.node.extend(nodes)


def reads(node: NodeProto) -> list[str]:
    """Names read by a node, in order and as often as it does, then those that its subgraphs capture, once."""
    within = {name: None for graph in subgraphs(node) for name in captured(graph)}
    return [name for name in (*node.input, *within) if name]


def captured(graph: GraphProto) -> list[str]:
    """Names that a subgraph takes from around it."""
    wanted = [name for node in graph.node for name in reads(node)] + [v.name for v in graph.output]
    made = made_in(graph)
    return [name for name in wanted if name not in made]


def made_in(graph: GraphProto) -> set[str]:
    """Names of a subgraph's own tensors."""
    made = {v.name for v in graph.input} | {w.name for w in graph.initializer}
    return made.union(*(node.output for node in graph.node))


def values_of(tensor: TensorProto, source: str) -> NDArray[Any]:
    """The array of a stored tensor. Raises GraphError when what is stored is not what it says."""
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # numpy's, protobuf's, and those of onnx
        said = " ".join(str(error).split())[:160]
        raise GraphError(f"{source}: weight {tensor.name!r} is damaged ({said}); export it again") from None
