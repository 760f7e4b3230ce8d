"""Makes landmarks minimal (cuts.py), compiled: most of what cutting takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphopt.rewrite.egraphs.egraph import F64, I64
from graphopt.rewrite.extraction.greedy_extraction import Alternatives, waiting
from graphopt.utils.compiled import njit

Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Landmark:
    """When the class is needed, one of the nodes is."""

    eclass: int
    nodes: frozenset[int]


class Growth:
    """Makes landmarks minimal: as many nodes as possible leave them, while the class cannot be built without them."""

    def __init__(self, open_to: Alternatives, cost: Sequence[float]) -> None:
        missing, users = waiting(open_to)
        self.cost: F64 = np.array(cost, np.float64)
        self.missing: I64 = np.array(missing, np.int64)
        self.class_of: I64 = np.array(open_to.class_of, np.int64)
        self.start: I64 = np.cumsum([0, *map(len, users)])
        self.user: I64 = np.array([node for nodes in users for node in nodes], np.int64)
        there = [node for nodes in open_to.nodes for node in nodes if not open_to.children[node]]
        self.leaves: I64 = np.array(there, np.int64)

    def minimal(self, eclass: int, nodes: set[int], value: Mapping[int, float]) -> Landmark | None:
        """Nodes of high value leave first, then cheap ones. None if the class can be built without `nodes`."""
        order: I64 = np.array(sorted(nodes, key=lambda n: (-value.get(n, 0.0), self.cost[n], n)), np.int64)
        left: Flags = np.zeros(len(self.missing), np.bool_)
        left[order] = True
        if not _minimal(eclass, order, left, self.leaves, self.missing.copy(), self.class_of, self.start, self.user):
            return None
        return Landmark(eclass, frozenset(order[left[order]].tolist()))


@njit(cache=True, nogil=True)
def _minimal(goal: int, order: I64, left: Flags, leaves: I64, missing: I64, class_of: I64, start: I64,
             user: I64) -> bool:  # fmt: skip
    """Takes nodes out of `left`; False if the class can be built without all of them.

    missing: of each node, how many of its classes are not built; counted down as classes are.
    """
    built = np.zeros(len(start) - 1, np.bool_)
    new = np.empty(len(start) - 1, np.int64)
    stack = np.empty(len(class_of) + len(leaves) + 1, np.int64)
    size = 0
    for node in leaves:
        if not left[node]:
            stack[size] = node
            size += 1
    if not _build(goal, size, left, built, new, stack, missing, class_of, start, user):
        return False
    for node in order:
        left[node] = False
        if missing[node] == 0 and not built[class_of[node]]:
            stack[0] = node
            if not _build(goal, 1, left, built, new, stack, missing, class_of, start, user):
                left[node] = True
    return True


@njit(cache=True, nogil=True)
def _build(goal: int, size: int, without: Flags, built: Flags, new: I64, stack: I64, missing: I64, class_of: I64,
           start: I64, user: I64) -> bool:  # fmt: skip
    """Builds what can be built by and by, beginning with the nodes on the stack; nothing if the class is among it."""
    count = 0
    while size:
        size -= 1
        made = class_of[stack[size]]
        if built[made]:
            continue
        if made == goal:
            for number in range(count):
                built[new[number]] = False
                for place in range(start[new[number]], start[new[number] + 1]):
                    missing[user[place]] += 1
            return False
        built[made] = True
        new[count] = made
        count += 1
        for place in range(start[made], start[made + 1]):
            node = user[place]
            missing[node] -= 1
            if missing[node] == 0 and not without[node] and not built[class_of[node]]:
                stack[size] = node
                size += 1
    return True
