"""Cost of a training step that is split into a forward and a backward program, by the rules of core/split.py."""

from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.graph import F64, Graph
from graphopt.core.list_schedule import rough_seconds
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans, Role
from graphopt.core.split import Footprint, footprint, step_of
from graphopt.core.utils.marks import NotNegative
from graphopt.problems.cost_model import CostModel, Prices


class StepCost(CostModel):
    """`peak_memory`: bytes at the worst moment of both programs, gradients included, weights and inputs not; `runtime`:
    seconds of all ops, those twice that run twice, by the peaks of the machine's first device.

    budget: of `runtime`, the share of the peak that is allowed; more is infeasible. 1 is the peak of the compiler's own
    set, which it saves when only time counts; 0 is that of a backward pass that saves nothing it can compute again.
    most_again: of `peak_memory`, the share of all seconds that may be spent on computing again; more is infeasible.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"step"})
    reads: ClassVar[frozenset[Role | str]] = frozenset({"recompute"})

    def __init__(self, *, name: str, machine: Machine, objective: Literal["peak_memory", "runtime"],
                 budget: NotNegative, most_again: NotNegative) -> None:  # fmt: skip
        self.name, self.objective, self._device = name, objective, machine.devices[0]
        self.budget, self.most_again = budget, most_again
        self._work: WeakKeyDictionary[Graph, F64] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        graph = plans.graph
        work = self._work.setdefault(graph, rough_seconds(graph, self._device))
        step, whole = step_of(graph), float(work.sum())
        found = [footprint(step, row > 0, work) for row in plans.choices["recompute"]]
        if self.objective == "runtime":
            cost, excess = np.array([whole + f.again for f in found]), self._over_peak(graph, work, found)
        else:
            cost = np.array([float(f.peak) for f in found])
            excess = np.array([f.again for f in found]) / max(self.most_again * whole, 1e-30) - 1.0
        excess = np.maximum(excess, 0.0)
        return Prices(np.where(excess > 0, np.inf, cost), excess)

    def _over_peak(self, graph: Graph, work: F64, found: list[Footprint]) -> F64:
        limit = self.budget * footprint(step_of(graph), step_of(graph).saved, work).peak
        return np.array([f.peak for f in found]) / max(limit, 1.0) - 1.0
