"""The cost of one kernel on a device: a roofline with the corrections of docs/semantics.md, XLA's GPU model, or a
learned model.

Times are rounded to multiples of 2^-40 s (about 1 ps). So float64 sums of kernel times below 8192 s are exact in any
order. Delta pricing then equals full pricing to the last digit.

XLA's model (`fusion_model: xla_gpu`) is described from its `gpu_performance_model` (2024-2026): time = launch + compute
+ memory - 0.95 * min(compute, memory). Where XLA asks its emitters, we choose: blocks of 128 threads, one thread per
result element, or per 16 input elements where the kernel holds a reduction. FLOP per element come from our operator
table, not from XLA's per-opcode cycles; contractions, which XLA leaves to libraries, run at `contraction_flops`.

Shape legend: N ops, T tensors, D devices, B plans, R kernels, F columns of a learned model.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I32, I64, Bool, Graph
from graphopt.core.kernels import gather
from graphopt.core.machine import Device
from graphopt.core.utils.compiled import njit, writable
from graphopt.costs.one_kernel.learned_kernel import COLUMNS, NUMBERS, kernel_columns, learned_kernel_time

OVERLAP = 0.95  # share of the shorter of compute and memory that is hidden
THREADS = 128  # per block
REDUCED_PER_THREAD = 16.0  # input elements that one thread of a reduction reads
L2_SPEEDUP = 2.5  # of re-reads that fit into the second-level cache
L1_SPEEDUP = 8.0  # on top of it, of re-reads that fit into the first
L1_BYTES = 2048.0  # per core, as XLA counts it for one operand
SECTOR = 64.0  # bytes moved for every element of an uncoalesced read
BYTES_PER_CLOCK = 32.0  # that one block can request


@njit(cache=True, nogil=True)
def xla_kernel_time(f, root, work, w, device):  # type: ignore[no-untyped-def]
    """Seconds of the kernel whose members and reads are in `w` (see `kernel_work`)."""
    blocks = math.ceil(_threads(f, root, work, w) / THREADS)
    memory = f.op[root].out_bytes / device.bandwidth
    for i in range(work.inputs):
        tensor = w.touched[i]
        slot = len(f.op) + tensor
        size = f.tensor[tensor].num_bytes
        if size == 0:
            continue
        element_bytes = size / f.tensor[tensor].numel
        total = element_bytes * (w.slot[slot].once + w.slot[slot].more)
        memory += _read_time(size, total, element_bytes, w.slot[slot].strided, blocks, device)
    units = min(THREADS, device.fpus_per_core) * min(blocks, float(device.cores))
    compute = work.vector_flops / (2.0 * device.clock * units) + work.contraction_flops / device.contraction_flops
    return device.launch + compute + memory - OVERLAP * min(compute, memory)


@njit(cache=True, nogil=True)
def _threads(f, root, work, w):  # type: ignore[no-untyped-def]
    """Threads of the launch: a reduction is spread over elements read, other kernels over those written."""
    threads = max(1.0, f.op[root].numel)
    for i in range(work.size):
        if f.op[w.members[i]].heavy == 1:
            threads = max(threads, f.op[w.members[i]].space / REDUCED_PER_THREAD)
    return threads


@njit(cache=True, nogil=True)
def _read_time(size, total, element_bytes, strided, blocks, device):  # type: ignore[no-untyped-def]
    """Seconds to read `total` bytes of an operand of `size` bytes: once from memory, then from its cache."""
    first = min(size, total)
    coalesced = min(1.0, element_bytes / SECTOR) if strided else 1.0
    again = device.bandwidth
    if first >= device.l2_bytes:
        again *= coalesced
    elif first >= L1_BYTES * device.cores:
        again *= L2_SPEEDUP
    else:
        again *= L2_SPEEDUP * L1_SPEEDUP
    limit = blocks * device.clock * BYTES_PER_CLOCK  # low occupancy
    return first / min(device.bandwidth * coalesced, limit) + (total - first) / min(again, limit)


QUANTUM = 2.0**-40
_FUSION_MODELS = {"roofline": 0, "xla_gpu": 1, "learned": 2}

DEVICE = np.dtype([
    ("model", np.int64), ("vector_flops", np.float64), ("contraction_flops", np.float64), ("bandwidth", np.float64),
    ("launch", np.float64), ("strided_factor", np.float64), ("reread_factor", np.float64), ("spill_inputs", np.int64),
    ("spill_factor", np.float64), ("cache_bytes", np.float64), ("cache_speedup", np.float64),
    ("saturation", np.float64), ("prologue_factor", np.float64), ("clock", np.float64), ("cores", np.int64),
    ("fpus_per_core", np.int64), ("l2_bytes", np.float64), ("numbers", np.float64, (NUMBERS,)),
])  # fmt: skip

SLOT = np.dtype([
    ("once", np.float64),  # evaluations of an inlined op, or reads of an input tensor, in the consumer's order
    ("more", np.float64),  # the same, in other orders
    ("strided", np.bool_),  # reached through a transposition
], align=True)  # fmt: skip


def device_constants(devices: Sequence[Device]) -> NDArray[np.void]:
    """[D] DEVICE records for Numba; fields as in `Device`."""
    out = np.zeros(len(devices), DEVICE)
    for d, device in enumerate(devices):
        out[d]["model"] = _FUSION_MODELS[device.fusion_model]
        for name in DEVICE.names[1:-1] if DEVICE.names else ():
            out[d][name] = getattr(device, name)
        if device.fusion_model == "learned":
            out[d]["numbers"] = device.numbers
    return out


class Workspace(NamedTuple):
    """Scratch for pricing kernels of one graph; one per thread."""

    members: I32  # [N]
    seen: I64  # [N] stamps
    slot: NDArray[np.void]  # [N + T] SLOT, zero between kernels
    touched: I32  # [T] input tensors of the kernel
    stamp: I64  # [1]


def workspace(graph: Graph) -> Workspace:
    n, t = graph.num_ops, graph.num_tensors
    slot = np.zeros(n + t, SLOT)
    return Workspace(
        np.empty(n, np.int32), np.full(n, -1, np.int64), slot, np.empty(t, np.int32), np.zeros(1, np.int64)
    )


class KernelWork(NamedTuple):
    """The work of a kernel, before a device prices it."""

    size: int  # members
    inputs: int  # distinct input tensors, in workspace.touched
    vector_flops: float
    contraction_flops: float
    prologue: bool  # a producer is inlined into a contraction
    elements: float  # elements of the result


@njit(cache=True, nogil=True)
def kernel_work(f: Fusible, root: int, inline: NDArray[np.bool_], w: Workspace) -> KernelWork:
    """Walks the kernel from its root backwards and counts evaluations and reads.

    An inlined op is evaluated once per element for all consumers that read it in their own order: the value stays in a
    register. Every other consumer evaluates it once more per read. So recomputation is paid along index-changing paths.
    Reductions and contractions are computed once per kernel, cooperatively. Leaves reads in w.slot[N + tensor].
    """
    n = len(f.op)
    w.stamp[0] += 1
    size = gather(f, root, inline, w.members, w.seen, w.stamp[0])
    vector = contraction = 0.0
    prologue = False
    inputs = 0
    for i in range(size):
        op = w.members[i]
        share, strided = 1.0, False
        if i > 0:
            if f.op[op].heavy == 0:
                share = (w.slot[op].once + w.slot[op].more) / f.op[op].numel
            strided = w.slot[op].strided
            w.slot[op].once = w.slot[op].more = 0.0
            w.slot[op].strided = False
        if f.op[op].heavy == 2:
            contraction += f.op[op].flops * share
        else:
            vector += f.op[op].flops * share
        for e in range(f.op[op].in_start, f.op[op].in_end):
            source = f.edge[e].op
            slot = source
            if source >= 0 and inline[source]:
                prologue |= f.op[op].heavy == 2
            else:
                slot = n + f.edge[e].tensor
                if w.slot[slot].once == 0.0 and w.slot[slot].more == 0.0:
                    w.touched[inputs] = f.edge[e].tensor
                    inputs += 1
            if f.edge[e].same:
                w.slot[slot].once = max(w.slot[slot].once, f.edge[e].reads * share)
            else:
                w.slot[slot].more += f.edge[e].reads * share
            w.slot[slot].strided |= strided or f.edge[e].strided
    return KernelWork(size, inputs, vector, contraction, prologue, f.op[root].numel)


@njit(cache=True, nogil=True)
def clear(f: Fusible, work: KernelWork, w: Workspace) -> None:
    """Forgets the input reads of the last kernel."""
    for i in range(work.inputs):
        slot = len(f.op) + w.touched[i]
        w.slot[slot].once = w.slot[slot].more = 0.0
        w.slot[slot].strided = False


@njit(cache=True, nogil=True)
def kernel_time(f: Fusible, root: int, work: KernelWork, w: Workspace, device: Any) -> float:
    """Seconds of the kernel on one device (a DEVICE record), a multiple of 2^-40 s."""
    if device.model == 1:
        return _quantise(xla_kernel_time(f, root, work, w, device))
    if device.model == 2:
        return _quantise(learned_kernel_time(f, root, work, w, device))
    return _quantise(_roofline_time(f, root, work, w, device))


@njit(cache=True, nogil=True)
def _quantise(seconds: float) -> float:
    return math.floor(seconds / QUANTUM + 0.5) * QUANTUM if seconds < 8192.0 else seconds


@njit(cache=True, nogil=True)
def _roofline_time(f: Fusible, root: int, work: KernelWork, w: Workspace, device: Any) -> float:
    """launch + max(arithmetic, memory) / occupancy; see docs/semantics.md for each correction."""
    paid, touched_bytes, elements = f.op[root].out_bytes, f.op[root].out_bytes, work.elements
    for i in range(work.inputs):
        tensor = w.touched[i]
        slot = len(f.op) + tensor
        read = w.slot[slot].once + w.slot[slot].more
        element_bytes = f.tensor[tensor].num_bytes / f.tensor[tensor].numel
        first = min(read, f.tensor[tensor].numel)
        factor = device.strided_factor if w.slot[slot].strided else 1.0
        paid += element_bytes * (first * factor + (read - first) * device.reread_factor)
        touched_bytes += element_bytes * first
        elements = max(elements, first)
    bandwidth = device.bandwidth * (device.cache_speedup if touched_bytes <= device.cache_bytes else 1.0)
    spill = 1.0 + device.spill_factor * max(0, work.inputs - device.spill_inputs)
    memory = paid / bandwidth * spill
    contraction = work.contraction_flops / device.contraction_flops * (device.prologue_factor if work.prologue else 1.0)
    arithmetic = work.vector_flops / device.vector_flops + contraction
    occupancy = min(1.0, elements / device.saturation)
    return float(device.launch + max(arithmetic, memory) / occupancy)


class KernelGraph(NamedTuple):
    """The kernels of one plan as the event simulator sees them. Arrays for Numba."""

    is_kernel: Bool  # [N] stored ops that are no views
    in_ptr: I64  # [N+1]
    in_tensor: I32  # distinct base tensors read by each kernel; those with producer -1 are inputs or weights
    time: F64  # [N, D] seconds, 0 where there is no kernel
    keep: Bool  # [T] base tensors of graph outputs


def kernel_graph(graph: Graph, inline: NDArray[np.bool_], devices: tuple[Device, ...]) -> KernelGraph:
    """Forms and prices the kernels of `inline` [N]. Equal devices are priced once.

    Where the graph has measured seconds for a kind of device, a kernel of one op takes those there.
    """
    f, inline = fusible(graph), writable(inline)
    distinct = list(dict.fromkeys(_unnamed(device) for device in devices))
    column = [distinct.index(_unnamed(device)) for device in devices]
    counts, tensors, time_NU = _price_all(f, inline, device_constants(distinct), workspace(graph))
    for u, device in enumerate(distinct):
        if device.kind in graph.measured:
            alone = _alone(f, inline)
            time_NU[alone, u] = np.floor(graph.measured[device.kind][alone] / QUANTUM + 0.5) * QUANTUM
    in_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return KernelGraph(
        ~inline,
        in_ptr,
        tensors,
        np.ascontiguousarray(time_NU[:, column]),
        np.ascontiguousarray(f.tensor["keep"]),
    )


def _unnamed(device: Device) -> Device:
    return replace(device, name="", capacity=0.0, pays_transfers=True)


def _alone(f: Fusible, inline: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[N] ops that are a kernel of one op."""
    reader = np.repeat(np.arange(len(f.op)), f.op["in_end"] - f.op["in_start"])
    fused = (f.edge["op"] >= 0) & inline[f.edge["op"]]
    alone: NDArray[np.bool_] = ~inline & (np.bincount(reader, fused, len(f.op)) == 0)
    return alone


