"""The cheapest shared program by elimination of variables, where the e-graph is long and narrow.

Whether a class is needed is a variable of two values. A class costs nothing where it is not needed, else its cheapest
node whose children are all needed: a table over the class and its children. To eliminate a variable, all tables that
have it are added up and the better of its two values is kept. That is the cheapest choice for all eliminated classes,
as a table over the classes that touch them (Bertele and Brioschi, Nonserial Dynamic Programming, 1972; for e-graphs
Goharshady, Lam and Parreaux, Fast and Optimal Extraction for Sparse Equality Graphs, OOPSLA 2024). Tables double with
every variable more, so this is for parts in which no more than some 20 meet, as they do in e-graphs of neural networks
of many layers.

Cycles are not seen: a choice that has some is no program, and its cost is a bound.
"""

import math
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from graphopt.rewrite.extraction.greedy import Egraph, cheapest_terms
from graphopt.rewrite.extraction.reduction import edges

CELLS = 1 << 24  # of all tables of a part
WIDTH = 22  # variables of a table


class Factor(NamedTuple):
    """Costs over variables, in ascending order, an axis of two for each."""

    over: tuple[int, ...]
    cost: NDArray[np.float64]


class Narrow(NamedTuple):
    """A cheapest choice for the needed classes of narrow parts, and its cost; the e-graph without these parts."""

    choice: dict[int, int]
    cost: float
    left: Egraph


def cheapest_narrow(egraph: Egraph, cost: Sequence[float]) -> Narrow:
    """Of the parts that are narrow enough, and whose cheapest choice has no cycle."""
    choice: dict[int, int] = {}
    done, always = set[int](), set(egraph.roots)
    for classes in _parts(egraph, cost):
        roots = [eclass for eclass in classes if eclass in always]
        chosen = _chosen(egraph, cost, classes, roots)
        if chosen is not None and _acyclic(egraph, chosen):
            choice |= chosen
            done.update(classes)
    nodes = [[] if eclass in done else nodes for eclass, nodes in enumerate(egraph.nodes)]
    left = Egraph(nodes, egraph.children, egraph.class_of, [root for root in egraph.roots if root not in done])
    return Narrow(choice, math.fsum(cost[node] for node in choice.values()), left)


def _parts(egraph: Egraph, cost: Sequence[float]) -> list[list[int]]:
    """Classes that can be reached from each other, up or down; users before their children, cycles aside."""
    pairs = edges(egraph)
    matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(egraph.classes, egraph.classes))
    label = connected_components(matrix, directed=False)[1].tolist()
    members: dict[int, list[int]] = {}
    for eclass in reversed(cheapest_terms(egraph, cost)[0]):
        members.setdefault(label[eclass], []).append(eclass)
    return list(members.values())


def _chosen(egraph: Egraph, cost: Sequence[float], classes: Sequence[int],
            roots: Sequence[int]) -> dict[int, int] | None:  # fmt: skip
    """The cheapest choice, for the classes that the roots need; None where tables grow too large."""
    always = set(roots)
    near = {c: {c, *(child for node in egraph.nodes[c] for child in egraph.children[node])} for c in classes}
    scopes = {c: tuple(sorted(found - always)) for c, found in near.items()}
    order = _order(scopes)
    if order is None or any(len(scope) > WIDTH for scope in scopes.values()):
        return None
    tables = [_table(egraph, cost, c, scope, always) for c, scope in scopes.items()]
    needed = dict.fromkeys(always, True) | _values(tables, order)
    chosen: dict[int, int] = {}
    stack = list(roots)
    while stack:
        eclass = stack.pop()
        if eclass not in chosen:
            usable = [node for node in egraph.nodes[eclass] if all(needed[c] for c in egraph.children[node])]
            chosen[eclass] = min(usable, key=cost.__getitem__)
            stack += egraph.children[chosen[eclass]]
    return chosen


def _order(scopes: Mapping[int, Sequence[int]]) -> list[int] | None:
    """Variables, each time the one that the fewest others meet, of equal ones the first; None where tables grow too
    large."""
    near: dict[int, set[int]] = {eclass: set() for eclass, scope in scopes.items() if eclass in scope}
    for scope in scopes.values():
        for variable in scope:
            near[variable].update(scope)
    order, cells = list[int](), sum([1 << len(scope) for scope in scopes.values()])
    degree = {variable: len(others) for variable, others in near.items()}
    while degree:
        variable = min(degree, key=degree.__getitem__)
        cells += 1 << degree.pop(variable)
        if cells > CELLS:
            return None
        order.append(variable)
        others = near.pop(variable) - {variable}
        for other in others:
            near[other] |= others
            near[other].discard(variable)
            degree[other] = len(near[other])
    return order


def _table(egraph: Egraph, cost: Sequence[float], eclass: int, scope: tuple[int, ...],
           always: set[int]) -> Factor:  # fmt: skip
    made = np.full((2,) * len(scope), np.inf)
    for node in egraph.nodes[eclass]:
        wanted = {eclass, *egraph.children[node]}
        place = tuple([1 if variable in wanted else slice(None) for variable in scope])
        made[place] = np.minimum(made[place], cost[node])
    if eclass not in always:
        made[tuple([0 if variable == eclass else slice(None) for variable in scope])] = 0.0
    return Factor(scope, made)


def _values(tables: Sequence[Factor], order: Sequence[int]) -> dict[int, bool]:
    """Whether each variable is needed in the cheapest choice."""
    waiting: dict[int, list[Factor]] = {variable: [] for variable in order}
    place = {variable: number for number, variable in enumerate(order)}
    for table in tables:
        if table.over:
            waiting[min(table.over, key=place.__getitem__)].append(table)
    gone = []  # variables, their neighbours, and the values of these for which being needed was better
    for variable in order:
        some = waiting.pop(variable)
        over = tuple(sorted({other for table in some for other in table.over}))
        total = np.zeros((2,) * len(over))
        for table in some:
            total += table.cost.reshape([2 if other in table.over else 1 for other in over])
        axis = over.index(variable)
        without, having = np.moveaxis(total, axis, 0)
        table = Factor(over[:axis] + over[axis + 1 :], np.minimum(without, having))
        gone.append((variable, table.over, having < without))
        if table.over:
            waiting[min(table.over, key=place.__getitem__)].append(table)
    needed: dict[int, bool] = {}
    for variable, over, better in reversed(gone):
        needed[variable] = bool(better[tuple([int(needed[other]) for other in over])])
    return needed


def _acyclic(egraph: Egraph, chosen: Mapping[int, int]) -> bool:
    try:
        TopologicalSorter({eclass: egraph.children[node] for eclass, node in chosen.items()}).prepare()
    except CycleError:
        return False
    return True
