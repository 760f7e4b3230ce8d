"""What REGAL's policy reads beside the encoder's features: orders of the ops, how far an op belongs to a device, and
what kind of graph it is.

The paper names sizes and costs only (appendix, as far as known). The rest is our addition. Identical devices look alike
to a graph network, so something has to tell which ops could go together: `MEMBERSHIPS` do, by eigenvectors and by list
schedules. `DESCRIPTORS` tell graphs apart in which different proposals help: where a few weights are nearly all memory
those that keep to one device, in training graphs those that cut it in two (docs/results/regal.md). All is cheap beside
the search, and none is a price.

Shape legend: N ops, D devices, E edges, G graphs.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array

from graphopt.core.fusible import view_inline
from graphopt.core.graph import F64, Graph
from graphopt.core.machine import Machine
from graphopt.core.spectral import smallest_eigenvectors
from graphopt.encoders.columns import levels
from graphopt.problems.task import AssignTask
from graphopt.search.heuristics.rules import (
    Device,
    SchedulingInstance,
    by_cautious_heft,
    by_heft,
    order_bottom_level,
    place_single,
)
from graphopt.search.heuristics.starts import ranks

F32 = NDArray[np.float32]
FEW = 0.06  # share of results that are live at once: forward passes of deep networks have less, others more
LARGEST = 20_000  # ops up to which eigenvectors are computed; beyond it the topological order stands in

ORDERS = (
    "topological", "depth", "height", "slack", "bottom_level", "spectral", "spectral_2", "bytes_share", "largest",
    "size",
)  # fmt: skip
MEMBERSHIPS = (
    "spectral", "spectral_by_bytes", "spectral_2_by_bytes", "blocks_by_bytes", "large_by_bytes", "heft",
    "heft_cautious", "first", "speed", "room",
)  # fmt: skip
DESCRIPTORS = ("ops", "weights", "live", "even", "largest", "wide", "transfer", "spread")


class Inputs(NamedTuple):
    """Of one graph on one machine."""

    order_NX: F32  # [N, len(ORDERS)]
    member_NDX: F32  # [N, D, len(MEMBERSHIPS)]
    whole_1X: F32  # [1, len(DESCRIPTORS)]


_CACHE: "WeakKeyDictionary[Graph, dict[AssignTask, Inputs]]" = WeakKeyDictionary()


def inputs(graph: Graph, task: AssignTask) -> Inputs:
    """Computed once per graph and task."""
    known = _CACHE.setdefault(graph, {})
    if task not in known:
        known[task] = _inputs(graph, task)
    return known[task]


def _inputs(graph: Graph, task: AssignTask) -> Inputs:
    held = (graph.weight_bytes + graph.result_bytes).astype(np.float64)
    held[view_inline(graph)] = 0.0
    held = held / max(held.sum(), 1.0) + 1e-6 / graph.num_ops
    instance, vectors, depths = SchedulingInstance(graph, task), fiedler(graph), levels(graph)
    parts = by_heft(instance).device, by_cautious_heft(instance).device
    order = _orders(instance, held, vectors, depths)
    member = _members(instance, held, vectors, parts)
    whole = descriptors(instance, held, depths, parts[1])
    return Inputs(order.astype(np.float32), member.astype(np.float32), whole[None].astype(np.float32))


def _orders(instance: SchedulingInstance, held: F64, vectors: tuple[F64, F64], depths: tuple[F64, F64]) -> F64:
    """[N, len(ORDERS)]"""
    ops, (depth, height), one = instance.graph.num_ops, depths, np.ones(instance.graph.num_ops)
    columns = [
        share(np.arange(ops, dtype=np.float64), one), share(depth, one), share(height, one),
        1 - (depth + height) / max(float((depth + height).max()), 1.0),
        ranks(order_bottom_level(instance, place_single(instance))), share(vectors[0], one), share(vectors[1], one),
        np.clip(np.log10(held * ops), -3, 3) / 3, held / held.max(), np.full(ops, np.log10(ops) / 2 - 1),
    ]  # fmt: skip
    return np.stack(columns, 1)


def _members(instance: SchedulingInstance, held: F64, vectors: tuple[F64, F64], parts: tuple[Device, Device]) -> F64:
    """[N, D, len(MEMBERSHIPS)]"""
    machine, ops = instance.task.machine, instance.graph.num_ops
    position = np.arange(ops, dtype=np.float64)
    weights = (vectors[0], np.ones(ops)), (vectors[0], held), (vectors[1], held), (position, held)
    split = [membership(share(*pair), machine.num_devices) for pair in weights]
    large = split[1] * (held / held.max())[:, None]
    devices = np.arange(machine.num_devices)
    sides = [np.where(part[:, None] == devices, 1.0, -1.0) for part in (*parts, np.zeros(ops, np.int16))]
    return np.stack([*split, large, *sides, *_device_columns(instance.graph, machine)], 2)


def descriptors(instance: SchedulingInstance, held: F64, depths: tuple[F64, F64], cautious: Device) -> F64:
    """[len(DESCRIPTORS)], each of the order of 1.

    ops: how many, log10. weights: their share of what one device holds when most is live. live: the share r of results
    that are live when most are, as a soft step at `FEW` from 0, one after another, to 1, all at once. even: over how
    many ops bytes are spread, as a share, log10. largest: the largest op's share of bytes, log10. wide: ops over the
    longest path, log10. transfer: a result's mean time on a link over an op's mean time, log10. spread: how evenly a
    cautious list schedule uses the devices, from 0, one of them, to 1, all alike.
    """
    graph, kernels = instance.graph, instance.kernels
    live, results = float(live_bytes(graph).max()), max(float(graph.result_bytes.sum()), 1.0)
    weights, share_of = float(graph.tensor_bytes[graph.is_weight].sum()), held / held.sum()
    count = max(int(kernels.is_kernel.sum()), 1)
    sizes, links = instance.needs.size, instance.links
    travel = links.mean_latency + links.mean_per_byte * float(sizes.mean()) if len(sizes) else 0.0
    takes = float(kernels.time.mean(1).sum()) / count
    most, devices = np.bincount(cautious[kernels.is_kernel], minlength=1).max(), kernels.time.shape[1]
    values = [
        np.log10(graph.num_ops) - 2.5, 2 * weights / max(weights + live, 1.0) - 1,
        1 / (1 + (FEW * results / max(live, 1.0)) ** 3),
        1 - np.log10(np.sum(share_of**2) * graph.num_ops), np.log10(share_of.max()) + 1.5,
        np.log10(graph.num_ops / max(float(depths[0].max()), 1.0)) - 0.5,
        np.log10(max(travel, 1e-12) / max(takes, 1e-12)), (1 - most / count) / max(1 - 1 / devices, 0.5),
    ]  # fmt: skip
    clipped: F64 = np.clip(values, -2.0, 2.0)
    return clipped


def live_bytes(graph: Graph) -> F64:
    """[N] bytes of results that are live when an op has run, all ops in op order on one device."""
    _, target, tensor = graph.edges
    last = np.maximum(graph.producer, 0).astype(np.int64)
    np.maximum.at(last, tensor, target)
    made = graph.producer >= 0
    size = graph.tensor_bytes[made].astype(np.float64)
    begins = np.bincount(graph.producer[made], size, graph.num_ops)
    ends = np.bincount(last[made] + 1, size, graph.num_ops + 1)[: graph.num_ops]
    live: F64 = np.cumsum(begins - ends)
    return live


def share(value: F64, weight: F64) -> F64:
    """[N] in (0, 1): the share of all weight that lies before the op in the order of value; equal values share."""
    _, group = np.unique(value, return_inverse=True)
    total = np.bincount(group, weight)
    middle: F64 = ((np.cumsum(total) - total / 2) / total.sum())[group]
    return middle


def membership(position: F64, devices: int) -> F64:
    """[N, D] how far positions in (0, 1) lie inside the d-th of D equal intervals, in interval lengths, within [-1, 1].

    The outer ends are open: of two devices one's membership is the negative of the other's.
    """
    d = np.arange(devices)
    low = np.where(d == 0, np.inf, position[:, None] * devices - d)
    high = np.where(d == devices - 1, np.inf, d + 1 - position[:, None] * devices)
    inside: F64 = np.clip(np.minimum(low, high), -1.0, 1.0) if devices > 1 else np.ones((len(position), 1))
    return inside


def _device_columns(graph: Graph, machine: Machine) -> list[F64]:
    """[N, D] each: log of the device's speed and of its room over the machine's means."""
    speed = np.array([device.contraction_flops for device in machine.devices])
    room = np.array([min(device.capacity, 1e15) for device in machine.devices])
    columns = [np.log(value / np.exp(np.log(value).mean())) for value in (speed, room)]
    return [np.broadcast_to(np.clip(column, -3, 3), (graph.num_ops, machine.num_devices)) for column in columns]


def fiedler(graph: Graph) -> tuple[F64, F64]:
    """The second and third eigenvector of the normalised Laplacian [N], edges weighted by bytes.

    The sign is such that the op position correlates with them, so that equal graphs give equal signs.
    """
    n = graph.num_ops
    if n < 4 or n > LARGEST:
        return np.arange(n, dtype=np.float64), np.arange(n, dtype=np.float64)
    source, target, tensor = graph.edges
    weight = graph.tensor_bytes[tensor] / max(float(graph.tensor_bytes.max()), 1.0) + 1e-6
    both = coo_array((np.tile(weight, 2), (np.append(source, target), np.append(target, source))), shape=(n, n))
    vectors = smallest_eigenvectors(both.tocsr(), 3)[:, 1:]
    signs = np.where(np.arange(n) @ (vectors - vectors.mean(0)) < 0, -1.0, 1.0)
    return vectors[:, 0] * signs[0], vectors[:, 1] * signs[1]
