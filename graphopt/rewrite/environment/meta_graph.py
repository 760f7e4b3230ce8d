"""`MetaGraph`: a program and its candidates as one graph (X-RLflow, He et al., MLSys 2023, section 3.2), drawn from the
changes of rewrites: no candidate is made.

Nodes are ops that run, as in `rewrite.io.as_graph`; edges are tensors that one of them reads from another, so inputs
and weights are none. The paper draws every candidate whole. But messages go with the edges, so after L layers of them
only nodes within L hops below a change differ from the current program's; with `hops: L` these alone are drawn, and
unchanged neighbours are read from the current program's nodes. The states of such layers, and so sums over a
candidate's nodes, are the same to the last rounding.

Shape legend: M nodes and E edges of all graphs, G graphs, H pairs, S sizes, T totals.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log2, prod

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.ir.terms import Outputs, Terms, maker_of, reachable
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, VOCABULARY, window_flop
from graphopt.rewrite.rules.steps import Neighbourhood, ProgramChange, RewriteStep

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
KINDS = {name: place for place, name in enumerate(VOCABULARY)}
# Of a node: log2 of its results' elements and FLOP per element, activation.
SIZES = ("elements", "work", *ACTIVATIONS[1:])
DIMS = 4  # of a tensor, the last ones; fewer are filled with zeros from the left
TOTALS = ("gain", "better", "ops", "stop")
"""Of a graph: reductions of its proxy price, the current program's price, and its ops, as shares of the original's;
whether it is the current program."""


@dataclass(frozen=True, slots=True, eq=False)
class MetaGraph:
    """Graph 0 is the current program, whole; the others are the candidates in their order."""

    kind: I64  # [M] place of its operator in the vocabulary
    sizes: F32  # [M, S]
    edges: I64  # [2, E] nodes, from the one that makes a tensor to the one that reads it
    dims: F32  # [E, 4] of that tensor
    graph: I64  # [M] ascending
    hidden: I64  # [2, H] candidate, node of the current program that is not in it, or that it has drawn anew
    totals: F32  # [G, T]

    def __len__(self) -> int:
        return len(self.totals)


class _GraphRows:
    """Features of terms, each found out once, as rows of an array that grows."""

    def __init__(self, width: int, features: Callable[[int], Sequence[float]]) -> None:
        self._features, self._row, self._table = features, dict[int, int](), np.zeros((64, width), np.float32)

    def of(self, terms: Sequence[int]) -> F32:
        rows = [self._row[term] if term in self._row else self._add(term) for term in terms]
        return self._table[rows]

    def _add(self, term: int) -> int:
        self._row[term] = row = len(self._row)
        if row == len(self._table):
            self._table = np.concatenate([self._table, np.zeros_like(self._table)])
        self._table[row] = self._features(term)
        return row


class _Current:
    """The current program. nodes: terms that run; reads: per node, (maker's node, term that is read)."""

    def __init__(self, terms: Terms, outputs: Outputs, live: Sequence[int]) -> None:
        self.nodes = [term for term in live or reachable(terms, outputs) if terms.runs[term]]
        self.place = {term: i for i, term in enumerate(self.nodes)}
        self.reads: list[list[tuple[int, int]]] = [[] for _ in self.nodes]
        self.below: list[list[int]] = [[] for _ in self.nodes]
        self.readers: dict[int, list[int]] = {}  # of a term, items of it included
        for node, term in enumerate(self.nodes):
            for i in terms.inputs[term]:
                maker = maker_of(terms, i)
                for read in {i, maker}:
                    self.readers.setdefault(read, []).append(node)
                if (source := self.place.get(maker)) is not None:
                    self.reads[node].append((source, i))
                    self.below[source].append(node)


class MetaGraphs:
    """Draws the programs of one store of terms. hops: see the module's docstring; None: every candidate whole."""

    def __init__(self, terms: Terms, hops: int | None) -> None:
        self.terms, self.hops = terms, hops
        self._sizes = _GraphRows(len(SIZES), lambda term: sizes(terms, term))
        self._dims = _GraphRows(DIMS, lambda term: tuple(last_dims(terms.types[term][0].shape)))

    def of(self, around: Neighbourhood, steps: Sequence[RewriteStep], totals: F32) -> MetaGraph:
        """A program and some of the steps from it. totals: [1 + steps, T]."""
        now = _Current(self.terms, around.outputs, around.live)
        drawing = _Sketch(self, now)
        for graph, step in enumerate(steps, 1):
            change = around.change(step.match)
            if change is None:
                drawing.add_whole(graph, _Current(self.terms, around.apply(step.match), ()))
            else:
                drawing.add_changed(graph, change)
        return drawing.finished(totals, self._sizes, self._dims)


class _Sketch:
    """Lists that become a `MetaGraph`."""

    def __init__(self, style: MetaGraphs, now: _Current) -> None:
        self.terms, self.hops, self.now = style.terms, style.hops, now
        self.nodes, self.graph = list[int](), list[int]()
        self.links, self.read = list[tuple[int, int]](), list[int]()
        self.hidden = list[tuple[int, int]]()
        self._add_program(0, now)

    def _add_program(self, graph: int, program: _Current) -> None:
        first = len(self.nodes)
        self.nodes += program.nodes
        self.graph += [graph] * len(program.nodes)
        for node, reads in enumerate(program.reads, first):
            for source, read in reads:
                self.links.append((first + source, node))
                self.read.append(read)

    def add_whole(self, graph: int, program: _Current) -> None:
        """A candidate of which only the program itself is known."""
        self._add_program(graph, program)
        self.hidden += [(graph, node) for node in range(len(self.now.nodes))]

    def add_changed(self, graph: int, change: ProgramChange) -> None:
        """A candidate: nodes that differ, then those that come."""
        now, terms, first = self.now, self.terms, len(self.nodes)
        gone = {now.place[term] for term in change.gone if term in now.place}
        added = [term for term in change.added if terms.runs[term]]
        drawn = [node for node in range(len(now.nodes)) if node not in gone]
        if self.hops is not None:  # readers of replaced terms, and their own readers
            found = edge = {reader for root in change.image for reader in now.readers.get(root, ())} - gone
            for _ in range(self.hops - 1):
                edge = {below for node in edge for below in now.below[node]} - found - gone
                found = found | edge
            drawn = sorted(found)
        old = {node: first + i for i, node in enumerate(drawn)}
        new = {term: first + len(drawn) + i for i, term in enumerate(added)}
        image = change.image

        def made_by(maker: int) -> int | None:
            """The node of an op, None for a leaf."""
            here = now.place.get(maker)
            return new.get(maker) if here is None else old.get(here, here)

        def link(source: int | None, node: int, read: int) -> None:
            if source is not None:
                self.links.append((source, node))
                self.read.append(read)

        for here, node in old.items():
            for source, read in now.reads[here]:
                if read in image:
                    link(made_by(maker_of(terms, image[read])), node, read)
                else:
                    maker = image.get(now.nodes[source])
                    link(old.get(source, source) if maker is None else made_by(maker), node, read)
        for term, node in new.items():
            for read in terms.inputs[term]:
                link(made_by(maker_of(terms, read)), node, read)
        self.nodes += [*map(now.nodes.__getitem__, drawn), *added]
        self.graph += [graph] * (len(old) + len(new))
        self.hidden += [(graph, node) for node in (*drawn, *gone)]

    def finished(self, totals: F32, sizes: _GraphRows, dims: _GraphRows) -> MetaGraph:
        operation = self.terms.operation
        kind = np.array([KINDS[operation[term].name] for term in self.nodes], np.int64)
        graph = np.array(self.graph, np.int64)
        return MetaGraph(kind, sizes.of(self.nodes), _pairs(self.links), dims.of(self.read), graph, _pairs(self.hidden),
                         totals)  # fmt: skip


def sizes(terms: Terms, term: int) -> tuple[float, ...]:
    """`SIZES` of a term."""
    operation, results = terms.operation[term], terms.types[term]
    elements = float(sum(prod(result.shape) for result in results))
    work = window_flop(operation, [terms.types[i][0] for i in terms.inputs[term]], results) or 0.0
    active = [float(activation in operation.params) for activation in ACTIVATIONS[1:]]
    return log2(1 + elements), log2(1 + work / max(elements, 1.0)), *active


def last_dims(shape: Sequence[int]) -> Iterator[float]:
    """The last four dimensions, zeros before them where there are fewer."""
    yield from (0.0 for _ in range(DIMS - len(shape)))
    yield from map(float, shape[-DIMS:])


def _pairs(found: Sequence[tuple[int, int]]) -> I64:
    """[2, pairs]"""
    return np.ascontiguousarray(np.array(found, np.int64).reshape(-1, 2).T)
