"""Joint: where every op runs, in which order ready kernels start, and which ops are computed inside their consumers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.tasks import keys as random_keys
from graphopt.tasks.keys import KeyLayout, Keys, Role
from graphopt.tasks.placement import first_roomy_device, leads, together
from graphopt.tasks.task import AssignTask, Decision, Decisions, checked_levels


class Joint(AssignTask):
    """Heads `device`, `priority` (`levels` choices, the highest starts first) and, with `fuse`, `inline`.

    A kernel runs on the device of its stored op, so the device of an inlined op does not matter. Fusion obeys the caps.
    """

    head_names = frozenset({"device", "priority"})

    @classmethod
    def heads_of(cls, settings: Mapping[str, Any]) -> frozenset[str]:
        return cls.head_names | ({"inline"} if settings["fuse"] else set())

    def __init__(self, *, name: str, machine: Machine, levels: int, fuse: bool, max_ops: int, max_inputs: int,
                 max_duplicates: int) -> None:  # fmt: skip
        self.name, self.machine, self.fuse = name, machine, fuse
        self.fusion_limits = KernelLimits(max_ops, max_inputs, max_duplicates).checked()
        self.limits = self.fusion_limits if fuse else None
        checked_levels(levels)
        self.heads = {"device": machine.num_devices, "priority": levels} | ({"inline": 2} if fuse else {})

    def initial(self, graph: Graph) -> Decision:
        """[N, H] one device, op order, and the compiler's default fusion."""
        out = np.zeros((graph.num_ops, len(self.heads)), np.int16)
        out[:, 0] = first_roomy_device(graph, self.machine)
        if self.fuse:
            out[:, 2] = default_inline(graph, self.fusion_limits) & fusible(graph).op["can_inline"]
        return out

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        runs = ~view_inline(graph)
        columns = [runs & (choices > 1) for choices in list(self.heads.values())[:2]]
        columns[0] &= leads(graph)
        if self.fuse:
            columns.append(fusible(graph).op["can_inline"])
        return np.stack(columns, 1)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        inline = self._inline(graph, decisions[:, :, 2] if self.fuse else None, len(decisions))
        return Plans(graph, together(graph, decisions[:, :, 0]), decisions[:, :, 1].astype(np.float64), inline)

    def layout(self, graph: Graph) -> KeyLayout:
        parts = (Role.AFFINITY, True), (Role.PRIORITY, True), (Role.TRANSFER, True), (Role.CHOICE, self.fuse)
        return random_keys.layout(graph, self.machine.num_devices, *parts)

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Keys: device affinities [N, D], priorities [N], transfer priorities [R, D], inline if at least a half [N]."""
        affinity, priority, sends, inline = random_keys.split(keys, *self._key_lengths(graph))
        requests, devices = (inline >= 0.5).astype(np.int16) if self.fuse else None, self.machine.num_devices
        device = together(graph, random_keys.devices(affinity, devices))
        inlined = self._inline(graph, requests, len(keys))
        return Plans(graph, device, priority, inlined, random_keys.transfers(graph, sends, devices))

    def canonical(self, graph: Graph, decision: Decision) -> Decision:
        out = decision.copy()
        out[:, 0] = together(graph, out[:, 0])
        if self.fuse:
            out[:, 2] = self.realise(graph, decision[None]).inline[0] & fusible(graph).op["can_inline"]
        return out

    def _key_lengths(self, graph: Graph) -> tuple[int, int, int, int]:
        n, d = graph.num_ops, self.machine.num_devices
        return n * d, n, random_keys.transfer_count(graph, d), n if self.fuse else 0

    def _inline(self, graph: Graph, requests: NDArray[np.int16] | None, plans: int) -> NDArray[np.bool_]:
        if requests is None:
            return np.broadcast_to(view_inline(graph), (plans, graph.num_ops))
        return legalise(graph, requests.astype(np.uint8), self.fusion_limits)
