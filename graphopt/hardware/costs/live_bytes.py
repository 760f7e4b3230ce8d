"""`LiveBytes`: the cost model that runs a graph's torch program in the plan's order and counts the bytes that live.

A price is the allocator's bytes at the worst moment: weights and inputs, results, and allocations inside operators.
Inputs other than weights are given away: they go after their last use, outputs stay. Allocations of an op do not depend
on when it runs, so one run gives a table from which the peak of any order follows exactly.
"""

from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.live_storage import LiveStorage, orders_of, peaks
from graphopt.core.plan import Plans, Role
from graphopt.core.utils.marks import Workers
from graphopt.problems.cost_model import CostModel, Prices


class LiveBytes(CostModel):
    """device: where programs run. execute: every plan is run, and its outputs are compared, bit by bit, with those of
    the graph's own order; false: prices follow from the table, thousands a second. threads: of torch, while it runs."""

    objective = "peak_memory"
    provides = frozenset({"storage"})
    one_device = True
    op_by_op = True
    needs: ClassVar[frozenset[str]] = frozenset({"fx_program"})
    reads: ClassVar[frozenset[Role | str]] = frozenset({Role.PRIORITY})

    def __init__(self, *, name: str, device: Literal["cpu", "cuda"], execute: bool, threads: Workers) -> None:
        self.name, self.device, self.execute, self.threads = name, device, execute, threads
        self._sessions: WeakKeyDictionary[Graph, Any] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        _check(plans)
        session = self._session(plans.graph)
        orders = orders_of(session.table, plans.priority)
        found = np.array([session.run(order) for order in orders]) if self.execute else peaks(session.table, orders)
        return Prices(found.astype(np.float64), np.zeros(len(plans)))

    def storage(self, graph: Graph) -> LiveStorage:
        table: LiveStorage = self._session(graph).table
        return table

    def _session(self, graph: Graph) -> Any:
        if graph not in self._sessions:
            from graphopt.hardware.program_run import Session

            self._sessions[graph] = Session(graph, self.device, self.threads)
        return self._sessions[graph]


def _check(plans: Plans) -> None:
    """Raises UserError unless the plans say an order of single ops on one device."""
    if (plans.device != plans.device[:, :1]).any():
        raise UserError("cost=live_bytes runs programs on one device; take a machine with one device, or "
                        "task.placement=single")  # fmt: skip
    if (plans.inline != view_inline(plans.graph)).any():
        raise UserError("cost=live_bytes runs ops one by one; set task.fuse=false")
