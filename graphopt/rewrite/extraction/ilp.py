"""The cheapest shared program as an integer program, solved by HiGHS, which comes with scipy.

Variables: x of each node, whether it is chosen; y of each class that is no root, whether it is needed.

    minimise sum cost x                            (Tensat, section on ILP extraction, with classes written out)
    sum of x over a class = y, or 1 of a root
    sum of x over the nodes of a class that have child c <= y of c
    sum of x over a landmark of class c >= y of c  (extraction_cuts.py)

Every acyclic choice satisfies it. What satisfies it can have cycles, which landmarks cut off as they are met.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array

from graphopt.rewrite.egraphs.egraph import F64
from graphopt.rewrite.extraction.greedy_extraction import Alternatives
from graphopt.rewrite.extraction.growth import Landmark

TOP = 1024.0  # about what the best program costs as the solver sees it: its tolerances are absolute


@dataclass(frozen=True, eq=False)
class Relaxed:
    """What a solver says. Without an answer in time, the bound is 0 and there are no values."""

    bound: float  # of the cost
    value: dict[int, float] | None  # x of each node
    more: dict[int, float] = field(default_factory=dict)  # how far the bound rises with a node


class _Rows:
    """Rows `values . variables >= right`, or `=`, as they are found."""

    def __init__(self) -> None:
        self.index: list[int] = []
        self.value: list[float] = []
        self.start, self.right = [0], list[float]()

    def add(self, plus: Iterable[int], minus: Iterable[int], right: float) -> None:
        for columns, sign in ((plus, 1.0), (minus, -1.0)):
            before = len(self.index)
            self.index.extend(columns)
            self.value.extend([sign] * (len(self.index) - before))
        self.start.append(len(self.index))
        self.right.append(right)

    def matrix(self, width: int) -> csr_array:
        return csr_array((self.value, self.index, self.start), shape=(len(self.right), width))


class IntegerProgram:
    """The integer program of what may be chosen, with the landmarks that are known."""

    def __init__(self, open_to: Alternatives, cost: Sequence[float], best: float) -> None:
        classes = [eclass for eclass, nodes in enumerate(open_to.nodes) if nodes]
        roots = set(open_to.roots)
        self.nodes = [node for eclass in classes for node in open_to.nodes[eclass]]
        self.x = {node: column for column, node in enumerate(self.nodes)}
        optional = [eclass for eclass in classes if eclass not in roots]
        self.y = {eclass: len(self.nodes) + number for number, eclass in enumerate(optional)}
        self.width = len(self.nodes) + len(self.y)
        self.scale = 2.0 ** min(round(math.log2(TOP / best)), 900)
        self.cost: F64 = np.zeros(self.width)
        self.cost[: len(self.nodes)] = [cost[node] * self.scale for node in self.nodes]
        self.equal, self.least = _Rows(), _Rows()
        for eclass in classes:
            self._class(eclass, open_to)

    def _class(self, eclass: int, open_to: Alternatives) -> None:
        nodes = open_to.nodes[eclass]
        active = self._active(eclass)
        self.equal.add([self.x[node] for node in nodes], active, 0.0 if active else 1.0)
        users: dict[int, list[int]] = {}
        for node in nodes:
            for child in open_to.children[node]:
                users.setdefault(child, []).append(self.x[node])
        for child, columns in users.items():
            if child in self.y:
                self.least.add([self.y[child]], columns, 0.0)

    def _active(self, eclass: int) -> list[int]:
        return [self.y[eclass]] if eclass in self.y else []

    def add(self, landmark: Landmark) -> None:
        """Nodes that the program does not know are never chosen."""
        active = self._active(landmark.eclass)
        columns = [self.x[node] for node in landmark.nodes if node in self.x]
        self.least.add(columns, active, 0.0 if active else 1.0)

    def linear(self, seconds: float) -> Relaxed:
        """Without integrality. The bound is that of the solver's multipliers, worked out here: true whatever it says.

        By weak duality; what a variable's reduced cost adds is what choosing it costs beyond the bound.
        """
        least, equal = self.least.matrix(self.width), self.equal.matrix(self.width)
        right_least, right_equal = np.array(self.least.right), np.array(self.equal.right)
        result = linprog(
            self.cost,
            A_ub=-least if len(right_least) else None,
            b_ub=-right_least if len(right_least) else None,
            A_eq=equal,
            b_eq=right_equal,
            bounds=(0, 1),
            method="highs-ds",
            options={"time_limit": max(seconds, 0.0)},
        )
        if result.status != 0:
            return Relaxed(math.inf if result.status == 2 else 0.0, None)
        over = np.maximum(-result.ineqlin.marginals, 0.0) if len(right_least) else np.zeros(0)
        free = result.eqlin.marginals
        reduced = self.cost - least.T @ over - equal.T @ free
        bound = float(over @ right_least + free @ right_equal + np.minimum(reduced, 0.0).sum())
        more = {node: float(reduced[column]) / self.scale for column, node in enumerate(self.nodes)}
        return Relaxed(max(bound, 0.0) / self.scale, self._values(result.x), more)

    def integer(self, seconds: float) -> Relaxed:
        """With integrality: a choice that may have cycles."""
        least, equal = self.least.matrix(self.width), self.equal.matrix(self.width)
        rows = [LinearConstraint(equal, self.equal.right, self.equal.right)]
        if self.least.right:
            rows.append(LinearConstraint(least, self.least.right, np.inf))
        result = milp(
            self.cost,
            integrality=np.ones(self.width),
            bounds=Bounds(0, 1),
            constraints=rows,
            options={"time_limit": max(seconds, 0.0), "mip_rel_gap": 0.0},
        )
        if result.status == 2:
            return Relaxed(math.inf, None)
        bound = result.mip_dual_bound
        known = bound is not None and math.isfinite(bound)
        return Relaxed(max(bound, 0.0) / self.scale if known else 0.0, self._values(result.x))

    def _values(self, x: F64 | None) -> dict[int, float] | None:
        return None if x is None else dict(zip(self.nodes, x[: len(self.nodes)].tolist()))
