"""Motifs: ops that look alike, with what lies around them. Repeated blocks of a network are where one change, made
everywhere at once, tells more than a change of one op.

Shape legend: N ops.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph

U64 = NDArray[np.uint64]


def motifs(graph: Graph, free: NDArray[np.bool_], depth: int) -> Iterator[list[I64]]:
    """For 0 .. depth hops: the classes of at least two ops that are alike so far, each ascending, the largest first.

    Alike are free ops (free [N]) with the same operator and elements of the largest result, and from one hop on with
    alike inputs and readers: Weisfeiler and Lehman's colours, here as 64-bit digests. A class that a smaller number of
    hops has given already is left out.
    """
    given: set[tuple[int, ...]] = set()
    label = _own(graph, free)
    for _ in range(depth + 1):
        classes = [ops for ops in _classes(label, free) if tuple(ops.tolist()) not in given]
        given.update(tuple(ops.tolist()) for ops in classes)
        yield classes
        label = _with_neighbours(graph, label)


def _own(graph: Graph, free: NDArray[np.bool_]) -> U64:
    elements = np.ones(graph.num_ops, np.int64)
    made = graph.producer >= 0
    np.maximum.at(elements, graph.producer[made], graph.numel[made])
    parts = np.stack([graph.kind.astype(np.int64), elements, free.astype(np.int64)], 1)
    return _mixed(np.unique(parts, axis=0, return_inverse=True)[1].reshape(-1).astype(np.uint64))


def _with_neighbours(graph: Graph, label: U64) -> U64:
    mixed = label.copy()
    for salt, (first, others) in enumerate((graph.predecessors, graph.successors), 1):
        around = np.zeros(graph.num_ops, np.uint64)  # a sum: the order of neighbours does not count
        np.add.at(around, np.repeat(np.arange(graph.num_ops), np.diff(first)), _mixed(label[others] + np.uint64(salt)))
        mixed = _mixed(mixed + _mixed(around + np.uint64(salt)))
    return mixed


def _classes(label: U64, free: NDArray[np.bool_]) -> list[I64]:
    ops = np.flatnonzero(free)
    ops = ops[np.argsort(label[ops], kind="stable")]
    ends = np.flatnonzero(np.diff(label[ops])) + 1
    classes = [part for part in np.split(ops, ends) if len(part) > 1]
    return sorted(classes, key=lambda part: (-len(part), int(part[0])))


def _mixed(values: U64) -> U64:
    """Digests of 64-bit numbers (the finaliser of SplitMix64); sums of them tell multisets apart."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
