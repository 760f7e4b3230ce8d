"""Recomputation: which activations of a training step are saved for its backward pass, and which are computed again."""

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.core.split import complete, step_of
from graphopt.problems.assignment import AssignTask

RECOMPUTE_OR_SAVE = Head("recompute", 2, Role.CHOICE, ("recompute", "save"))


class Recompute(AssignTask):
    """Head `recompute` of every op that the forward pass runs and that may run twice: 1 saves its results, if the
    backward pass needs them; views of them come along. One device runs everything."""

    needs: ClassVar[frozenset[str]] = frozenset({"step"})
    roles: ClassVar[Mapping[str, Role]] = {"recompute": Role.CHOICE}

    def __init__(self, *, name: str, machine: Machine) -> None:
        self.name, self.machine, self.heads = name, machine, (RECOMPUTE_OR_SAVE,)

    def initial(self, graph: Graph) -> Decision:
        """[N, 1] ops that the compiler saves when only time counts."""
        return step_of(graph).saved[:, None].astype(np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        return step_of(graph).choice[:, None].copy()

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        """`Plans.choices["recompute"]` [B, N]: 1 for ops that are saved."""
        step = step_of(graph)
        saved = np.stack([complete(step, row) for row in decisions[:, :, 0] > 0])
        inline = np.broadcast_to(view_inline(graph), saved.shape)
        zeros = np.zeros(saved.shape, np.int16)
        return Plans(graph, zeros, np.zeros(saved.shape), inline, choices={"recompute": saved.astype(np.int16)})

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        saved = (plan or self.realise(graph, decision[None])).choices["recompute"][0]
        kept: Decision = (saved * step_of(graph).choice)[:, None].astype(np.int16)
        return kept
