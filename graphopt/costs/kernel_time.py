"""What one kernel costs on a device. Two models: a roofline with the corrections of docs/semantics.md, and XLA's GPU model.

Times are rounded to multiples of 2^-40 s (about 1 ps), so that float64 sums of kernel times below 8192 s are exact whatever
their order: delta pricing then equals full pricing to the last digit.

Shape legend: N ops, T tensors, D devices, B plans.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from graphopt.costs.xla_gpu import xla_kernel_time
from graphopt.graph import Bool, F64, Graph, I32, I64
from graphopt.kernels import Fusible, fusible, gather
from graphopt.machine import Device

QUANTUM = 2.0**-40
_FUSION_MODELS = {"roofline": 0, "xla_gpu": 1}


class DeviceConstants(NamedTuple):
    """A `Device` as numbers for Numba; fields as there."""

    model: int
    vector_flops: float
    contraction_flops: float
    bandwidth: float
    launch: float
    strided_factor: float
    reread_factor: float
    spill_inputs: int
    spill_factor: float
    cache_bytes: float
    cache_speedup: float
    saturation: float
    prologue_factor: float
    clock: float
    cores: int
    fpus_per_core: int
    l2_bytes: float


def device_constants(device: Device) -> DeviceConstants:
    values = {name: getattr(device, name) for name in DeviceConstants._fields if name != "model"}
    typed = {name: kind(values[name]) for name, kind in DeviceConstants.__annotations__.items() if name != "model"}
    return DeviceConstants(model=_FUSION_MODELS[device.fusion_model], **typed)


class Workspace(NamedTuple):
    """Scratch for pricing kernels of one graph; one per thread. All zero or stale between calls."""

    members: I32  # [N]
    seen: I64  # [N] stamps
    once: F64  # [N + T] evaluations of an inlined op, or reads of an input tensor, in the consumer's order
    more: F64  # [N + T] the same, in other orders
    strided: Bool  # [N + T] reached through a transposition
    touched: I32  # [T] input tensors of the kernel
    stamp: I64  # [1]


def workspace(graph: Graph) -> Workspace:
    n, t = graph.num_ops, graph.num_tensors
    return Workspace(
        np.empty(n, np.int32), np.full(n, -1, np.int64), np.zeros(n + t), np.zeros(n + t), np.zeros(n + t, np.bool_),
        np.empty(t, np.int32), np.zeros(1, np.int64),
    )  # fmt: skip


class KernelWork(NamedTuple):
    """What a kernel does, before a device prices it."""

    size: int  # members
    inputs: int  # distinct input tensors, in workspace.touched
    vector_flops: float
    contraction_flops: float
    prologue: bool  # a producer is inlined into a contraction
    elements: float  # elements of the result


@njit(cache=True, nogil=True)
def kernel_work(f: Fusible, root: int, inline: NDArray[np.bool_], w: Workspace) -> KernelWork:
    """Walks the kernel from its root backwards and counts evaluations and reads.

    An inlined op is evaluated once per element for all consumers that read it in their own order (the value stays in a
    register) and once more per read for every other consumer: recomputation is paid along index-changing paths. Reductions
    and contractions are computed once per kernel, cooperatively. Leaves reads in w.once / w.more at N + tensor.
    """
    n = len(f.heavy)
    w.stamp[0] += 1
    size = gather(f, root, inline, w.members, w.seen, w.stamp[0])
    vector = contraction = 0.0
    prologue = False
    inputs = 0
    for i in range(size):
        op = w.members[i]
        share, strided = 1.0, False
        if i > 0:
            if f.heavy[op] == 0:
                share = (w.once[op] + w.more[op]) / f.numel[op]
            strided = w.strided[op]
            w.once[op] = w.more[op] = 0.0
            w.strided[op] = False
        if f.heavy[op] == 2:
            contraction += f.flops[op] * share
        else:
            vector += f.flops[op] * share
        for e in range(f.in_ptr[op], f.in_ptr[op + 1]):
            source = f.in_op[e]
            slot = source
            if source >= 0 and inline[source]:
                prologue |= f.heavy[op] == 2
            else:
                slot = n + f.in_tensor[e]
                if w.once[slot] == 0.0 and w.more[slot] == 0.0:
                    w.touched[inputs] = f.in_tensor[e]
                    inputs += 1
            if f.same[e]:
                w.once[slot] = max(w.once[slot], f.reads[e] * share)
            else:
                w.more[slot] += f.reads[e] * share
            w.strided[slot] |= strided or f.strided[e]
    return KernelWork(size, inputs, vector, contraction, prologue, f.numel[root])


@njit(cache=True, nogil=True)
def clear(f: Fusible, work: KernelWork, w: Workspace) -> None:
    """Forgets the input reads of the last kernel."""
    for i in range(work.inputs):
        slot = len(f.heavy) + w.touched[i]
        w.once[slot] = w.more[slot] = 0.0
        w.strided[slot] = False


@njit(cache=True, nogil=True)
def kernel_time(f: Fusible, root: int, work: KernelWork, w: Workspace, device: DeviceConstants) -> float:
    """Seconds of the kernel on one device, a multiple of 2^-40 s."""
    if device.model == 1:
        return _quantise(xla_kernel_time(f, root, work, w, device))
    return _quantise(_roofline_time(f, root, work, w, device))


@njit(cache=True, nogil=True)
def _quantise(seconds: float) -> float:
    return math.floor(seconds / QUANTUM + 0.5) * QUANTUM if seconds < 8192.0 else seconds


@njit(cache=True, nogil=True)
def _roofline_time(f: Fusible, root: int, work: KernelWork, w: Workspace, device: DeviceConstants) -> float:
    """launch + max(arithmetic, memory) / occupancy; see docs/semantics.md for each correction."""
    paid, touched_bytes, elements = f.out_bytes[root], f.out_bytes[root], work.elements
    for i in range(work.inputs):
        tensor = w.touched[i]
        slot = len(f.heavy) + tensor
        read = w.once[slot] + w.more[slot]
        element_bytes = f.tensor_bytes[tensor] / f.tensor_numel[tensor]
        first = min(read, f.tensor_numel[tensor])
        factor = device.strided_factor if w.strided[slot] else 1.0
        paid += element_bytes * (first * factor + (read - first) * device.reread_factor)
        touched_bytes += element_bytes * first
        elements = max(elements, first)
    bandwidth = device.bandwidth * (device.cache_speedup if touched_bytes <= device.cache_bytes else 1.0)
    spill = 1.0 + device.spill_factor * max(0, work.inputs - device.spill_inputs)
    memory = paid / bandwidth * spill
    contraction = work.contraction_flops / device.contraction_flops * (device.prologue_factor if work.prologue else 1.0)
    arithmetic = work.vector_flops / device.vector_flops + contraction
    occupancy = min(1.0, elements / device.saturation)
    return device.launch + max(arithmetic, memory) / occupancy


class KernelGraph(NamedTuple):
    """The kernels of one plan as the event simulator sees them. Arrays for Numba."""

    is_kernel: Bool  # [N] stored ops that are no views
    in_ptr: I64  # [N+1]
    in_tensor: I32  # distinct base tensors read by each kernel; those with producer -1 are inputs or weights
    time: F64  # [N, D] seconds, 0 where there is no kernel
    keep: Bool  # [T] base tensors of graph outputs


def kernel_graph(graph: Graph, inline: NDArray[np.bool_], devices: tuple[Device, ...]) -> KernelGraph:
    """Forms and prices the kernels of `inline` [N]. Equal devices are priced once."""
    f = fusible(graph)
    distinct = list(dict.fromkeys(_unnamed(device) for device in devices))
    column = [distinct.index(_unnamed(device)) for device in devices]
    constants = tuple(device_constants(device) for device in distinct)
    inputs, time_NU = _price_all(f, inline, constants, workspace(graph))
    counts, tensors = inputs
    in_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return KernelGraph(~inline, in_ptr, tensors[: in_ptr[-1]], np.ascontiguousarray(time_NU[:, column]), f.keep)


def _unnamed(device: Device) -> Device:
    return replace(device, name="", capacity=0.0)


@njit(cache=True, nogil=True)
def _price_all(f: Fusible, inline: NDArray[np.bool_], devices: tuple[DeviceConstants, ...],
               w: Workspace) -> tuple[tuple[I64, I32], F64]:  # fmt: skip
    n = len(f.heavy)
    time = np.zeros((n, len(devices)))
    counts = np.zeros(n, np.int64)
    tensors = np.empty(max(16, 2 * len(f.in_tensor)), np.int32)
    total = 0
    for root in range(n):
        if inline[root]:
            continue
        work = kernel_work(f, root, inline, w)
        if total + work.inputs > len(tensors):
            grown = np.empty(2 * (total + work.inputs), np.int32)
            grown[:total] = tensors[:total]
            tensors = grown
        tensors[total : total + work.inputs] = w.touched[: work.inputs]
        counts[root] = work.inputs
        total += work.inputs
        for d in range(len(devices)):
            time[root, d] = kernel_time(f, root, work, w, devices[d])
        clear(f, work, w)
    return (counts, tensors), time


@njit(cache=True, nogil=True)
def runtime_on_one_device(f: Fusible, inline: NDArray[np.bool_], device: DeviceConstants, w: Workspace, times: F64) -> float:
    """Sum of all kernel times in seconds; `times` [N] receives each (0 where there is no kernel)."""
    total = 0.0
    for root in range(len(f.heavy)):
        times[root] = 0.0
        if not inline[root]:
            work = kernel_work(f, root, inline, w)
            times[root] = kernel_time(f, root, work, w, device)
            clear(f, work, w)
            total += times[root]
    return total
