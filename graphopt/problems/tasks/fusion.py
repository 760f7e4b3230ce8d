"""Fusion: which ops are stored and which are computed inside their consumers' kernels."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.compiler import Device, Numerics, compiler_choice, knobs
from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline, legalise, legalise_by_priority
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Cap, Levels
from graphopt.problems.assignment import AssignTask

STORE_OR_INLINE = Head("inline", 2, Role.FUSION, ("store", "inline"))
CUT = Head("cut", 2, Role.CHOICE, ("fuse", "cut"))  # cut: its loop is fused with no other


class Fusion(AssignTask):
    """Store or inline, on one device (the machine's first).

    decision: `binary` (LAF: inline or not; head `inline` with 2 choices) or `priority` (GO: head `fusion_priority` with
    `levels` choices; ops are tried in descending level, level 0 is stored). Both obey the caps, as the default does.
    numerics: further heads for cost models that compile: `cut`, and the compiler's knobs, each a choice at the first op
    for the whole graph; `equal`: those that keep outputs as they are, `close`: also those that change rounding; null:
    none. device: whose code a compiler writes, since knobs are of one or the other.

    Of a graph that a compiler was asked about (`core.compiler`), its own choices are the default. Ops have a choice
    where it has one, and its own caps are obeyed when it compiles.
    """

    limits: KernelLimits

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        fusion = "inline" if settings["decision"] == "binary" else "fusion_priority"
        further = {head.name: head.role for head in further_heads(settings["numerics"], settings["device"])}
        return {fusion: Role.FUSION, **further}

    def __init__(self, *, name: str, machine: Machine, decision: Literal["binary", "priority"], levels: Levels,
                 numerics: Numerics | None, device: Device, max_ops: Cap, max_inputs: Cap,
                 max_duplicates: Cap) -> None:  # fmt: skip
        self.name, self.machine, self.decision, self.levels, self.device = name, machine, decision, levels, device
        self.limits = KernelLimits(max_ops, max_inputs, max_duplicates)
        fusion = STORE_OR_INLINE if decision == "binary" else Head("fusion_priority", levels, Role.FUSION)
        self.heads = (fusion, *further_heads(numerics, device))

    def initial(self, graph: Graph) -> Decision:
        """[N, H] the compiler's default fusion (`default_inline`), its knobs left alone; as priorities: its ops at
        level 1."""
        out = np.zeros((graph.num_ops, len(self.heads)), np.int16)
        asked = compiler_choice(graph)
        inline = default_inline(graph, self.limits) if asked is None else asked.inline
        out[:, 0] = inline & _free(graph)  # views are always inline: they are no decision
        return out

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        out = np.zeros((graph.num_ops, len(self.heads)), np.bool_)
        out[:, 0] = _free(graph)
        out[0, 1:] = True
        if CUT in self.heads:
            out[:, self.heads.index(CUT)] = ~view_inline(graph)
        return out

    def requests_inlining(self, graph: Graph) -> bool:
        return self.decision == "binary" and len(self.heads) == 1 and compiler_choice(graph) is None

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        fusion = decisions[:, :, 0]
        if compiler_choice(graph) is not None:
            inline = (fusion > 0) & _free(graph) | view_inline(graph)
        elif self.decision == "binary":
            inline = legalise(graph, fusion.astype(np.uint8), self.limits)
        else:
            inline = legalise_by_priority(graph, fusion, self.limits)
        further = {head.name: decisions[:, :, column] for column, head in enumerate(self.heads) if column}
        return replace(on_first_device(graph, inline), choices=further)

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        if self.decision != "binary":
            return decision
        kept = decision.copy()
        kept[:, 0] = (plan or self.realise(graph, decision[None])).inline[0] & _free(graph)
        return kept


def further_heads(numerics: Numerics | None, device: Device) -> tuple[Head, ...]:
    """Of compilers: `cut`, and a head for each knob."""
    if numerics is None:
        return ()
    return (CUT, *(Head(knob.name, len(knob.values), Role.CHOICE, knob.words) for knob in knobs(numerics, device)))


def _free(graph: Graph) -> NDArray[np.bool_]:
    """[N] ops that have a choice."""
    asked = compiler_choice(graph)
    return fusible(graph).op["can_inline"] if asked is None else asked.free


def on_first_device(graph: Graph, inline: NDArray[np.bool_]) -> Plans:
    """Plans with every op on device 0 in topological order."""
    return Plans(graph, np.zeros(inline.shape, np.int16), np.zeros(inline.shape), inline)
