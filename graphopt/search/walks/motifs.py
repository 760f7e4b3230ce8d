"""Motifs: ops that look alike, with what lies around them. Repeated blocks of a network are where one change, made
everywhere at once, tells more than a change of one op.

Shape legend: N ops.
"""

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from graphopt.core.colours import U64, colours, largest_result
from graphopt.core.graph import I64, Graph


def motifs(graph: Graph, free: NDArray[np.bool_], depth: int) -> Iterator[list[I64]]:
    """For 0 .. depth hops: the classes of at least two ops that are alike so far, each ascending, the largest first.

    Alike are free ops (free [N]) of one colour: the same operator and elements of the largest result, and from one hop
    on alike inputs and readers. A class that a smaller number of hops has given already is left out.
    """
    given: set[tuple[int, ...]] = set()
    for colour in islice(colours(graph, graph.kind, largest_result(graph), free), depth + 1):
        classes = [ops for ops in _classes(colour, free) if tuple(ops.tolist()) not in given]
        given.update(tuple(ops.tolist()) for ops in classes)
        yield classes


def _classes(colour: U64, free: NDArray[np.bool_]) -> list[I64]:
    ops = np.flatnonzero(free)
    ops = ops[np.argsort(colour[ops], kind="stable")]
    ends = np.flatnonzero(np.diff(colour[ops])) + 1
    classes = [part for part in np.split(ops, ends) if len(part) > 1]
    return sorted(classes, key=lambda part: (-len(part), int(part[0])))
