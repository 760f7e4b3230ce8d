"""What stands below what: classes that a class needs whatever is chosen, and classes that stand in a circle."""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphopt.rewrite.egraphs.egraph import I64
from graphopt.rewrite.extraction.greedy_extraction import Alternatives


class Needs:
    """Of each class, the classes that every finite term of it contains, itself among them: the greatest sets such that

        needs(c) = {c} + what all nodes of c have in common, where a node has what any of its children needs.

    Sets are bits of long integers, by place in `order`, in which some node of a class comes after its children.
    """

    def __init__(self, open_to: Alternatives, order: Sequence[int]) -> None:
        self.open_to, self.order = open_to, order
        self.place = {eclass: place for place, eclass in enumerate(order)}
        self.of_class: dict[int, int] = {}  # a class that is not there yet could need anything
        users = _users(open_to)
        dirty = set(order)
        while dirty:
            for eclass in sorted(dirty, key=self.place.__getitem__):
                dirty.discard(eclass)
                needs = self._common(eclass)
                if needs != self.of_class.get(eclass):
                    self.of_class[eclass] = needs
                    dirty |= users[eclass]

    def _common(self, eclass: int) -> int:
        result = -1
        for node in self.open_to.nodes[eclass]:
            if all(child in self.of_class for child in self.open_to.children[node]):
                result &= self.of_node(node)
        return result | self.bit(eclass)

    def of_node(self, node: int) -> int:
        result = 0
        for child in self.open_to.children[node]:
            result |= self.of_class[child]
        return result

    def bit(self, eclass: int) -> int:
        return 1 << self.place[eclass]

    def classes(self, bits: int) -> list[int]:
        octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
        return [self.order[place] for place in np.unpackbits(octets, bitorder="little").nonzero()[0].tolist()]


def _users(open_to: Alternatives) -> list[set[int]]:
    users: list[set[int]] = [set() for _ in open_to.nodes]
    for eclass, choices in enumerate(open_to.nodes):
        for child in {child for node in choices for child in open_to.children[node]}:
            users[child].add(eclass)
    return users


def circles(open_to: Alternatives) -> list[int]:
    """Of each class, the number of its strongly connected component: classes of which each can stand below each."""
    pairs, size = edges(open_to), open_to.classes
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    return list(connected_components(matrix, directed=True, connection="strong")[1].tolist())


def edges(open_to: Alternatives) -> I64:
    """(class, child class) of every node and child, [E, 2]."""
    pairs = [(c, child) for c, nodes in enumerate(open_to.nodes) for n in nodes for child in open_to.children[n]]
    return np.array(pairs, np.int64).reshape(-1, 2)
