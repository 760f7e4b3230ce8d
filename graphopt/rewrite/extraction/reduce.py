"""Makes the search for a cheapest shared program smaller, without losing every optimum.

Nodes go that no finite term can use, or that others of their class dominate (extraction_dominance.py). Classes go that
can be had for nothing, or whose only node costs nothing: what needs them needs its children. Children go that another
child needs anyway. Classes that every program needs become roots. Each removal can make others possible, so all are
tried until little changes.
"""

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.rewrite.extraction.dominance import Dominance
from graphopt.rewrite.extraction.greedy_extraction import Alternatives, cheapest_terms
from graphopt.rewrite.extraction.needs import Needs

SHRUNK = 0.99  # share of its size with which what is left is reduced again


@dataclass(frozen=True, eq=False)
class Reduced:
    """What is left to choose, and what was settled on the way. With no program left, `open_to` is None."""

    open_to: Alternatives | None
    settled: dict[int, int] = field(default_factory=dict)  # class -> node, for classes that went


def reduce(open_to: Alternatives, cost: Sequence[float]) -> Reduced:
    """The smaller search. Its roots include those of `open_to`, except what costs nothing."""
    settled: dict[int, int] = {}
    before = math.inf
    while (size := _size(open_to)) < SHRUNK * before:
        before = size
        chosen, totals = cheapest_terms(open_to, cost)
        if any(root not in chosen for root in open_to.roots):
            return Reduced(None)
        settled |= {c: node for c, node in chosen.items() if totals[c] == 0}
        open_to = _reachable(_finite(open_to, chosen, totals))
        open_to, only = _inlined(open_to, cost)
        settled |= only
        needs = Needs(open_to, [c for c in chosen if open_to.nodes[c]])
        open_to = _without_needless(open_to, needs, Dominance(open_to, needs, cost, totals))
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


def _inlined(open_to: Alternatives, cost: Sequence[float]) -> tuple[Alternatives, dict[int, int]]:
    """Without classes of which the only node is free: their users need its children. And those nodes, by class."""
    roots = set(open_to.roots)
    only = {c: nodes[0] for c, nodes in enumerate(open_to.nodes)
            if len(nodes) == 1 and cost[nodes[0]] == 0 and c not in roots}  # fmt: skip
    children = list(open_to.children)
    if not only:
        return open_to, only
    for nodes in open_to.nodes:
        for node in nodes:
            if not only.keys().isdisjoint(children[node]):
                children[node] = _seen_through(children[node], only, open_to)
    left = [[] if eclass in only else choices for eclass, choices in enumerate(open_to.nodes)]
    return Alternatives(left, children, open_to.class_of, open_to.roots), only


def _seen_through(classes: Sequence[int], only: Mapping[int, int], open_to: Alternatives) -> tuple[int, ...]:
    """These classes, those of one node replaced by its children."""
    found: dict[int, None] = {}
    stack, seen = list(classes), set[int]()
    while stack:
        eclass = stack.pop()
        if eclass not in only:
            found[eclass] = None
        elif eclass not in seen:
            seen.add(eclass)
            stack += open_to.children[only[eclass]]
    return tuple(found)


def _without_needless(open_to: Alternatives, needs: Needs, dominance: Dominance) -> Alternatives:
    """Without nodes that need their own class or that others dominate, and children that are there anyway."""
    everywhere = 0
    for root in open_to.roots:
        everywhere |= needs.of_class[root]
    roots = needs.classes(everywhere)
    circle = dominance.circle
    always, children = set(roots), list(open_to.children)
    nodes = [dominance.undominated(eclass) for eclass in range(open_to.classes)]
    for eclass, choices in enumerate(nodes):
        for node in choices:
            apart = [c for c in children[node] if not (c in always and circle[c] != circle[eclass])]
            children[node] = _not_implied(apart, needs)
    return Alternatives(nodes, children, open_to.class_of, roots)


def _not_implied(children: Sequence[int], needs: Needs) -> tuple[int, ...]:
    if len(children) < 2:
        return tuple(children)
    kept = []
    for child in children:
        place = needs.place[child]
        if not any(needs.of_class[other] >> place & 1 for other in children if other != child):
            kept.append(child)
    return tuple(kept)
