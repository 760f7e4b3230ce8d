"""Nodes that a cheapest shared program can do without, since another node of their class is never dearer.

Node n can go if there is a node m of the same class with

    the most that m can cost where all is there that n needs <= the least that taking n costs.

What n needs in any case (`Needs`) is there already. Taking n also costs what is used by n alone. Where m needs more,
the cheapest terms are added, shared with what is there as far as a few steps down show. Classes in a circle ask for
more care: what is added might need the class itself. There m counts as dearer unless it needs only what n needs, too.
"""

import math
from collections import Counter
from collections.abc import Sequence

from graphopt.rewrite.extraction.greedy_extraction import Alternatives
from graphopt.rewrite.extraction.needs import Needs, circles

COMPARED = 64  # nodes of a class that others are compared with
DEEP = 3  # steps down in which shared classes are looked for
STEPS = 200  # classes looked at in one comparison; what lies further costs its cheapest term
EQUAL = 1e-12  # relative: sums of the same costs in another order


class Dominance:
    """Of the nodes of one search. totals: what the cheapest term of each class costs."""

    def __init__(self, open_to: Alternatives, needs: Needs, cost: Sequence[float], totals: Sequence[float]) -> None:
        self.open_to, self.needs, self.cost, self.totals = open_to, needs, cost, totals
        self.circle = circles(open_to)
        self.size = Counter(self.circle[eclass] for eclass, nodes in enumerate(open_to.nodes) if nodes)
        self.own = _own(open_to)
        self.least: dict[int, float] = {}
        self.floor = [min((cost[node] for node in nodes), default=math.inf) for nodes in open_to.nodes]
        self.steps = 0  # left in the present comparison

    def undominated(self, eclass: int) -> list[int]:
        """Nodes of a class, without those that need the class itself or that another one dominates."""
        nodes, needs, children = self.open_to.nodes[eclass], self.needs, self.open_to.children
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
        return self.cost[node] + sum([self.totals[child] for child in self.open_to.children[node]])

    def _most(self, node: int, has: int, worth: float, alone: bool) -> float:
        """What a node costs at most where `has` is there; no matter how much if it is more than `worth`."""
        cost, place, self.steps = self.cost[node], self.needs.place, STEPS
        for child in self.open_to.children[node]:
            if cost > worth:
                break
            if not has >> place[child] & 1:
                cost += self._added(child, has, worth - cost, DEEP) if alone else math.inf
        return cost

    def _added(self, eclass: int, has: int, worth: float, deep: int) -> float:
        """What a class costs at most where `has` is there; infinite if it is more than `worth`."""
        place, children = self.needs.place, self.open_to.children
        if self.totals[eclass] <= worth or not deep or not self.steps:
            return self.totals[eclass]
        if self.floor[eclass] > worth:
            return math.inf
        self.steps -= 1
        best = math.inf
        for node in self.open_to.nodes[eclass]:
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
        """What a node and the classes that it alone uses cost at least."""
        stack = [node]
        while stack:
            node = stack[-1]
            own = self.own.get(node, ())
            missing = [below for eclass in own for below in self.open_to.nodes[eclass] if below not in self.least]
            if missing:
                stack += missing
                continue
            stack.pop()
            cheapest = [min(self.least[below] for below in self.open_to.nodes[eclass]) for eclass in own]
            self.least[node] = self.cost[node] + sum(cheapest)
        return self.least[node]


def _own(open_to: Alternatives) -> dict[int, list[int]]:
    """Of each node, the classes that it alone uses."""
    user: dict[int, int] = dict.fromkeys(open_to.roots, -1)
    for nodes in open_to.nodes:
        for node in nodes:
            for child in open_to.children[node]:
                user[child] = -1 if child in user else node
    own: dict[int, list[int]] = {}
    for eclass, node in user.items():
        if node >= 0:
            own.setdefault(node, []).append(eclass)
    return own
