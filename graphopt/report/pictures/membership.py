"""Which ops a picture shows, and which kernels they belong to."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.plan import Plans

I64 = NDArray[np.int64]


@dataclass(frozen=True)
class Excerpt:
    """A run of ops in topological order, and their edges."""

    ops: I64  # [V] ascending
    edges: list[tuple[int, int]]  # (source, destination) as positions in `ops`
    edge_bytes: list[int]


def kernels_of(graph: Graph, inline: NDArray[np.bool_]) -> list[frozenset[int]]:
    """[N] the stored ops in whose kernels each op is computed: itself, or, where it is inline, those of its readers."""
    ptr, readers = graph.successors
    kernels: list[frozenset[int]] = [frozenset()] * graph.num_ops
    for op in range(graph.num_ops - 1, -1, -1):
        below = readers[ptr[op] : ptr[op + 1]].tolist()
        kernels[op] = frozenset().union(*(kernels[b] for b in below)) if inline[op] else frozenset((op,))
    return kernels


def window(graph: Graph, focus: Iterable[int], most: int) -> Excerpt:
    """All ops, or that run of `most` ops which holds the most of those in focus (of equal ones the middle one)."""
    first, last = 0, graph.num_ops
    if graph.num_ops > most:
        marks = np.zeros(graph.num_ops + 1)
        marks[1:] = np.cumsum(np.isin(np.arange(graph.num_ops), list(focus)))
        inside = marks[most:] - marks[:-most]
        starts = np.flatnonzero(inside == inside.max())
        first = int(starts[len(starts) // 2])
        last = first + most
    source, target, tensor = graph.edges
    keep = (source >= first) & (target < last)
    size: dict[tuple[int, int], int] = {}
    for a, b, t in zip(source[keep].tolist(), target[keep].tolist(), tensor[keep].tolist()):
        size[a - first, b - first] = size.get((a - first, b - first), 0) + int(graph.tensor_bytes[t])
    return Excerpt(np.arange(first, last), list(size), list(size.values()))


def kernel_colours(kernels: Iterable[frozenset[int]], edges: Iterable[tuple[int, int]], count: int) -> dict[int, int]:
    """A colour number 0 .. count-1 for every kernel (by its stored op), different for neighbours where that can be.

    kernels: of the ops shown, in order. edges: positions of joined ops. Ties go to the colour used least.
    """
    shown = list(kernels)
    near: dict[int, set[int]] = {root: set() for owners in shown for root in owners}
    for a, b in edges:
        for left in shown[a]:
            for right in shown[b] - {left}:
                near[left].add(right)
                near[right].add(left)
    colour: dict[int, int] = {}
    used = [0] * count
    for root in sorted(near):
        around = near[root] | {second for first in near[root] for second in near[first]}
        taken = [sum(colour.get(other) == c for other in near[root]) * 100 + sum(colour.get(o) == c for o in around)
                 for c in range(count)]  # fmt: skip
        colour[root] = min(range(count), key=lambda c: (taken[c], used[c], c))
        used[colour[root]] += 1
    return colour


def new_ops(graph: Graph, other: Graph) -> I64:
    """Ops of a program's graph that the other program has not; the programs share their terms."""
    from graphopt.rewrite.ir.alignment import differing_terms

    program, new = graph.program, set(differing_terms(graph.program, other.program)[0])
    run = [term for term in program.live() if program.terms.runs[term]]  # as many as the graph has ops
    return np.flatnonzero([term in new for term in run])


def differing_ops(found: Plans, default: Plans) -> I64:
    """Ops that another device or another way of storing was chosen for."""
    return np.flatnonzero((found.inline[0] != default.inline[0]) | (found.device[0] != default.device[0]))
