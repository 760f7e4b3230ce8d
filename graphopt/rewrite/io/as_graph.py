"""Programs as graphs, so that everything that knows graphs works on rewritten programs; and back.

One op per term that runs. What depends on weights alone is a weight, as the program computes it before it runs.
"""

from collections.abc import Sequence
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder, known_dtype
from graphopt.rewrite.ir.terms import OpaqueCall, Program, runs
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Operation, TensorType, text_of, window_flop

KINDS = {"batch_norm": "affine", "enlarge": "pad", "merge_groups": "pad"}  # others are called alike


def program_of(graph: Graph) -> Program:
    """The program that a graph carries: its own, or that of its ONNX file or torch module.

    Raises GraphError when there is none. What a file or a module becomes is read anew at each call.
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
    return _Drawing(program, name, family).build()


class _Drawing:
    """`GraphBuilder` filled term by term. handles: the tensor of every term that makes one, of every item."""

    def __init__(self, program: Program, name: str, family: str | None) -> None:
        self.program, self.terms = program, program.terms
        self.builder = GraphBuilder(name, family)
        self.handles: dict[int, int] = {}
        self.items: dict[int, list[int]] = {}  # maker of several -> its items that are needed

    def build(self) -> Graph:
        live = self.program.live()
        for term in live:
            if self.terms.operation[term].name == "item":
                self.items.setdefault(self.terms.inputs[term][0], []).append(term)
        for term in live:
            if runs(self.terms, term):
                self._add(term)
        for output in self.program.outputs:
            self.builder.output(self._handle(output))
        return self.builder.build(self.program)

    def _add(self, term: int) -> None:
        operation, inputs = self.terms.operation[term], self.terms.inputs[term]
        given = [self._handle(i) for i in inputs]
        if operation.name in ("split", "opaque"):
            made = self._several(term)
        else:
            made = [self._tensor(self.terms.type_of(term), weight=False)]
            self.handles[term] = made[0]
        kind, label = kind_of(self.program, operation), operation.name
        if operation.name == "opaque":
            label = self.program.opaque[operation.params[0]].label
        self.builder.op(kind, given, made, name=f"{label}_{term}", attributes=attributes_of(operation, label),
                        flops=flops_of(self.program, term))  # fmt: skip

    def _several(self, term: int) -> list[int]:
        """Handles of the results that something reads; when nothing reads any, of the first."""
        for item in self.items.get(term, ()):
            self.handles[item] = self._tensor(self.terms.type_of(item), weight=False)
        made = [self.handles[item] for item in self.items.get(term, ())]
        return made or [self._tensor(t, weight=False) for t in self.terms.types[term][:1]]

    def _handle(self, term: int) -> int:
        if term not in self.handles:
            self.handles[term] = self._tensor(self.terms.type_of(term), weight=self.terms.static[term])
        return self.handles[term]

    def _tensor(self, kind: TensorType, *, weight: bool) -> int:
        return self.builder.tensor(kind.shape, known_dtype(kind.dtype), weight=weight)


def kind_of(program: Program, operation: Operation) -> str:
    """The kind of an operation among `graphopt.core.operators`."""
    if operation.name == "opaque":
        call: OpaqueCall = program.opaque[operation.params[0]]
        return call.kind
    return KINDS.get(operation.name, operation.name)


def flops_of(program: Program, term: int) -> float | None:
    """FLOP of a term, a multiply-add being two; None for the kind's own count per element."""
    terms = program.terms
    operation, results = terms.operation[term], terms.types[term]
    inputs = [terms.types[i][0] for i in terms.inputs[term]]
    if operation.name == "opaque":
        call: OpaqueCall = program.opaque[operation.params[0]]
        return call.flops(inputs, results)
    return window_flop(operation, inputs, results)


def attributes_of(operation: Operation, label: str) -> dict[str, Any]:
    """Parameters by name, as plain values."""
    if operation.name == "opaque":
        return {"operator": label}
    return {name: _plain(value) for name, value in zip(VOCABULARY[operation.name].params, operation.params)}


def _plain(value: Any) -> Any:
    nested = isinstance(value, Sequence) and any(isinstance(v, tuple) for v in value)
    return text_of(value) if nested else list(value) if isinstance(value, tuple) else value
