"""Greedy extraction: classes settle one after another, the cheapest first, and keep the node they settled with.

Knuth's generalisation of Dijkstra's algorithm (A Generalization of Dijkstra's Algorithm, 1977): a node has a price as
soon as its children have settled, and the class with the cheapest priced node settles next. Both prices below are at
least those of the children, so no later node could have been cheaper. A class settles after the children of its node,
so that choices have no cycle.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from graphopt.rewrite.egraphs.egraph import F64, Egraph


@dataclass(frozen=True, eq=False)
class Alternatives:
    """What may be chosen, as lists, with the numbering of an e-graph; some of its nodes may be missing."""

    nodes: list[list[int]]  # [C] of each class, the nodes to choose from
    children: list[Sequence[int]]  # [N] of each node, classes that it needs
    class_of: list[int]  # [N]
    roots: list[int]  # classes that must be had

    @property
    def classes(self) -> int:
        return len(self.nodes)


def alternatives(egraph: Egraph) -> Alternatives:
    """All nodes of finite cost."""
    child, ptr, finite = egraph.child.tolist(), egraph.child_ptr.tolist(), np.isfinite(egraph.cost).tolist()
    nodes: list[list[int]] = [[] for _ in range(egraph.classes)]
    for node, eclass in enumerate(egraph.class_of.tolist()):
        if finite[node]:
            nodes[eclass].append(node)
    children = [child[low:high] for low, high in pairwise(ptr)]
    return Alternatives(nodes, children, egraph.class_of.tolist(), egraph.roots.tolist())


def settle(
    open_to: Alternatives, price: Callable[[int], float], settled: Callable[[int, int, float], None]
) -> dict[int, int]:
    """class -> node, in the order of settling; without classes of which every node runs into a cycle.

    price: of a node whose children have settled. settled: told of (class, node, price) in the order of settling.
    """
    chosen: dict[int, int] = {}
    missing, users = waiting(open_to)
    heap = [(price(node), node) for nodes in open_to.nodes for node in nodes if not missing[node]]
    heapq.heapify(heap)
    while heap:
        value, node = heapq.heappop(heap)
        eclass = open_to.class_of[node]
        if eclass in chosen:
            continue
        chosen[eclass] = node
        settled(eclass, node, value)
        for user in users[eclass]:
            missing[user] -= 1
            if not missing[user] and open_to.class_of[user] not in chosen:
                heapq.heappush(heap, (price(user), user))
    return chosen


def waiting(open_to: Alternatives) -> tuple[list[int], list[list[int]]]:
    """(of each node, how many classes it waits for; of each class, the nodes that wait for it)."""
    missing = [0] * len(open_to.children)
    users: list[list[int]] = [[] for _ in open_to.nodes]
    for nodes in open_to.nodes:
        for node in nodes:
            needed = set(open_to.children[node])
            missing[node] = len(needed)
            for eclass in needed:
                users[eclass].append(node)
    return missing, users


class TreePrices:
    """The price of a node is the cost of its term written out: a child that is used twice is paid twice."""

    def __init__(self, open_to: Alternatives, cost: Sequence[float]) -> None:
        self.children, self.cost = open_to.children, cost
        self.total = [np.inf] * open_to.classes  # of settled classes

    def price(self, node: int) -> float:
        return self.cost[node] + sum([self.total[child] for child in self.children[node]])

    def settled(self, eclass: int, node: int, value: float) -> None:
        self.total[eclass] = value


class SharedPrices:
    """The price of a node is the cost of all that stands below it, as it has settled, each class paid once.

    What stands below a class is a set of bits in a long integer; bit r is the r-th class that settled.
    """

    def __init__(self, open_to: Alternatives, cost: Sequence[float]) -> None:
        self.children, self.cost = open_to.children, cost
        self.total, self.below = [np.inf] * open_to.classes, [0] * open_to.classes
        self.paid: F64 = np.zeros((open_to.classes // 8 + 1, 8))  # by rank, eight to a byte of bits
        self.ranks = 0

    def price(self, node: int) -> float:
        needed = self.children[node]
        if not needed:
            return self.cost[node]
        dearest = max(needed, key=self.total.__getitem__)
        others = self._together(node) & ~self.below[dearest]
        return self.cost[node] + self.total[dearest] + (self._sum(others) if others else 0.0)

    def _together(self, node: int) -> int:
        result = 0
        for child in self.children[node]:
            result |= self.below[child]
        return result

    def _sum(self, bits: int) -> float:
        """What the classes of these bits cost; only bytes that are not zero are looked at, few as a rule."""
        octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
        used = octets.nonzero()[0]
        flags = np.unpackbits(octets[used], bitorder="little")
        return float(flags @ self.paid[used].ravel())

    def settled(self, eclass: int, node: int, value: float) -> None:
        self.below[eclass] = self._together(node) | 1 << self.ranks
        self.total[eclass] = value
        self.paid[divmod(self.ranks, 8)] = self.cost[node]
        self.ranks += 1


def cheapest_terms(open_to: Alternatives, cost: Sequence[float]) -> tuple[dict[int, int], list[float]]:
    """(node of each class, its cost as a term) of least tree cost; infinite where there is no finite term."""
    prices = TreePrices(open_to, cost)
    return settle(open_to, prices.price, prices.settled), prices.total


def cheapest_shared(open_to: Alternatives, cost: Sequence[float]) -> dict[int, int]:
    """Node of each class, by the cost of what stands below it, shared parts paid once."""
    prices = SharedPrices(open_to, cost)
    return settle(open_to, prices.price, prices.settled)
