"""Makes the search for a cheapest shared program smaller, without losing every optimum.

Nodes go that no finite term can use, or that others of their class dominate (`Dominance`). Classes go that can be had
for nothing, or whose only node costs nothing: their users need its children. Classes that every program needs become
roots. Each removal can make others possible, so all are tried until little changes.
"""

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphopt.rewrite.extraction.greedy import Egraph, cheapest_terms

COMPARED = 64  # nodes of a class that others are compared with
DEEP = 3  # steps down in which shared classes are looked for
STEPS = 200  # classes looked at in one comparison; further ones cost their cheapest terms
EQUAL = 1e-12  # relative: sums of the same costs in another order
SHRUNK = 0.99  # the rest is reduced again while it shrinks to less than this share


class Needs:
    """Of each class, the classes that every finite term of it contains, itself among them: the greatest sets such that

        needs(c) = {c} + the common needs of all nodes of c, where a node has the needs of its children.

    Sets are bits of long integers, by place in `order`, in which some node of a class comes after its children.
    """

    def __init__(self, egraph: Egraph, order: Sequence[int]) -> None:
        self.egraph, self.order = egraph, order
        self.place = {eclass: place for place, eclass in enumerate(order)}
        self.of_class: dict[int, int] = {}  # a class that is not there yet could need anything
        users = _users(egraph)
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
        for node in self.egraph.nodes[eclass]:
            if all(child in self.of_class for child in self.egraph.children[node]):
                result &= self.of_node(node)
        return result | self.bit(eclass)

    def of_node(self, node: int) -> int:
        result = 0
        for child in self.egraph.children[node]:
            result |= self.of_class[child]
        return result

    def bit(self, eclass: int) -> int:
        return 1 << self.place[eclass]

    def classes(self, bits: int) -> list[int]:
        octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
        return [self.order[place] for place in np.unpackbits(octets, bitorder="little").nonzero()[0].tolist()]


def _users(egraph: Egraph) -> list[set[int]]:
    users: list[set[int]] = [set() for _ in egraph.nodes]
    for eclass, choices in enumerate(egraph.nodes):
        for child in {child for node in choices for child in egraph.children[node]}:
            users[child].add(eclass)
    return users


def circles(egraph: Egraph) -> list[int]:
    """Of each class, the number of its strongly connected component: classes of which each can stand below each."""
    pairs, size = edges(egraph), egraph.classes
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
    return list(connected_components(matrix, directed=True, connection="strong")[1].tolist())


def edges(egraph: Egraph) -> NDArray[np.int64]:
    """(class, child class) of every node and child, [E, 2]."""
    pairs = [(c, child) for c, nodes in enumerate(egraph.nodes) for n in nodes for child in egraph.children[n]]
    return np.array(pairs, np.int64).reshape(-1, 2)


class Dominance:
    """Nodes that a cheapest shared program can do without, since another node of their class is never dearer.

    Node n can go if there is a node m of the same class with

        the most that m can cost where all is there that n needs <= the least that taking n costs.

    The needs of n (`Needs`) are there already. Taking n also costs the classes that n alone uses. Where m needs more,
    the cheapest terms are added, shared with classes that are there as far as a few steps down show. Classes in a
    circle ask for more care: added classes might need the class itself. There m counts as dearer unless n needs all
    that it needs.

    totals: the cost of the cheapest term of each class.
    """

    def __init__(self, egraph: Egraph, needs: Needs, cost: Sequence[float], totals: Sequence[float]) -> None:
        self.egraph, self.needs, self.cost, self.totals = egraph, needs, cost, totals
        self.circle = circles(egraph)
        self.size = Counter(self.circle[eclass] for eclass, nodes in enumerate(egraph.nodes) if nodes)
        self.own = _own(egraph)
        self.least: dict[int, float] = {}
        self.floor = [min((cost[node] for node in nodes), default=math.inf) for nodes in egraph.nodes]
        self.steps = 0  # left in the present comparison

    def undominated(self, eclass: int) -> list[int]:
        """Nodes of a class, without those that need the class itself or that another one dominates."""
        nodes, needs, children = self.egraph.nodes[eclass], self.needs, self.egraph.children
        alone = self.size[self.circle[eclass]] == 1
        if len(nodes) < 2 and alone:
            return nodes
        kept: list[int] = []
        for node in sorted(nodes, key=lambda n: (self._term(n), len(children[n]))):
            has = needs.of_node(node)
            worth = self._least(node) * (1 + EQUAL) if alone else self.cost[node]
            if not has >> needs.place[eclass] & 1 and not any(
                self._most(other, has, worth, alone) <= worth for other in kept[:COMPARED]
            ):
                kept.append(node)
        return sorted(kept)

    def _term(self, node: int) -> float:
        return self.cost[node] + sum([self.totals[child] for child in self.egraph.children[node]])

    def _most(self, node: int, has: int, worth: float, alone: bool) -> float:
        """An upper bound on the cost of a node where `has` is there; any number above `worth` if it is more."""
        cost, place, self.steps = self.cost[node], self.needs.place, STEPS
        for child in self.egraph.children[node]:
            if cost > worth:
                break
            if not has >> place[child] & 1:
                cost += self._added(child, has, worth - cost, DEEP) if alone else math.inf
        return cost

    def _added(self, eclass: int, has: int, worth: float, deep: int) -> float:
        """An upper bound on the cost of a class where `has` is there; infinite if it is more than `worth`."""
        place, children = self.needs.place, self.egraph.children
        if self.totals[eclass] <= worth or not deep or not self.steps:
            return self.totals[eclass]
        if self.floor[eclass] > worth:
            return math.inf
        self.steps -= 1
        best = math.inf
        for node in self.egraph.nodes[eclass]:
            cost = self.cost[node]
            for child in children[node]:
                if cost > worth:
                    break
                if not has >> place[child] & 1:
                    cost += self._added(child, has, worth - cost, deep - 1)
            if cost <= worth:
                best = worth = cost
        return best

    def _least(self, node: int) -> float:
        """A lower bound on the cost of a node and the classes that it alone uses."""
        stack = [node]
        while stack:
            node = stack[-1]
            own = self.own.get(node, ())
            missing = [below for eclass in own for below in self.egraph.nodes[eclass] if below not in self.least]
            if missing:
                stack += missing
                continue
            stack.pop()
            cheapest = [min(self.least[below] for below in self.egraph.nodes[eclass]) for eclass in own]
            self.least[node] = self.cost[node] + sum(cheapest)
        return self.least[node]


