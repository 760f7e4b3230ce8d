"""Extraction: a program out of an e-graph, by the cost of its tree or of its DAG.

A choice gives every needed class one of its nodes, without cycles. Needed are the roots and the children of chosen
nodes. Its cost can mean two things:

- **tree cost**: the program written out as terms, one for each root. A class that is used twice is paid twice.
- **DAG cost**: the program as a graph, in which each needed class is computed once and paid once, however many use it.

The least tree cost is found in no time, by Knuth's algorithm. The least DAG cost is NP-hard to find: the search is made
smaller (reduction.py), narrow parts are solved by elimination, and the rest is an integer program.

The integer program is solved by HiGHS, which comes with scipy. Variables: x of each node, whether it is chosen; y of
each class that is no root, whether it is needed.

    minimise sum cost x                            (Tensat, section on ILP extraction, with classes written out)
    sum of x over a class = y, or 1 of a root
    sum of x over the nodes of a class that have child c <= y of c
    sum of x over a landmark of class c >= y of c, or 1 of a root

A landmark is a set of nodes of which one is chosen wherever its class is needed (Bonet and Helmert, Strengthening
Landmark Heuristics via Hitting Sets, 2010). The users of a class are one. An answer with a cycle is refused by another
one: the nodes of the cycle's classes that have no child among them.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graphopt.core.errors import UserError
from graphopt.rewrite.extraction.elimination import cheapest_narrow
from graphopt.rewrite.extraction.greedy import Egraph, cheapest_shared, cheapest_terms, price
from graphopt.rewrite.extraction.reduction import Reduced, circles, reduce

TOLERANCE = 1e-6  # relative: a cost so close to the bound is the least
Choice = dict[int, int]  # node of each needed class


class ExactExtraction(NamedTuple):
    """A choice of low DAG cost. No choice costs less than `bound`; proven is a cost within a millionth of the bound."""

    choice: Choice
    cost: float
    bound: float
    proven: bool


def greedy_tree(egraph: Egraph, cost: Sequence[float]) -> Choice:
    """The least tree cost. cost: [N] of each node. Raises UserError: a root has no finite term."""
    return _needed(egraph, cheapest_terms(egraph, cost)[0])


def greedy_dag(egraph: Egraph, cost: Sequence[float]) -> Choice:
    """A low DAG cost, bottom up: every class takes the node with the cheapest DAG below it.

    A class cannot know the needs of others, so the DAG of the roots need not be the cheapest. Raises UserError: a root
    has no finite term.
    """
    return _needed(egraph, cheapest_shared(egraph, cost))


def exact_dag(egraph: Egraph, cost: Sequence[float], seconds: float) -> ExactExtraction:
    """The least DAG cost if the time allows, else the best that was found in `seconds` and a bound.

    Never costs more than greedy_dag. The time does not limit the greedy methods and the reduction of the search, some
    seconds for 50,000 nodes. Raises UserError: a root has no finite term.
    """
    deadline = time.monotonic() + seconds
    terms, _ = cheapest_terms(egraph, cost)
    _needed(egraph, terms)
    found, bound = terms, 0.0
    if seconds > 0:
        reduced = reduce(egraph, cost)
        assert reduced.egraph is not None  # every root has a finite term
        narrow = cheapest_narrow(reduced.egraph, cost)
        found, bound = terms | reduced.settled | narrow.choice, narrow.cost
        if narrow.left.roots:
            rest = solved(narrow.left, cost, users(egraph, reduced, narrow.left), deadline - time.monotonic())
            found, bound = found | rest.choice, bound + rest.bound
    if bound < price(egraph, found, cost) * (1 - TOLERANCE):
        found = min(found, cheapest_shared(egraph, cost), key=lambda choice: price(egraph, choice, cost))
    paid = price(egraph, found, cost)
    bound = min(bound, paid)
    return ExactExtraction(_needed(egraph, found), paid, bound, bound >= paid * (1 - TOLERANCE))


def _needed(egraph: Egraph, chosen: Mapping[int, int]) -> Choice:
    """The choice for the classes that the roots need, users before their children."""
    choice: Choice = {}
    stack = list(egraph.roots)
    while stack:
        eclass = stack.pop()
        if eclass not in chosen:
            raise UserError(f"class {eclass} of the e-graph has no finite term: each runs into a cycle")
        if eclass not in choice:
            choice[eclass] = chosen[eclass]
            stack += egraph.children[chosen[eclass]]
    return choice


TOP = 1024.0  # about the best program's cost in the solver's unit: its tolerances are absolute


class Landmark(NamedTuple):
    """When the class is needed, one of the nodes is."""

    eclass: int
    nodes: list[int]


class Solved(NamedTuple):
    """Node of each class, and a lower bound on the cost of all choices."""

    choice: dict[int, int]
    bound: float


def users(egraph: Egraph, reduced: Reduced, left: Egraph) -> list[Landmark]:
    """All nodes that use a class, of classes whose users are all in `left`, a part of the reduced e-graph."""
    assert reduced.egraph is not None
    found: dict[int, list[int]] = {}
    for nodes in reduced.egraph.nodes:
        for node in nodes:
            for child in _through(egraph.children[node], egraph, reduced):
                found.setdefault(child, []).append(node)
    given, always = _through(egraph.roots, egraph, reduced), set(reduced.egraph.roots)
    return [Landmark(eclass, nodes) for eclass, nodes in found.items()
            if (eclass in always or left.nodes[eclass]) and eclass not in given
            and all(left.nodes[egraph.class_of[node]] for node in nodes)]  # fmt: skip


def _through(classes: Sequence[int], egraph: Egraph, reduced: Reduced) -> set[int]:
    """These classes, and the classes below them if they are settled."""
    found, stack = set(classes), list(classes)
    while stack:
        node = reduced.settled.get(stack.pop())
        if node is not None:
            new = set(egraph.children[node]) - found
            found |= new
            stack += new
    return found


def solved(egraph: Egraph, cost: Sequence[float], landmarks: Iterable[Landmark], seconds: float) -> Solved:
    """The cheapest choice that is found in time, at least as cheap as the greedy ones; all costs are above 0."""
    deadline = time.monotonic() + seconds
    terms, _ = cheapest_terms(egraph, cost)
    best = min(terms, cheapest_shared(egraph, cost), key=lambda choice: price(egraph, choice, cost))
    program, bound = IntegerProgram(egraph, cost, price(egraph, best, cost)), 0.0
    for landmark in landmarks:
        program.add(landmark)
    while (left := deadline - time.monotonic()) > 0:
        chosen, proved = program.answer(left)
        bound = max(bound, proved)
        if chosen is None:
            break
        picked = Egraph(chosen, egraph.children, egraph.class_of, egraph.roots)
        cycles = _cycles(egraph, picked)
        if not cycles:
            found = terms | cheapest_terms(picked, cost)[0]
            best = min(best, found, key=lambda choice: price(egraph, choice, cost))
            break
        for landmark in cycles:
            program.add(landmark)
    return Solved(best, min(bound, price(egraph, best, cost)))


def _cycles(egraph: Egraph, picked: Egraph) -> list[Landmark]:
    """Constraints that refuse the cycles of an answer."""
    members: dict[int, list[int]] = {}
    for eclass, number in enumerate(circles(picked)):
        members.setdefault(number, []).append(eclass)
    found = []
    for classes in members.values():
        if len(classes) > 1:
            inside = set(classes)
            out = [node for c in classes for node in egraph.nodes[c] if inside.isdisjoint(egraph.children[node])]
            found += [Landmark(eclass, out) for eclass in classes]
    return found


class IntegerProgram:
    """The integer program of an e-graph. best: about the cost of the best choice."""

    def __init__(self, egraph: Egraph, cost: Sequence[float], best: float) -> None:
        self.egraph = egraph
        classes = [eclass for eclass, nodes in enumerate(egraph.nodes) if nodes]
        self.x = {node: column for column, node in enumerate(n for c in classes for n in egraph.nodes[c])}
        optional = sorted(set(classes) - set(egraph.roots))
        self.y = {eclass: len(self.x) + number for number, eclass in enumerate(optional)}
        self.scale = 2.0 ** min(round(math.log2(TOP / best)), 900)
        self.cost: NDArray[np.float64] = np.zeros(len(self.x) + len(self.y))
        self.cost[: len(self.x)] = [cost[node] * self.scale for node in self.x]
        self._index, self._value, self._start = list[int](), list[float](), [0]  # of the rows
        self._low, self._high = list[float](), list[float]()
        for eclass in classes:
            self._row(egraph.nodes[eclass], eclass, most=0.0)
        for eclass in classes:
            users: dict[int, list[int]] = {}
            for node in egraph.nodes[eclass]:
                for child in egraph.children[node]:
                    users.setdefault(child, []).append(node)
            for child, nodes in users.items():
                if child in self.y:
                    self._row(nodes, child, least=-np.inf, most=0.0)

    def add(self, landmark: Landmark) -> None:
        self._row(landmark.nodes, landmark.eclass)

    def _row(self, nodes: Iterable[int], eclass: int, least: float = 0.0, most: float = np.inf) -> None:
        """least <= sum of x over nodes - y of a class <= most; of a root, y is 1."""
        columns = [self.x[node] for node in nodes]
        self._index += columns
        self._value += [1.0] * len(columns)
        if eclass in self.y:
            self._index.append(self.y[eclass])
            self._value.append(-1.0)
        root = float(eclass not in self.y)
        self._start.append(len(self._index))
        self._low.append(least + root)
        self._high.append(most + root)

    def answer(self, seconds: float) -> tuple[list[list[int]] | None, float]:
        """(chosen nodes of each class or None, bound): a choice that may have cycles."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import, and few programs need it

        rows = csr_array((self._value, self._index, self._start), shape=(len(self._low), len(self.cost)))
        result = milp(
            self.cost,
            integrality=np.ones(len(self.cost)),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(rows, self._low, self._high),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        bound = result.mip_dual_bound
        bound = max(bound, 0.0) / self.scale if bound is not None and math.isfinite(bound) else 0.0
        if result.x is None:
            return None, bound
        chosen = [[node for node in nodes if result.x[self.x[node]] > 0.5] for nodes in self.egraph.nodes]
        return chosen, bound
