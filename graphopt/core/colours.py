"""Colours of ops (Weisfeiler, Lehman 1968): equal where ops and all that lies within some hops of them are alike.

They are 64-bit digests of content, so colours of different graphs compare. Shape legend: N ops.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph

U64 = NDArray[np.uint64]


def colours(graph: Graph, *facts: NDArray[Any]) -> Iterator[U64]:
    """[N] colours after 0, 1, 2, ... hops, without end. facts: integers [N] each, equal for ops that are alike.

    A hop adds the colours of inputs and those of readers, as multisets: their order does not count.
    """
    colour = np.zeros(graph.num_ops, np.uint64)
    for fact in facts:
        colour = _mixed(colour + fact.astype(np.uint64))
    while True:
        yield colour
        wider = colour
        for salt, (first, others) in enumerate((graph.predecessors, graph.successors), 1):
            around = np.zeros(graph.num_ops, np.uint64)
            owner = np.repeat(np.arange(graph.num_ops), np.diff(first))
            np.add.at(around, owner, _mixed(colour[others] + np.uint64(salt)))
            wider = _mixed(wider + _mixed(around + np.uint64(salt)))
        colour = wider


def largest_result(graph: Graph) -> I64:
    """[N] elements of the largest result of every op, 1 where it has none."""
    elements = np.ones(graph.num_ops, np.int64)
    made = graph.producer >= 0
    np.maximum.at(elements, graph.producer[made], graph.numel[made])
    return elements


def _mixed(values: U64) -> U64:
    """Digests of 64-bit numbers (the finaliser of SplitMix64); sums of them tell multisets apart."""
    with np.errstate(over="ignore"):
        mixed = values + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
