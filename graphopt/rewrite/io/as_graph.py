"""Programs as graphs, so that everything that knows graphs works on rewritten programs; and back.

One op per term that runs. A term that depends on weights alone is a weight, as the program computes it before it runs.
"""

from collections.abc import Sequence
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.rewrite.ir.terms import MAKES_SEVERAL, OpaqueCall, Program
from graphopt.rewrite.ir.vocabulary import VOCABULARY, TensorType, text_of, window_flop

KINDS = {"batch_norm": "affine", "enlarge": "pad", "merge_groups": "pad"}  # others are called alike


def program_of(graph: Graph) -> Program:
    """The program that a graph carries: its own, or that of its ONNX file or torch module.

    Raises GraphError when there is none. The program of a file or a module is read anew at each call.
    """
    from graphopt.graphs.readers.onnx.reader import OnnxProgram

    carried = graph.program
    if isinstance(carried, Program):
        return carried
    if isinstance(carried, OnnxProgram):
        from graphopt.rewrite.io.onnx_import import import_onnx

        return import_onnx(carried.path, dict(carried.dims))
    if type(carried).__name__.startswith("GraphModule"):
        from graphopt.rewrite.io.torch_import import import_fx

        return import_fx(carried, graph.name)
    raise GraphError(f"graph {graph.name!r} carries no program that could be rewritten; "
                     "use dataset=rewrite_models, dataset=onnx or dataset=torch")  # fmt: skip


def graph_of(program: Program, *, name: str, family: str | None = None) -> Graph:
    """The graph of a program, which carries it. Raises GraphError when nothing is left to run."""
    terms, live, builder = program.terms, program.live(), GraphBuilder(name, family)
    handles: dict[int, int] = {}  # the tensor of every term that makes one, of every item
    items: dict[int, list[int]] = {}  # maker of several -> its items that are needed
    for term in live:
        if terms.operation[term].name == "item":
            items.setdefault(terms.inputs[term][0], []).append(term)

    def tensor(made: TensorType, weight: bool = False) -> int:
        return builder.tensor(made.shape, known_dtype(made.dtype), weight=weight)

    def handle(term: int) -> int:
        if term not in handles:
            handles[term] = tensor(terms.type_of(term), terms.static[term])
        return handles[term]

    for term in live:
        if terms.runs[term]:
            operation, results = terms.operation[term], terms.types[term]
            given = [handle(i) for i in terms.inputs[term]]
            own = items.get(term, ()) if operation.name in MAKES_SEVERAL else (term,)
            handles |= {one: tensor(terms.type_of(one)) for one in own}
            made = [handles[one] for one in own] or [tensor(result) for result in results[:1]]  # nothing reads any
            read = [terms.types[i][0] for i in terms.inputs[term]]
            if operation.name == "opaque":
                call: OpaqueCall = program.opaque[operation.params[0]]
                kind, label, flop = call.kind, call.label, call.flops(read, results)
                attributes: dict[str, Any] = {"operator": label}
            else:
                kind, label = KINDS.get(operation.name, operation.name), operation.name
                flop = window_flop(operation, read, results)
                attributes = dict(zip(VOCABULARY[label].params, map(_plain, operation.params)))
            builder.op(kind, given, made, name=f"{label}_{term}", attributes=attributes, flops=flop)
    for output in program.outputs:
        builder.output(handle(output))
    return builder.build(program)


def _plain(value: Any) -> Any:
    nested = isinstance(value, Sequence) and any(isinstance(v, tuple) for v in value)
    return text_of(value) if nested else list(value) if isinstance(value, tuple) else value
