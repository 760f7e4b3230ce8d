"""Scheduling: in which order ready kernels start, where each op runs being fixed by a heuristic."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.list_schedule import dependencies, heft, links, rough_seconds
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
from graphopt.core.utils.marks import Cap, Levels
from graphopt.problems import keys as random_keys
from graphopt.problems.assignment import AssignTask
from graphopt.problems.keys import KeyLayout, KeyRole, Keys
from graphopt.problems.tasks.placement import first_roomy_device, fixed_inline, together

Heuristic = Literal["single", "heft", "blocks"]


class Scheduling(AssignTask):
    """Head `priority` with `levels` choices; the highest level starts first, ties in op order.

    placement: `single` = one device; `heft` = earliest finish time, by FLOP and bytes over peaks; `blocks` = runs of
    ops with equal shares of the time. fuse: the compiler's default fusion within the caps; else only views are inline.
    """

    roles: ClassVar[Mapping[str, Role]] = {"priority": Role.PRIORITY}

    def __init__(self, *, name: str, machine: Machine, levels: Levels, placement: Heuristic, fuse: bool, max_ops: Cap,
                 max_inputs: Cap, max_duplicates: Cap) -> None:  # fmt: skip
        self.name, self.machine, self.placement, self.fuse = name, machine, placement, fuse
        self.fusion_limits = KernelLimits(max_ops, max_inputs, max_duplicates)
        self.heads = (Head("priority", levels, Role.PRIORITY),)
        self._devices: WeakKeyDictionary[Graph, NDArray[np.int16]] = WeakKeyDictionary()

    def initial(self, graph: Graph) -> Decision:
        """[N, 1] one level for all: kernels start in op order as they become ready."""
        return np.zeros((graph.num_ops, 1), np.int16)

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        stored = ~fixed_inline(graph, self.fuse, self.fusion_limits)
        return stored[:, None] & (self.heads[0].count > 1)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        return self._plans(graph, decisions[:, :, 0].astype(np.float64), None)

    def layout(self, graph: Graph) -> KeyLayout:
        return random_keys.layout(graph, self.machine.num_devices, (KeyRole.PRIORITY, 0), (KeyRole.TRANSFER, -1))

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Keys: priorities [N], then transfer priorities [R, D]."""
        count = random_keys.transfer_count(graph, self.machine.num_devices)
        priority, sends = random_keys.split(keys, graph.num_ops, count)
        return self._plans(graph, priority, random_keys.transfers(graph, sends, self.machine.num_devices))

    def _plans(self, graph: Graph, priority: NDArray[np.floating[Any]], sends: NDArray[np.float64] | None) -> Plans:
        if graph not in self._devices:
            self._devices[graph] = together(graph, place(graph, self.machine, self.placement))
        inline = fixed_inline(graph, self.fuse, self.fusion_limits)
        device = np.broadcast_to(self._devices[graph], priority.shape)
        return Plans(graph, device, priority, np.broadcast_to(inline, priority.shape), sends)


def place(graph: Graph, machine: Machine, heuristic: Heuristic) -> NDArray[np.int16]:
    """[N] devices by one of the heuristics."""
    if heuristic == "single":
        return np.full(graph.num_ops, first_roomy_device(graph, machine), np.int16)
    time_ND = _rough_times(graph, machine)
    if heuristic == "blocks":
        seconds = time_ND.mean(1)
        middle = (np.cumsum(seconds) - seconds / 2) / max(float(seconds.sum()), 1e-30)
        block: NDArray[np.int16] = np.minimum(middle * machine.num_devices, machine.num_devices - 1).astype(np.int16)
        return block
    needs = dependencies(graph, graph.input_ptr, graph.input_tensor)
    return heft(time_ND, np.ones(graph.num_ops, np.bool_), needs, links(machine)).device


def _rough_times(graph: Graph, machine: Machine) -> F64:
    """[N, D] seconds of each op alone on each device."""
    return np.stack([rough_seconds(graph, device) for device in machine.devices]).T.copy()
