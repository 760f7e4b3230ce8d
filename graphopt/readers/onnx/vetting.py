"""What an ONNX model has to be before anything is computed from it: names, numbers and sizes that make sense.

A small file may ask for anything: functions that call each other twice, tensors of more elements than there are
numbers, subgraphs within subgraphs. All of it is refused here, in one sentence that names the file.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from onnx import GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, defs

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import MOST, RANK
from graphopt.readers.onnx.model import BITS, graphs_of, stored_in, subgraphs

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
    """Names are text. The library gives bytes for what is none."""
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
