"""XLA's GPU cost model of one kernel (`fusion_model: xla_gpu`), described from its `gpu_performance_model` (2024-2026).

Time = launch + compute + memory - 0.95 * min(compute, memory). Where XLA asks its emitters, we choose: blocks of 128
threads, one thread per result element, or per 16 input elements where the kernel holds a reduction. FLOP per element
come from our operator table, not from XLA's per-opcode cycles; contractions, which XLA leaves to libraries, run at
`contraction_flops`.
"""

import math

from graphopt.utils.compiled import njit

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
    """Threads of the launch: a reduction is spread over what it reads, other kernels over what they write."""
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
