"""Placement, scheduling, and both at once: the device of every op, the order in which ready kernels start, and fusion.

`DeviceTask` makes plans from the choices of its heads; parts without a head are fixed for every plan of a graph.
Shape legend: B decisions, N ops, H heads, D devices, R results.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.compiler import compiler_choice
from graphopt.core.fusible import fusible, view_inline
from graphopt.core.graph import Graph, GraphError
from graphopt.core.kernels import KernelLimits, default_inline, legalise
from graphopt.core.list_schedule import dependencies, heft, links, rough_seconds
from graphopt.core.machine import Machine
from graphopt.core.plan import Decision, Decisions, Floats, Head, Plans, Role
from graphopt.core.utils.marks import Cap, Levels
from graphopt.problems import keys as random_keys
from graphopt.problems.assignment import AssignTask
from graphopt.problems.keys import KeyLayout, KeyRole, Keys
from graphopt.problems.tasks.fusion import STORE_OR_INLINE

Heuristic = Literal["single", "heft", "blocks"]


class DeviceTask(AssignTask):
    """heads: at most one of each of the roles device, priority and fusion. Fusion obeys the caps.

    Without a head, `placement` says where ops run, ready kernels start in op order, and only views are computed inside
    their readers; with `fused` the compiler's default fusion within the caps.
    """

    def __init__(self, name: str, machine: Machine, heads: tuple[Head, ...], caps: KernelLimits, *,
                 placement: Heuristic = "single", fused: bool = False) -> None:  # fmt: skip
        self.name, self.machine, self.heads, self.fusion_limits = name, machine, heads, caps
        self.limits = caps if self.decides(Role.FUSION) else None
        self._placement: Heuristic = placement
        self._fused = fused
        self._fixed_device: WeakKeyDictionary[Graph, NDArray[np.int16]] = WeakKeyDictionary()
        self._fixed_inline: WeakKeyDictionary[Graph, NDArray[np.bool_]] = WeakKeyDictionary()

    def initial(self, graph: Graph) -> Decision:
        """[N, H] the first device that holds the weights, one priority for all (op order), the default fusion."""
        out = np.zeros((graph.num_ops, len(self.heads)), np.int16)
        for column, head in enumerate(self.heads):
            if head.role is Role.DEVICE:
                out[:, column] = first_roomy_device(graph, self.machine)
            elif head.role is Role.FUSION:
                if compiler_choice(graph) is not None:
                    raise GraphError(f"only task=fusion decides about {graph.name}, as TorchInductor lowers it")
                out[:, column] = default_inline(graph, self.fusion_limits) & fusible(graph).op["can_inline"]
        return out

    def mask(self, graph: Graph) -> NDArray[np.bool_]:
        runs, columns = ~self._inline(graph), []
        for head in self.heads:
            free = fusible(graph).op["can_inline"] if head.role is Role.FUSION else runs & (head.count > 1)
            columns.append(free & leads(graph) if head.role is Role.DEVICE else free)
        return np.stack(columns, 1)

    def realise(self, graph: Graph, decisions: Decisions) -> Plans:
        chosen = {head.role: decisions[:, :, column] for column, head in enumerate(self.heads)}
        priority = chosen[Role.PRIORITY].astype(np.float64) if Role.PRIORITY in chosen else None
        return self._plans(graph, len(decisions), chosen.get(Role.DEVICE), priority, chosen.get(Role.FUSION))

    def layout(self, graph: Graph) -> KeyLayout:
        parts = []
        for column, head in enumerate(self.heads):
            if head.role is Role.DEVICE:
                parts.append((KeyRole.AFFINITY, column))
            elif head.role is Role.PRIORITY:
                parts += [(KeyRole.PRIORITY, column), (KeyRole.TRANSFER, -1)]
            else:
                parts.append((KeyRole.CHOICE, column))
        return random_keys.layout(graph, self.machine.num_devices, *parts)

    def realise_keys(self, graph: Graph, keys: Keys) -> Plans:
        """Keys: device affinities [N, D], priorities [N], transfer priorities [R, D], inline if at least a half [N]; of
        these the ones that heads decide."""
        n, d = graph.num_ops, self.machine.num_devices
        lengths = [n * d] * self.decides(Role.DEVICE)
        lengths += [n, random_keys.transfer_count(graph, d)] * self.decides(Role.PRIORITY)
        lengths += [n] * self.decides(Role.FUSION)
        parts = iter(random_keys.split(keys, *lengths))
        device = random_keys.devices(next(parts), d) if self.decides(Role.DEVICE) else None
        priority = sends = requests = None
        if self.decides(Role.PRIORITY):
            priority, sends = next(parts), random_keys.transfers(graph, next(parts), d)
        if self.decides(Role.FUSION):
            requests = (next(parts) >= 0.5).astype(np.int16)
        return self._plans(graph, len(keys), device, priority, requests, sends)

    def canonical(self, graph: Graph, decision: Decision, plan: Plans | None = None) -> Decision:
        out = decision.copy()
        for column, head in enumerate(self.heads):
            if head.role is Role.DEVICE:
                out[:, column] = together(graph, out[:, column])
            elif head.role is Role.FUSION:
                inline = (plan or self.realise(graph, decision[None])).inline[0]
                out[:, column] = inline & fusible(graph).op["can_inline"]
        return out

    def _plans(self, graph: Graph, count: int, device: NDArray[np.int16] | None, priority: Floats | None,
               requests: NDArray[np.int16] | None, sends: NDArray[np.float64] | None = None) -> Plans:  # fmt: skip
        """Plans [B]: arrays [B, N] of decided parts, None for fixed ones."""
        shape = (count, graph.num_ops)
        if device is None:
            if graph not in self._fixed_device:
                self._fixed_device[graph] = together(graph, place(graph, self.machine, self._placement))
            device = np.broadcast_to(self._fixed_device[graph], shape)
        else:
            device = together(graph, device)
        if requests is None:
            inline = np.broadcast_to(self._inline(graph), shape)
        else:
            inline = legalise(graph, requests.astype(np.uint8), self.fusion_limits)
        return Plans(graph, device, np.zeros(shape) if priority is None else priority, inline, sends)

    def _inline(self, graph: Graph) -> NDArray[np.bool_]:
        """[N] ops that are inline in every plan."""
        if not self._fused:
            return view_inline(graph)
        if graph not in self._fixed_inline:
            self._fixed_inline[graph] = default_inline(graph, self.fusion_limits)
        return self._fixed_inline[graph]


class Placement(DeviceTask):
    """Head `device`. Ready kernels start in op order; the fusion state is fixed.

    fuse: the compiler's default fusion within the caps; else only views are computed inside their readers.
    """

    roles: ClassVar[Mapping[str, Role]] = {"device": Role.DEVICE}

    def __init__(self, *, name: str, machine: Machine, fuse: bool, max_ops: Cap, max_inputs: Cap,
                 max_duplicates: Cap) -> None:  # fmt: skip
        heads = (Head("device", machine.num_devices, Role.DEVICE),)
        super().__init__(name, machine, heads, KernelLimits(max_ops, max_inputs, max_duplicates), fused=fuse)


class Scheduling(DeviceTask):
    """Head `priority` with `levels` choices; the highest level starts first, ties in op order.

    placement: `single` = one device; `heft` = earliest finish time, by FLOP and bytes over peaks; `blocks` = runs of
    ops with equal shares of the time. fuse: the compiler's default fusion within the caps; else only views are inline.
    """

    roles: ClassVar[Mapping[str, Role]] = {"priority": Role.PRIORITY}

    def __init__(self, *, name: str, machine: Machine, levels: Levels, placement: Heuristic, fuse: bool, max_ops: Cap,
                 max_inputs: Cap, max_duplicates: Cap) -> None:  # fmt: skip
        heads, caps = (Head("priority", levels, Role.PRIORITY),), KernelLimits(max_ops, max_inputs, max_duplicates)
        super().__init__(name, machine, heads, caps, placement=placement, fused=fuse)


class Joint(DeviceTask):
    """Heads `device`, `priority` (`levels` choices, the highest starts first) and, with `fuse`, `inline`.

    A kernel runs on the device of its stored op, so the device of an inlined op does not matter. Fusion obeys the caps.
    """

    roles: ClassVar[Mapping[str, Role]] = {"device": Role.DEVICE, "priority": Role.PRIORITY}

    @classmethod
    def roles_of(cls, settings: Mapping[str, Any]) -> Mapping[str, Role]:
        return {**cls.roles, "inline": Role.FUSION} if settings["fuse"] else cls.roles

    def __init__(self, *, name: str, machine: Machine, levels: Levels, fuse: bool, max_ops: Cap, max_inputs: Cap,
                 max_duplicates: Cap) -> None:  # fmt: skip
        device, priority = Head("device", machine.num_devices, Role.DEVICE), Head("priority", levels, Role.PRIORITY)
        heads = (device, priority, STORE_OR_INLINE) if fuse else (device, priority)
        super().__init__(name, machine, heads, KernelLimits(max_ops, max_inputs, max_duplicates))


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


def place(graph: Graph, machine: Machine, heuristic: Heuristic) -> NDArray[np.int16]:
    """[N] devices by one of the heuristics."""
    if heuristic == "single":
        return np.full(graph.num_ops, first_roomy_device(graph, machine), np.int16)
    time_ND = np.stack([rough_seconds(graph, device) for device in machine.devices]).T.copy()  # of each op alone
    if heuristic == "blocks":
        seconds = time_ND.mean(1)
        middle = (np.cumsum(seconds) - seconds / 2) / max(float(seconds.sum()), 1e-30)
        block: NDArray[np.int16] = np.minimum(middle * machine.num_devices, machine.num_devices - 1).astype(np.int16)
        return block
    needs = dependencies(graph, graph.input_ptr, graph.input_tensor)
    return heft(time_ND, np.ones(graph.num_ops, np.bool_), needs, links(machine)).device
