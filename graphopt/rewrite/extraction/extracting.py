"""Extraction: a program out of an e-graph, by the cost of its tree or of its DAG.

A choice gives every needed class one of its nodes, without cycles. Needed are the roots and the children of chosen
nodes. What it costs can mean two things:

- **tree cost**: the program written out as terms, one for each root. A class that is used twice is paid twice.
- **DAG cost**: the program as a graph, in which each needed class is computed once and paid once, however many use it.

The least tree cost is found in no time, by Knuth's algorithm. The least DAG cost is NP-hard to find: the search is made
smaller (reduction.py), narrow parts are solved by elimination, and the rest is an integer program.
"""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from graphopt.core.errors import UserError
from graphopt.rewrite.extraction.elimination import cheapest_narrow
from graphopt.rewrite.extraction.greedy import Egraph, cheapest_shared, cheapest_terms, price
from graphopt.rewrite.extraction.integer_program import solved, users
from graphopt.rewrite.extraction.reduction import reduce

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

    A class cannot know what others will need anyway, so the DAG of the roots need not be the cheapest. Raises
    UserError: a root has no finite term.
    """
    return _needed(egraph, cheapest_shared(egraph, cost))


def exact_dag(egraph: Egraph, cost: Sequence[float], seconds: float) -> ExactExtraction:
    """The least DAG cost if the time allows, else what was found in `seconds` and a bound.

    Never costs more than greedy_dag. What the time does not limit: the greedy methods and making the search smaller,
    some seconds for 50,000 nodes. Raises UserError: a root has no finite term.
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
