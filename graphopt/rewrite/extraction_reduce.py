"""Makes the search for a cheapest shared program smaller, without losing every optimum.

Nodes go that no finite term can use, or beside which a node of the same class is as cheap and needs no more. Classes go
that can be had for nothing. Children go that another child needs anyway. Classes that every program needs become roots.
Each removal can make others possible, so all are tried until nothing changes.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphopt.rewrite.egraph import I64
from graphopt.rewrite.extraction_greedy import Alternatives, cheapest_terms

COMPARED = 64  # cheapest nodes of a class that others are compared with


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left to choose, and what was settled on the way. With no program left, `open_to` is None."""

    open_to: Alternatives | None
    settled: dict[int, int] = field(default_factory=dict)  # class -> node, for classes that cost nothing


def reduce(open_to: Alternatives, cost: Sequence[float]) -> Reduced:
    """The smaller search. Its roots include those of `open_to`, except what costs nothing."""
    settled: dict[int, int] = {}
    size = -1
    while size != (size := _size(open_to)):
        chosen, totals = cheapest_terms(open_to, cost)
        if any(root not in chosen for root in open_to.roots):
            return Reduced(None)
        settled |= {c: node for c, node in chosen.items() if totals[c] == 0}
        open_to = _reachable(_finite(open_to, chosen, totals))
        order = [c for c in chosen if open_to.nodes[c]]
        open_to = _without_needless(open_to, Needs(open_to, order), cost)
    return Reduced(open_to, settled)


def least(open_to: Alternatives, cost: Sequence[float]) -> float:
    """A lower bound: every root needs a node."""
    return float(sum(min(cost[node] for node in open_to.nodes[root]) for root in open_to.roots))


def _size(open_to: Alternatives) -> int:
    return sum(1 + len(open_to.children[node]) for nodes in open_to.nodes for node in nodes)


def _finite(open_to: Alternatives, chosen: Container[int], totals: Sequence[float]) -> Alternatives:
    """Without classes that cost nothing, and nodes that need their own class or one without a finite term."""
    children = list(open_to.children)
    nodes: list[list[int]] = []
    for eclass, choices in enumerate(open_to.nodes):
        usable = [n for n in choices if all(c != eclass and c in chosen for c in children[n])]
        nodes.append(usable if totals[eclass] > 0 else [])
        for node in nodes[-1]:
            children[node] = tuple(dict.fromkeys(c for c in children[node] if totals[c] > 0))
    roots = [root for root in open_to.roots if totals[root] > 0]
    return Alternatives(nodes, children, open_to.class_of, roots)


def _reachable(open_to: Alternatives) -> Alternatives:
    found, stack = set(open_to.roots), list(open_to.roots)
    while stack:
        for node in open_to.nodes[stack.pop()]:
            new = set(open_to.children[node]) - found
            found |= new
            stack += new
    nodes = [choices if eclass in found else [] for eclass, choices in enumerate(open_to.nodes)]
    return Alternatives(nodes, open_to.children, open_to.class_of, open_to.roots)


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


def _without_needless(open_to: Alternatives, needs: Needs, cost: Sequence[float]) -> Alternatives:
    """Without nodes that need their own class or that others dominate, and children that are there anyway."""
    everywhere = 0
    for root in open_to.roots:
        everywhere |= needs.of_class[root]
    roots = needs.classes(everywhere)
    circle = circles(open_to)
    always, children = set(roots), list(open_to.children)
    nodes = [_undominated(choices, open_to, needs, cost) for choices in open_to.nodes]
    for eclass, choices in enumerate(nodes):
        for node in choices:
            apart = [c for c in children[node] if not (c in always and circle[c] != circle[eclass])]
            children[node] = _not_implied(apart, needs)
    return Alternatives(nodes, children, open_to.class_of, roots)


def _undominated(choices: Sequence[int], open_to: Alternatives, needs: Needs, cost: Sequence[float]) -> list[int]:
    """Nodes of a class, without those beside which another is as cheap and needs only what they need as well."""
    kept: dict[int, list[int]] = {}  # node -> places of its children
    width = len(needs.order) // 8 + 1
    for node in sorted(choices, key=lambda n: (cost[n], len(open_to.children[n]))):
        has = needs.of_node(node).to_bytes(width, "little")
        wanted = [[needs.place[open_to.class_of[node]]], *islice(kept.values(), COMPARED)]
        if not any(_holds(has, places) for places in wanted):
            kept[node] = [needs.place[child] for child in open_to.children[node]]
    return sorted(kept)


def _holds(octets: bytes, places: Sequence[int]) -> bool:
    return all(octets[place >> 3] >> (place & 7) & 1 for place in places)


def _not_implied(children: Sequence[int], needs: Needs) -> tuple[int, ...]:
    if len(children) < 2:
        return tuple(children)
    kept = []
    for child in children:
        place = needs.place[child]
        if not any(needs.of_class[other] >> place & 1 for other in children if other != child):
            kept.append(child)
    return tuple(kept)


def circles(open_to: Alternatives) -> list[int]:
    """Of each class, the number of its strongly connected component: classes of which each can stand below each."""
    pairs, size = edges(open_to), open_to.classes
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    return list(connected_components(matrix, directed=True, connection="strong")[1].tolist())


def edges(open_to: Alternatives) -> I64:
    """(class, child class) of every node and child, [E, 2]."""
    pairs = [(c, child) for c, nodes in enumerate(open_to.nodes) for n in nodes for child in open_to.children[n]]
    return np.array(pairs, np.int64).reshape(-1, 2)
