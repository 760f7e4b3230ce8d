"""A stranger's task of three heads: an order, a tile per op (ops differ in how many they have) and one knob of the
whole graph; and its cost model, which counts all three."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.problems.assignment import AssignTask
from graphopt.problems.cost_model import CostModel, Objective, Prices
from graphopt.problems.keys import KeyLayout, KeyRole, Keys, choices, layout


class Tiled(AssignTask):
    """Heads `priority`, `tile` and `unroll`, which op 0 decides for all. Op n has 2 + n % 2 tiles."""

    roles: ClassVar[Mapping[str, Role]] = {"priority": Role.PRIORITY, "tile": Role.CHOICE, "unroll": Role.CHOICE}

    def __init__(self, *, name: str, machine: Machine) -> None:
        self.name, self.machine = name, machine
        self.heads = (Head("priority", 4, Role.PRIORITY), Head("tile", 3, Role.CHOICE), Head("unroll", 2, Role.CHOICE))

    def initial(self, graph: Graph) -> Decision:
        return np.zeros((graph.num_ops, 3), np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        free = np.ones((graph.num_ops, 3), np.bool_)
        free[1:, 2] = False
        return free

    def counts(self, graph: Graph) -> I64:
        counts = super().counts(graph)
        counts[:, 1] = tiles(graph)
        return counts

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        return self._plans(graph, decisions[:, :, 0].astype(np.float64), decisions[:, :, 1], decisions[:, 0, 2])

    def layout(self, graph: Graph) -> KeyLayout:
        return layout(graph, 1, (KeyRole.PRIORITY, 0), (KeyRole.CHOICE, 1), (KeyRole.CHOICE, 2))

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        priority, tile, unroll = np.split(keys, 3, axis=1)
        return self._plans(graph, priority, choices(tile, 3), choices(unroll[:, 0], 2))

    def _plans(self, graph: Graph, priority: Keys, tile: NDArray[np.int16], unroll: NDArray[np.int16]) -> Plans:
        shape = priority.shape
        chosen = {"tile": np.minimum(tile, tiles(graph) - 1).astype(np.int16), "unroll": unroll}
        return Plans(graph, np.zeros(shape, np.int16), priority, np.zeros(shape, np.bool_), choices=chosen)


def tiles(graph: Graph) -> I64:
    """[N] how many tiles ops have."""
    return 2 + np.arange(graph.num_ops) % 2


class TiledTime(CostModel):
    """1 + 1 for each op that has not the last of its tiles, halved by `unroll`, plus a thousandth for each op that
    starts before op 0."""

    reads: ClassVar[frozenset[Role | str]] = frozenset({Role.PRIORITY, "tile", "unroll"})

    def __init__(self, *, name: str, machine: Machine, objective: Objective) -> None:
        self.name, self.machine, self.objective = name, machine, objective

    def price(self, plans: Plans) -> Prices:
        slow = (plans.choices["tile"] < tiles(plans.graph) - 1).sum(1)
        early = (plans.priority > plans.priority[:, :1]).sum(1)
        seconds = (1.0 + slow) / (1 + plans.choices["unroll"]) + 1e-3 * early
        return Prices(seconds, np.zeros(len(plans)))
