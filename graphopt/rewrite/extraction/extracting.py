"""Extraction: a program out of an e-graph, by the cost of its tree or of its DAG.

A choice gives every needed class one of its nodes, without cycles. Needed are the roots and the children of chosen
nodes. What it costs can mean two things:

- **tree cost**: the program written out as terms, one for each root. A class that is used twice is paid twice.
- **DAG cost**: the program as a graph, in which each needed class is computed once and paid once, however many use it.

The least tree cost is found in no time, by Knuth's algorithm. The least DAG cost is NP-hard to find.
"""

import math
import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphopt.rewrite.egraphs.egraph import I32, Egraph, EgraphError
from graphopt.rewrite.extraction.exact_extraction import TOLERANCE, cheapest
from graphopt.rewrite.extraction.greedy_extraction import alternatives, cheapest_shared, cheapest_terms

Method = Literal["greedy-tree", "greedy-dag", "exact"]
NOT_NEEDED = -1


@dataclass(frozen=True, eq=False)
class Extraction:
    """A program taken from an e-graph, and what is known about its cost.

    `bound` and `proven` are about the cost that the method minimises (`minimises`): tree cost for greedy-tree, DAG cost
    for greedy-dag and exact. Proven is a cost within one millionth of the bound.
    """

    choice: I32  # [C] node of each needed class, NOT_NEEDED for others
    tree_cost: float  # infinite when it is over 1e308: sharing saves exponentially much
    dag_cost: float
    bound: float  # no program of the e-graph costs less
    proven: bool
    seconds: float
    method: Method

    @property
    def minimises(self) -> Literal["tree", "DAG"]:
        return "tree" if self.method == "greedy-tree" else "DAG"


@dataclass(frozen=True)
class Costs:
    """What one choice costs in both ways."""

    tree: float
    dag: float


def costs_of(egraph: Egraph, choice: I32) -> Costs:
    """Checks a choice [C] and says what it costs; knows nothing of how it was found.

    Raises EgraphError: a needed class has no node, or one of another class; the choice has a cycle.
    """
    tree: dict[int, float] = {}  # of finished classes, children first
    waiting: set[int] = set()
    stack = list(reversed(egraph.roots.tolist()))
    while stack:
        eclass = stack[-1]
        node = _node_of(egraph, choice, eclass)
        children = egraph.children_of(node).tolist()
        missing = [child for child in children if child not in tree]
        if eclass in tree or not missing:
            stack.pop()
            waiting.discard(eclass)
            tree[eclass] = float(egraph.cost[node]) + sum(tree[child] for child in children)
        elif eclass in waiting:
            raise EgraphError(f"the choice has a cycle through class {egraph.class_names[eclass]!r}")
        else:
            waiting.add(eclass)
            stack += missing
    dag = math.fsum(float(egraph.cost[choice[eclass]]) for eclass in tree)
    return Costs(sum(tree[root] for root in egraph.roots.tolist()), dag)


def _node_of(egraph: Egraph, choice: I32, eclass: int) -> int:
    node = int(choice[eclass])
    if not 0 <= node < egraph.nodes or egraph.class_of[node] != eclass:
        raise EgraphError(f"class {egraph.class_names[eclass]!r} is needed, but no node of it is chosen")
    return node


def greedy_tree(egraph: Egraph) -> Extraction:
    """The least tree cost. Raises EgraphError: a root has no finite term."""
    start = time.perf_counter()
    chosen, _ = cheapest_terms(alternatives(egraph), egraph.cost.tolist())
    choice = _needed(egraph, chosen)
    return _extraction(egraph, choice, costs_of(egraph, choice).tree, start, "greedy-tree")


def greedy_dag(egraph: Egraph) -> Extraction:
    """A low DAG cost, bottom up: every class takes the node with the cheapest DAG below it. Proves no bound but 0.

    A class cannot know what others will need anyway, so the DAG of the roots need not be the cheapest. Raises
    EgraphError: a root has no finite term.
    """
    start = time.perf_counter()
    chosen = cheapest_shared(alternatives(egraph), egraph.cost.tolist())
    return _extraction(egraph, _needed(egraph, chosen), 0.0, start, "greedy-dag")


def exact_dag(egraph: Egraph, seconds: float) -> Extraction:
    """The least DAG cost if the time allows, else what was found in `seconds` and a bound.

    Never costs more than greedy_dag. What the time does not limit: the greedy methods and making the search smaller,
    some seconds for 50,000 nodes. Raises EgraphError: a root has no finite term.
    """
    start = time.perf_counter()
    if seconds <= 0:
        return _extraction(egraph, greedy_dag(egraph).choice, 0.0, start, "exact")
    found = cheapest(alternatives(egraph), egraph.cost.tolist(), seconds)
    result = _extraction(egraph, _needed(egraph, found.choice), found.bound, start, "exact")
    if result.proven:
        return result
    best = min(result, greedy_dag(egraph), key=lambda extraction: extraction.dag_cost)
    return _extraction(egraph, best.choice, found.bound, start, "exact")


def _needed(egraph: Egraph, chosen: dict[int, int]) -> I32:
    """The choice [C] for the classes that the roots need."""
    choice = np.full(egraph.classes, NOT_NEEDED, np.int32)
    stack = egraph.roots.tolist()
    while stack:
        eclass = stack.pop()
        if eclass not in chosen:
            name = egraph.class_names[eclass]
            raise EgraphError(f"root class {name!r} has no finite term: each runs into a cycle or a forbidden node")
        if choice[eclass] == NOT_NEEDED:
            choice[eclass] = chosen[eclass]
            stack += egraph.children_of(chosen[eclass]).tolist()
    choice.setflags(write=False)
    return choice


def _extraction(egraph: Egraph, choice: I32, bound: float, start: float, method: Method) -> Extraction:
    costs = costs_of(egraph, choice)
    cost = costs.tree if method == "greedy-tree" else costs.dag
    bound = min(bound, cost)
    proven = bound >= cost * (1 - TOLERANCE)
    return Extraction(choice, costs.tree, costs.dag, bound, proven, time.perf_counter() - start, method)