def _own(egraph: Egraph) -> dict[int, list[int]]:
    """Of each node, the classes that it alone uses."""
    user: dict[int, int] = dict.fromkeys(egraph.roots, -1)
    for nodes in egraph.nodes:
        for node in nodes:
            for child in egraph.children[node]:
                user[child] = -1 if child in user else node
    own: dict[int, list[int]] = {}
    for eclass, node in user.items():
        if node >= 0:
            own.setdefault(node, []).append(eclass)
    return own


@dataclass(frozen=True, eq=False)
class Reduced:
    """The remaining choices, and those settled on the way. With no program left, `egraph` is None."""

    egraph: Egraph | None
    settled: dict[int, int] = field(default_factory=dict)  # class -> node, for classes that went


def reduce(egraph: Egraph, cost: Sequence[float]) -> Reduced:
    """The smaller search. Its roots include those of `egraph`, except free ones."""
    settled: dict[int, int] = {}
    before = math.inf
    while (size := _size(egraph)) < SHRUNK * before:
        before = size
        chosen, totals = cheapest_terms(egraph, cost)
        if any(root not in chosen for root in egraph.roots):
            return Reduced(None)
        settled |= {c: node for c, node in chosen.items() if totals[c] == 0}
        egraph = _reachable(_finite(egraph, chosen, totals))
        egraph, only = _inlined(egraph, cost)
        settled |= only
        needs = Needs(egraph, [c for c in chosen if egraph.nodes[c]])
        egraph = _without_needless(egraph, needs, Dominance(egraph, needs, cost, totals))
    return Reduced(egraph, settled)


def _size(egraph: Egraph) -> int:
    return sum(1 + len(egraph.children[node]) for nodes in egraph.nodes for node in nodes)


def _finite(egraph: Egraph, chosen: Container[int], totals: Sequence[float]) -> Egraph:
    """Without classes that cost nothing, and nodes that need their own class or one without a finite term."""
    children = list(egraph.children)
    nodes: list[list[int]] = []
    for eclass, choices in enumerate(egraph.nodes):
        usable = [n for n in choices if all(c != eclass and c in chosen for c in children[n])]
        nodes.append(usable if totals[eclass] > 0 else [])
        for node in nodes[-1]:
            children[node] = tuple(dict.fromkeys(c for c in children[node] if totals[c] > 0))
    roots = [root for root in egraph.roots if totals[root] > 0]
    return Egraph(nodes, children, egraph.class_of, roots)


def _reachable(egraph: Egraph) -> Egraph:
    found, stack = set(egraph.roots), list(egraph.roots)
    while stack:
        for node in egraph.nodes[stack.pop()]:
            new = set(egraph.children[node]) - found
            found |= new
            stack += new
    nodes = [choices if eclass in found else [] for eclass, choices in enumerate(egraph.nodes)]
    return Egraph(nodes, egraph.children, egraph.class_of, egraph.roots)


def _inlined(egraph: Egraph, cost: Sequence[float]) -> tuple[Egraph, dict[int, int]]:
    """Without classes of which the only node is free: their users need its children. And those nodes, by class."""
    roots = set(egraph.roots)
    only = {c: nodes[0] for c, nodes in enumerate(egraph.nodes)
            if len(nodes) == 1 and cost[nodes[0]] == 0 and c not in roots}  # fmt: skip
    children = list(egraph.children)
    if not only:
        return egraph, only
    for nodes in egraph.nodes:
        for node in nodes:
            if not only.keys().isdisjoint(children[node]):
                children[node] = _seen_through(children[node], only, egraph)
    left = [[] if eclass in only else choices for eclass, choices in enumerate(egraph.nodes)]
    return Egraph(left, children, egraph.class_of, egraph.roots), only


def _seen_through(classes: Sequence[int], only: Mapping[int, int], egraph: Egraph) -> tuple[int, ...]:
    """These classes, those of one node replaced by its children."""
    found: dict[int, None] = {}
    stack, seen = list(classes), set[int]()
    while stack:
        eclass = stack.pop()
        if eclass not in only:
            found[eclass] = None
        elif eclass not in seen:
            seen.add(eclass)
            stack += egraph.children[only[eclass]]
    return tuple(found)


def _without_needless(egraph: Egraph, needs: Needs, dominance: Dominance) -> Egraph:
    """Without nodes that need their own class or that others dominate, and children that are there anyway: roots."""
    everywhere = 0
    for root in egraph.roots:
        everywhere |= needs.of_class[root]
    roots = needs.classes(everywhere)
    circle = dominance.circle
    always, children = set(roots), list(egraph.children)
    nodes = [dominance.undominated(eclass) for eclass in range(egraph.classes)]
    for eclass, choices in enumerate(nodes):
        for node in choices:
            children[node] = [c for c in children[node] if not (c in always and circle[c] != circle[eclass])]
    return Egraph(nodes, children, egraph.class_of, roots)
