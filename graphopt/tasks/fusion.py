"""Fusion: which ops are stored and which are computed inside their consumers' kernels."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import fusible
from graphopt.core.graph import Graph
from graphopt.core.head import Head, Role
from graphopt.core.kernels import KernelLimits, default_inline, legalise, legalise_by_priority
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.problems.decisions import Decision, Decisions, checked_levels
from graphopt.problems.task import AssignTask

STORE_OR_INLINE = Head("inline", 2, Role.FUSION, ("store", "inline"))


class Fusion(AssignTask):
    """Store or inline, on one device (the machine's first).

    decision: `binary` (LAF: inline or not; head `inline` with 2 choices) or `priority` (GO: head `fusion_priority` with
    `levels` choices; ops are tried in descending level, level 0 is stored). Both obey the caps, as the default does.
    """

    limits: KernelLimits

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        return {"inline" if settings["decision"] == "binary" else "fusion_priority": Role.FUSION}

    def __init__(self, *, name: str, machine: Machine, decision: Literal["binary", "priority"], levels: int,
                 max_ops: int, max_inputs: int, max_duplicates: int) -> None:  # fmt: skip
        self.name, self.machine, self.decision, self.levels = name, machine, decision, checked_levels(levels)
        self.limits = KernelLimits(max_ops, max_inputs, max_duplicates).checked()
        self.heads = (STORE_OR_INLINE if decision == "binary" else Head("fusion_priority", levels, Role.FUSION),)

    def initial(self, graph: Graph) -> Decision:
        """[N, 1] the compiler's default fusion (`default_inline`); as priorities: its ops at level 1."""
        inline = default_inline(graph, self.limits)
        inline &= fusible(graph).op["can_inline"]  # views are always inline: they are no decision
        return inline[:, None].astype(np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        return fusible(graph).op["can_inline"][:, None]

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        if self.decision == "binary":
            inline = legalise(graph, decisions[:, :, 0].astype(np.uint8), self.limits)
        else:
            inline = legalise_by_priority(graph, decisions[:, :, 0], self.limits)
        return on_first_device(graph, inline)

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        if self.decision != "binary":
            return decision
        inline = (plan or self.realise(graph, decision[None])).inline[0]
        kept: Decision = (inline & fusible(graph).op["can_inline"])[:, None].astype(np.int16)
        return kept


def on_first_device(graph: Graph, inline: NDArray[np.bool_]) -> Plans:
    """Plans with every op on device 0 in topological order."""
    return Plans(graph, np.zeros(inline.shape, np.int16), np.zeros(inline.shape), inline)
