"""Joint: where every op runs, in which order ready kernels start, and which ops are computed inside their consumers."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Cap, Levels
from graphopt.problems import keys as random_keys
from graphopt.problems.assignment import AssignTask
from graphopt.problems.keys import KeyLayout, KeyRole, Keys
from graphopt.problems.tasks.fusion import STORE_OR_INLINE
from graphopt.problems.tasks.placement import first_roomy_device, leads, together


class Joint(AssignTask):
    """Heads `device`, `priority` (`levels` choices, the highest starts first) and, with `fuse`, `inline`.

    A kernel runs on the device of its stored op, so the device of an inlined op does not matter. Fusion obeys the caps.
    """

    roles: ClassVar[Mapping[str, Role]] = {"device": Role.DEVICE, "priority": Role.PRIORITY}

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        return {**cls.roles, "inline": Role.FUSION} if settings["fuse"] else cls.roles

    def __init__(self, *, name: str, machine: Machine, levels: Levels, fuse: bool, max_ops: Cap, max_inputs: Cap,
                 max_duplicates: Cap) -> None:  # fmt: skip
        self.name, self.machine, self.fuse = name, machine, fuse
        self.fusion_limits = KernelLimits(max_ops, max_inputs, max_duplicates)
        self.limits = self.fusion_limits if fuse else None
        device = Head("device", machine.num_devices, Role.DEVICE)
        self.heads = (device, Head("priority", levels, Role.PRIORITY))
        if fuse:
            self.heads += (STORE_OR_INLINE,)

    def initial(self, graph: Graph) -> Decision:
        """[N, H] one device, op order, and the compiler's default fusion."""
        out = np.zeros((graph.num_ops, len(self.heads)), np.int16)
        out[:, 0] = first_roomy_device(graph, self.machine)
        if self.fuse:
            out[:, 2] = default_inline(graph, self.fusion_limits) & fusible(graph).op["can_inline"]
        return out

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        runs = ~view_inline(graph)
        columns = [runs & (head.count > 1) for head in self.heads[:2]]
        columns[0] &= leads(graph)
        if self.fuse:
            columns.append(fusible(graph).op["can_inline"])
        return np.stack(columns, 1)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        inline = self._inline(graph, decisions[:, :, 2] if self.fuse else None, len(decisions))
        return Plans(graph, together(graph, decisions[:, :, 0]), decisions[:, :, 1].astype(np.float64), inline)

    def layout(self, graph: Graph) -> KeyLayout:
        parts = [(KeyRole.AFFINITY, 0), (KeyRole.PRIORITY, 1), (KeyRole.TRANSFER, -1), (KeyRole.CHOICE, 2)]
        return random_keys.layout(graph, self.machine.num_devices, *parts[: 4 if self.fuse else 3])

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Keys: device affinities [N, D], priorities [N], transfer priorities [R, D], inline if at least a half [N]."""
        affinity, priority, sends, inline = random_keys.split(keys, *self._key_lengths(graph))
        requests, devices = (inline >= 0.5).astype(np.int16) if self.fuse else None, self.machine.num_devices
        device = together(graph, random_keys.devices(affinity, devices))
        inlined = self._inline(graph, requests, len(keys))
        return Plans(graph, device, priority, inlined, random_keys.transfers(graph, sends, devices))

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        out = decision.copy()
        out[:, 0] = together(graph, out[:, 0])
        if self.fuse:
            out[:, 2] = (plan or self.realise(graph, decision[None])).inline[0] & fusible(graph).op["can_inline"]
        return out

    def _key_lengths(self, graph: Graph) -> tuple[int, int, int, int]:
        n, d = graph.num_ops, self.machine.num_devices
        return n * d, n, random_keys.transfer_count(graph, d), n if self.fuse else 0

    def _inline(self, graph: Graph, requests: NDArray[np.int16] | None, plans: int) -> NDArray[np.bool_]:
        if requests is None:
            return np.broadcast_to(view_inline(graph), (plans, graph.num_ops))
        return legalise(graph, requests.astype(np.uint8), self.fusion_limits)
