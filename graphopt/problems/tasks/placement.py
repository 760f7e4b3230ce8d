"""Placement: on which device every op runs."""

from collections.abc import Mapping
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.kernels import KernelLimits, default_inline
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Cap
from graphopt.problems import keys as random_keys
from graphopt.problems.assignment import AssignTask
from graphopt.problems.keys import KeyLayout, KeyRole, Keys


class Placement(AssignTask):
    """Head `device`. Ready kernels start in op order; the fusion state is fixed.

    fuse: the compiler's default fusion within the caps; else only views are computed inside their readers.
    """

    roles: ClassVar[Mapping[str, Role]] = {"device": Role.DEVICE}

    def __init__(self, *, name: str, machine: Machine, fuse: bool, max_ops: Cap, max_inputs: Cap,
                 max_duplicates: Cap) -> None:  # fmt: skip
        self.name, self.machine, self.fuse = name, machine, fuse
        self.fusion_limits = KernelLimits(max_ops, max_inputs, max_duplicates)
        self.heads = (Head("device", machine.num_devices, Role.DEVICE),)

    def initial(self, graph: Graph) -> Decision:
        """[N, 1] all on the first device that holds the weights (the first device where none does)."""
        return np.full((graph.num_ops, 1), first_roomy_device(graph, self.machine), np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        stored = ~fixed_inline(graph, self.fuse, self.fusion_limits)
        return (stored & leads(graph))[:, None] & (self.machine.num_devices > 1)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        return self._plans(graph, decisions[:, :, 0])

    def layout(self, graph: Graph) -> KeyLayout:
        return random_keys.layout(graph, self.machine.num_devices, (KeyRole.AFFINITY, 0))

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Keys: device affinities [N, D]."""
        return self._plans(graph, random_keys.devices(keys, self.machine.num_devices))

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        return together(graph, decision[:, 0])[:, None]

    def _plans(self, graph: Graph, device: NDArray[np.int16]) -> Plans:
        inline = fixed_inline(graph, self.fuse, self.fusion_limits)
        return Plans(graph, together(graph, device), np.zeros(device.shape), np.broadcast_to(inline, device.shape))


def leads(graph: Graph) -> NDArray[np.bool_]:
    """[N] ops that decide where they run; the others share the device of one that does (`Graph.together`)."""
    ops = np.arange(graph.num_ops)
    own: NDArray[np.bool_] = graph.together == ops if len(graph.together) else np.ones(graph.num_ops, np.bool_)
    return own


def together(graph: Graph, device: NDArray[np.int16]) -> NDArray[np.int16]:
    """[..., N] devices with every op where the op that leads it is."""
    return device[..., graph.together] if len(graph.together) else device


def first_roomy_device(graph: Graph, machine: Machine) -> int:
    """The first device that holds all weights and can run all ops; where none does, the first that can; else 0."""
    weights = int(graph.tensor_bytes[graph.is_weight].sum())
    able = [d for d, device in enumerate(machine.devices) if np.isfinite(graph.measured.get(device.kind, 0.0)).all()]
    return next((d for d in able if machine.devices[d].capacity >= weights), next(iter(able), 0))


_INLINE: "WeakKeyDictionary[Graph, dict[KernelLimits | None, NDArray[np.bool_]]]" = WeakKeyDictionary()


def fixed_inline(graph: Graph, fuse: bool, limits: KernelLimits) -> NDArray[np.bool_]:
    """[N] the fusion state of tasks that do not decide fusion, computed once per graph."""
    known = _INLINE.setdefault(graph, {})
    key = limits if fuse else None
    if key not in known:
        known[key] = default_inline(graph, limits) if fuse else view_inline(graph)
    return known[key]