@njit(cache=True, nogil=True)
def _price_all(f: Fusible, inline: NDArray[np.bool_], devices: NDArray[np.void],
               w: Workspace) -> tuple[I64, I32, F64]:  # fmt: skip
    n = len(f.op)
    time = np.zeros((n, len(devices)))
    counts = np.zeros(n, np.int64)
    tensors = np.empty(max(16, 2 * len(f.edge)), np.int32)
    total = 0
    for root in range(n):
        if inline[root]:
            continue
        work = kernel_work(f, root, inline, w)
        if total + work.inputs > len(tensors):
            grown = np.empty(2 * (total + work.inputs), np.int32)
            for i in range(total):
                grown[i] = tensors[i]
            tensors = grown
        for i in range(work.inputs):
            tensors[total + i] = w.touched[i]
        counts[root] = work.inputs
        total += work.inputs
        for d in range(len(devices)):
            time[root, d] = kernel_time(f, root, work, w, devices[d])
        clear(f, work, w)
    return counts, tensors[:total], time


@njit(cache=True, nogil=True)
def runtime_on_one_device(f: Fusible, inline: NDArray[np.bool_], device: Any, w: Workspace, times: F64) -> float:
    """Sum of all kernel times in seconds; `times` [N] receives each (0 where there is no kernel)."""
    total = 0.0
    for root in range(len(f.op)):
        times[root] = 0.0
        if not inline[root]:
            work = kernel_work(f, root, inline, w)
            times[root] = kernel_time(f, root, work, w, device)
            clear(f, work, w)
            total += times[root]
    return total


def kernel_table(graph: Graph, inline: Bool, device: Device, *, all_kernels: bool = False) -> tuple[I64, F64]:
    """(stored op [R], columns [R, F]) of all kernels, or of those that teach: without an op that is held out. inline:
    [N] flags of a legal plan."""
    root, x, teaches = _table(fusible(graph), inline, graph.train_mask, device_constants([device])[0], workspace(graph))
    return (root, x) if all_kernels else (root[teaches], x[teaches])


@njit(cache=True, nogil=True)
def _table(f: Fusible, inline: NDArray[np.bool_], taught: NDArray[np.bool_], device: Any, w: Workspace
           ) -> tuple[I64, F64, NDArray[np.bool_]]:  # fmt: skip
    roots = np.flatnonzero(~inline)
    x, teaches = np.empty((len(roots), len(COLUMNS))), np.ones(len(roots), np.bool_)
    for r in range(len(roots)):
        work = kernel_work(f, roots[r], inline, w)
        kernel_columns(f, roots[r], work, w, device, x[r])
        for i in range(work.size):
            teaches[r] &= taught[w.members[i]]
        clear(f, work, w)
    return roots, x, teaches
