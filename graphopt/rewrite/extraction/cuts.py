"""Landmarks: sets of nodes of which every finite term of a class has at least one.

They are what a choice with a cycle violates: none of a landmark is chosen, so the class cannot be built. A fractional
answer of the linear program can violate them as well, by less. The idea is that of disjunctive action landmarks for
delete-free planning, the same problem under another name (Bonet and Helmert, Strengthening Landmark Heuristics via
Hitting Sets, 2010; Haslum, Slaney and Thiebaux, Minimal Landmarks for Optimal Delete-Free Planning, 2012).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from graphopt.rewrite.extraction.greedy_extraction import Alternatives, settle
from graphopt.rewrite.extraction.growth import Growth, Landmark

UNITS = 10_000_000  # of flow, which is counted in integers
NONE = 1e-6  # values up to it are 0
SHORT = 0.03  # share of what a class needs that must be missing for a landmark to be worth a row
FLOWS, CUTS, OVERLAP = 400, 80, 3  # at most so many in a round; a class is in the cuts of so many others


class FlowNetwork:
    """The flow from needed classes to leaves that an answer of the solver allows.

    Each node passes on its value to one of its children, that which is worst supported: whatever a class is built from,
    it crosses every cut of this network.
    """

    def __init__(self, open_to: Alternatives, value: Mapping[int, float]) -> None:
        self.open_to = open_to
        self.need = [sum(value.get(node, 0.0) for node in nodes) for nodes in open_to.nodes]
        for root in open_to.roots:
            self.need[root] = 1.0
        self.needed = [c for c, nodes in enumerate(open_to.nodes) if nodes and self.need[c] > NONE]
        self.place = {eclass: place for place, eclass in enumerate(self.needed)}
        self.sink = len(self.needed)
        self.capacity = self._capacity(value, widest(open_to, value))

    def _capacity(self, value: Mapping[int, float], width: Sequence[float]) -> csr_array:
        arcs: dict[tuple[int, int], float] = {}
        for place, eclass in enumerate(self.needed):
            for node in self.open_to.nodes[eclass]:
                children = self.open_to.children[node]
                worst = min(children, key=lambda child: (width[child], self.need[child]), default=None)
                target = self.sink if worst is None else self.place.get(worst)
                if value[node] > NONE and target is not None:
                    arcs[place, target] = arcs.get((place, target), 0.0) + value[node]
        ends = np.array(list(arcs), np.int32).reshape(-1, 2)
        flow = np.array([int(v * UNITS) for v in arcs.values()], np.int32)
        return csr_array((flow, (ends[:, 0], ends[:, 1])), shape=(self.sink + 1, self.sink + 1))

    def closed(self, eclass: int) -> set[int] | None:
        """Classes around one that pass on less than it needs; None if it has what it needs."""
        start = self.place[eclass]
        flow = maximum_flow(self.capacity, start, self.sink)
        if flow.flow_value / UNITS >= self.need[eclass] * (1 - SHORT):
            return None
        left = csr_array(self.capacity - flow.flow)
        left.data[left.data < 0] = 0
        left.eliminate_zeros()
        inside = breadth_first_order(left, start, return_predecessors=False)
        return {self.needed[place] for place in inside.tolist()}


def widest(open_to: Alternatives, value: Mapping[int, float]) -> list[float]:
    """Of each class, the best term's smallest value of a node; 0 where no term is made of chosen nodes."""
    width = [0.0] * open_to.classes

    def price(node: int) -> float:
        return -min([value.get(node, 0.0), *(width[child] for child in open_to.children[node])])

    def settled(eclass: int, node: int, price: float) -> None:
        width[eclass] = -price

    settle(open_to, price, settled)
    return width


def violated(
    open_to: Alternatives, growth: Growth, value: Mapping[int, float], late: Callable[[], bool]
) -> list[Landmark]:
    """Landmarks that an answer of the solver violates, those of the most needed classes first.

    If the chosen nodes of an integral answer cannot build a root, there is at least one.
    """
    network = FlowNetwork(open_to, value)
    found: dict[Landmark, None] = {}
    covered = [0] * open_to.classes
    flows = 0
    for eclass in sorted(network.needed, key=lambda c: -network.need[c]):
        if flows >= FLOWS or len(found) >= CUTS or (found and late()):
            break
        if covered[eclass] >= OVERLAP:
            continue
        flows += 1
        inside = network.closed(eclass)
        if inside is None:
            continue
        for other in inside:
            covered[other] += 1
        nodes = {n for c in inside for n in open_to.nodes[c] if inside.isdisjoint(open_to.children[n])}
        if (landmark := growth.minimal(eclass, nodes, value)) is not None:
            found[landmark] = None
    return list(found)
