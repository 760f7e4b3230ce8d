"""The parts of an ONNX model, for both readers: that of graphs (translation.py) and of programs (rewrite/io); and
checks before anything is computed from it: names, numbers and sizes that make sense.

A small file may ask for anything: functions that call each other twice, tensors of more elements than there are
numbers, subgraphs within subgraphs. All of it is refused by `vet`, in one sentence that names the file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, ValueInfoProto, defs

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import MOST, RANK, stable_order

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
    """Stored tensors by name: weights, and values of Constant nodes."""
    held = [(node.output[0], a.t) for node in graph.node if node.op_type == "Constant" and node.output
            for a in node.attribute if a.name == "value"]  # fmt: skip
    return {**{w.name: w for w in graph.initializer}, **dict(held)}


def types_of(graph: GraphProto) -> dict[str, ValueInfoProto]:
    """Declared types of tensors, by name."""
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
    """The array of a stored tensor. Raises GraphError when the stored bytes do not fit its type and shape."""
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # numpy's, protobuf's, and those of onnx
        said = " ".join(str(error).split())[:160]
        raise GraphError(f"{source}: weight {tensor.name!r} is damaged ({said}); export it again") from None


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


# --- Checks.


NODE, WRITTEN_OUT = 256, 2**28  # bytes of a node at least, of all functions where they are called


def vet(model: ModelProto, source: str) -> None:
    """Raises GraphError for a model that no reader of ours can make sense of."""
    _vet_operator_sets(model, source)
    _vet_functions(model, source)
    for graph in graphs_of(model, source):
        _vet_text(graph, source)
        _vet_names(graph, source)
        for value in (*graph.input, *graph.output, *graph.value_info):
            _vet_type(value.type.tensor_type.elem_type, f"{source}: tensor {value.name!r}")
        for sparse in _sparse(graph):
            _vet_tensor(sparse.values, sparse.dims, source)
    for tensor in stored_in(model, source):
        _vet_tensor(tensor, tensor.dims, source)


def _sparse(graph: GraphProto) -> Iterator[SparseTensorProto]:
    yield from graph.sparse_initializer
    for node in graph.node:
        for a in node.attribute:
            yield from (*([a.sparse_tensor] if a.HasField("sparse_tensor") else []), *a.sparse_tensors)


def _vet_operator_sets(model: ModelProto, source: str) -> None:
    versions = Counter("" if o.domain == "ai.onnx" else o.domain for o in model.opset_import)
    twice = [domain for domain, count in versions.items() if count > 1]
    if twice:
        raise GraphError(f"{source} names two versions of operator set {twice[0] or 'ai.onnx'!r}; export it again")
    latest = defs.onnx_opset_version()
    for entry in model.opset_import:
        newest = latest if entry.domain in ("", "ai.onnx") else 2**31 - 1
        if not 1 <= entry.version <= newest:
            raise GraphError(
                f"{source} is of version {entry.version} of operator set {entry.domain or 'ai.onnx'!r}, here there are "
                f"1 to {newest}; export it for one of these, or install a newer onnx"
            )


def _vet_functions(model: ModelProto, source: str) -> None:
    """Functions must not call themselves, and be small when they are written out wherever they are called."""
    calls = {(f.domain, f.name): [(n.domain, n.op_type) for n in _all_nodes(f.node)] for f in model.functions}
    size = {(f.domain, f.name): f.ByteSize() + NODE * len(calls[f.domain, f.name]) for f in model.functions}
    done: set[tuple[str, str]] = set()
    for start in calls:
        way = {start: None}  # in order
        while way:
            top = next(reversed(way))
            missing = next((key for key in calls[top] if key in calls and key not in done), None)
            if missing is None:
                size[top] += sum(size[key] for key in calls[top] if key in calls) if top not in done else 0
                done.add(top)
                del way[top]
            elif missing in way:
                raise GraphError(f"{source}: function {missing[1]!r} calls itself; export the model again")
            else:
                way[missing] = None
    total = sum(size.get((n.domain, n.op_type), 0) for n in _all_nodes(model.graph.node)) if size else 0
    if total > WRITTEN_OUT:
        raise GraphError(f"{source} has functions that are too large when written out; export it without functions")


def _all_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes and those of their subgraphs."""
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [inner for graph in subgraphs(node) for inner in graph.node]


def _vet_text(graph: GraphProto, source: str) -> None:
    """Names are text. The library gives bytes for other content."""
    values = (*graph.input, *graph.output, *graph.value_info)
    names = [value.name for value in values]
    names += [d.dim_param for value in values for d in value.type.tensor_type.shape.dim]
    names += [w.name for w in graph.initializer]
    for node in graph.node:
        names += [node.op_type, node.domain, node.name, *node.input, *node.output, *(a.name for a in node.attribute)]
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise GraphError(f"{source} holds a name that is no text ({wrong!r}); export it again")


def _vet_names(graph: GraphProto, source: str) -> None:
    """Every tensor is made once. An input may have its default value among the weights."""
    inputs = [v.name for v in graph.input]
    weights = [*(w.name for w in graph.initializer), *(w.values.name for w in graph.sparse_initializer)]
    results = [name for node in graph.node for name in node.output if name]
    for names in (inputs, weights, [*results, *{*inputs, *weights}]):
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise GraphError(f"{source} makes tensor {twice!r} twice; export it again")


def _vet_type(kind: int, what: str) -> None:
    if kind not in TensorProto.DataType.values():
        raise GraphError(f"{what} has an element type that there is not ({kind}); export it again")


def _vet_tensor(values: TensorProto, dims: Sequence[int], source: str) -> None:
    what = f"{source}: weight {values.name!r}"
    _vet_type(values.data_type or -1, what)
    if min(dims, default=0) < 0 or len(dims) > RANK:
        raise GraphError(f"{what} has a negative dimension, or more than {RANK} of them; export it again")
    if prod(dims) * BITS.get(values.data_type, 8) > 8 * MOST:
        raise GraphError(f"{what} would be larger than {MOST:,} bytes; export it again")
