"""What every fusion pays: ops of which no kernel holds two, and the least that a kernel with each of them takes.

An op that is always stored is the root of a kernel of its own; reductions and contractions never share a kernel. So
these ops, without those roots whose kernel may hold a reduction or contraction, are in different kernels. Such a kernel
is launched, does the op's arithmetic, reads what of its operands lies in memory in every fusion, and what is read at
least in the place of those that may be computed inside; a root writes its results. All corrections of the roofline
(docs/semantics.md) only add to that, but for the cache, which is taken as fast where the kernel may fit into it.

Shape legend: N ops, E operand edges after views are resolved.
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible
from graphopt.core.graph import F64, Bool
from graphopt.core.machine import Device
from graphopt.utils.compiled import njit


def least_seconds(f: Fusible, device: Device) -> F64:
    """[N] seconds of the kernel of each such op on a device at least; 0 of all others."""
    shared, read = _may_hold_heavy(f), _least_read(f, min(1.0, device.strided_factor))
    heavy, roots = f.op["heavy"] > 0, ~f.op["is_view"] & ~f.op["can_inline"]
    alone: Bool = heavy & ~f.op["is_view"] | (roots & ~shared)
    moved = read + np.where(roots, f.op["out_bytes"], 0.0)
    peak = np.where(
        f.op["heavy"] == 2, device.contraction_flops / min(1.0, device.prologue_factor), device.vector_flops
    )
    rate = device.bandwidth * np.where(moved > device.cache_bytes, 1.0, max(1.0, device.cache_speedup))
    seconds: F64 = device.launch + np.maximum(f.op["flops"] / peak, moved / rate)
    return np.where(alone, seconds, 0.0)


def _may_hold_heavy(f: Fusible) -> Bool:
    """[N] ops in whose kernel a reduction or contraction may be computed."""
    found: Bool = _held(f.op["in_start"], f.op["in_end"], f.edge["op"], f.op["heavy"] > 0, f.op["can_inline"])
    held: Bool = found & f.op["elementwise"]
    return held


@njit(cache=True, nogil=True)
def _held(start, end, source, heavy, can_inline):  # type: ignore[no-untyped-def]
    out = np.zeros(len(heavy), np.bool_)
    for n in range(len(heavy)):
        for e in range(start[n], end[n]):
            op = source[e]
            out[n] |= op >= 0 and can_inline[op] and (heavy[op] or out[op])
    return out


def _least_read(f: Fusible, strided: float) -> F64:
    """[N] bytes that the kernel in which an op is computed once reads for it at least."""
    tensor = f.tensor[f.edge["tensor"]]
    direct = tensor["num_bytes"] / tensor["numel"] * np.minimum(f.edge["reads"], tensor["numel"]) * strided
    maker = f.edge["op"]
    optional: Bool = (maker >= 0) & f.op["can_inline"][maker]
    share = np.minimum(1.0, f.edge["reads"] / np.maximum(f.op["numel"][maker], 1.0))
    found: NDArray[np.float64] = _through(
        f.op["in_start"], f.op["in_end"], maker, f.edge["tensor"], direct, optional, share
    )
    return found


@njit(cache=True, nogil=True)
def _through(start, end, maker, tensor, direct, optional, share):  # type: ignore[no-untyped-def]
    out = np.zeros(len(start))
    for n in range(len(start)):
        surely = 0.0
        for e in range(start[n], end[n]):
            if optional[e]:
                out[n] = max(out[n], min(direct[e], share[e] * out[maker[e]]))
                continue
            first = True
            for before in range(start[n], e):
                first &= tensor[before] != tensor[e]
            surely += direct[e] if first else 0.0
        out[n] = max(out[n], surely)
    return out
