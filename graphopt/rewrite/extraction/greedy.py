"""Greedy extraction: classes settle one after another, the cheapest first, and keep the node they settled with.

Knuth's generalisation of Dijkstra's algorithm (A Generalization of Dijkstra's Algorithm, 1977). A node has a price as
soon as its children have settled, and the class with the cheapest priced node settles next. Both prices below are at
least those of the children, so no later node could have been cheaper. A class settles after the children of its node,
so that choices have no cycle.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Egraph:
    """Classes of equal nodes, of which an extraction chooses one each; a class without nodes cannot be had.

    Shape legend: C classes, N nodes.
    """

    nodes: list[list[int]]  # [C] of each class, the nodes to choose from
    children: list[Sequence[int]]  # [N] of each node, classes that it needs
    class_of: list[int]  # [N]
    roots: list[int]  # classes that every program has; distinct

    @property
    def classes(self) -> int:
        return len(self.nodes)


def needed(egraph: Egraph, choice: Mapping[int, int]) -> set[int]:
    """The classes that the roots need by a choice, node by class."""
    found, stack = set(egraph.roots), list(egraph.roots)
    while stack:
        new = set(egraph.children[choice[stack.pop()]]) - found
        found |= new
        stack += new
    return found


def price(egraph: Egraph, choice: Mapping[int, int], cost: Sequence[float]) -> float:
    """The total cost of the chosen nodes that the roots need."""
    return math.fsum(cost[choice[eclass]] for eclass in needed(egraph, choice))


class TreePrices:
    """The price of a node is the cost of its term written out: a child that is used twice is paid twice."""

    def __init__(self, egraph: Egraph, cost: Sequence[float]) -> None:
        self.children, self.cost = egraph.children, cost
        self.total = [np.inf] * egraph.classes  # of settled classes

    def price(self, node: int) -> float:
        return self.cost[node] + sum([self.total[child] for child in self.children[node]])

    def settled(self, eclass: int, node: int, value: float) -> None:
        self.total[eclass] = value


class SharedPrices:
    """The price of a node is the cost of all classes below it, as they have settled, each class paid once.

    The classes below a class are bits of a long integer; bit r is the r-th class that settled.
    """

    def __init__(self, egraph: Egraph, cost: Sequence[float]) -> None:
        self.children, self.cost = egraph.children, cost
        self.total, self.below = [np.inf] * egraph.classes, [0] * egraph.classes
        self.paid: NDArray[np.float64] = np.zeros((egraph.classes // 8 + 1, 8))  # by rank, eight to a byte of bits
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
        """The cost of the classes of these bits; only bytes that are not zero are looked at, few as a rule."""
        octets = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), np.uint8)
        used = octets.nonzero()[0]
        flags = np.unpackbits(octets[used], bitorder="little")
        return float(flags @ self.paid[used].ravel())

    def settled(self, eclass: int, node: int, value: float) -> None:
        self.below[eclass] = self._together(node) | 1 << self.ranks
        self.total[eclass] = value
        self.paid[divmod(self.ranks, 8)] = self.cost[node]
        self.ranks += 1


def settle(egraph: Egraph, prices: TreePrices | SharedPrices) -> dict[int, int]:
    """Node by class, in the order of settling; without classes of which every node runs into a cycle."""
    chosen: dict[int, int] = {}
    missing = [0] * len(egraph.children)  # of each node, how many classes it waits for
    users: list[list[int]] = [[] for _ in egraph.nodes]  # of each class, the nodes that wait for it
    for nodes in egraph.nodes:
        for node in nodes:
            children = set(egraph.children[node])
            missing[node] = len(children)
            for eclass in children:
                users[eclass].append(node)
    heap = [(prices.price(node), node) for nodes in egraph.nodes for node in nodes if not missing[node]]
    heapq.heapify(heap)
    while heap:
        value, node = heapq.heappop(heap)
        eclass = egraph.class_of[node]
        if eclass in chosen:
            continue
        chosen[eclass] = node
        prices.settled(eclass, node, value)
        for user in users[eclass]:
            missing[user] -= 1
            if not missing[user] and egraph.class_of[user] not in chosen:
                heapq.heappush(heap, (prices.price(user), user))
    return chosen


def cheapest_terms(egraph: Egraph, cost: Sequence[float]) -> tuple[dict[int, int], list[float]]:
    """(node of each class, its cost as a term) of least tree cost; infinite where there is no finite term."""
    prices = TreePrices(egraph, cost)
    return settle(egraph, prices), prices.total


def cheapest_shared(egraph: Egraph, cost: Sequence[float]) -> dict[int, int]:
    """Node of each class, by the cost of the classes below it, shared ones paid once."""
    return settle(egraph, SharedPrices(egraph, cost))
