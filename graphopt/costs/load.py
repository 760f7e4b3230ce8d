"""The load of every device under a plan: the largest limits the throughput of pipelined inference.

There all devices work at the same time, on different samples (the rule of Tarnawski et al., "Efficient algorithms for
device placement of DNN graph operators", NeurIPS 2020).

The load of a device is the sum of
- the times of its kernels,
- for every result that leaves it, the time of the transfer once (the longest, where several devices receive it),
- for every result of another device that its kernels read, the time of that transfer once.
Devices that do not pay for transfers (`pays_transfers: false`) have the first part only. Order does not matter. Memory
is that of the weights of a device's kernels: samples stream through.

Plans that differ little are priced by their differences. The loads of a plan follow from those of the plan before it.
The differences are the kernels that moved, and the tensors that these make and read. Durations are multiples of `GRID`,
so as long as sums are exact (below `EXACT`) the loads are the same to the last bit.

Shape legend: B plans, N ops, T tensors, D devices.
"""

from typing import Any, NamedTuple

import numpy as np

from graphopt.core.utils.compiled import njit
from graphopt.costs.event_arrays import GRID

EXACT = 8192.0  # seconds, 2^53 of the grid
FEW = 8  # a plan follows from another one if fewer than one op in so many moved


class Loads(NamedTuple):
    """Plans and the loads of their devices. Arrays for Numba."""

    device: Any  # int16 [B, N]
    seconds: Any  # float64 [B, D]
    weights: Any  # int64 [B, D] bytes


def loads(flow: Any, links: Any, pays: Any, maker: Any, device: Any, base: Loads | None) -> Loads:
    """The loads of plans device [B, N]; the first may follow from the last plan of `base`.

    maker: op of each tensor [T], or -1.
    """
    devices, batch = len(pays), len(device)
    out = Loads(np.array(device), np.zeros((batch, devices)), np.zeros((batch, devices), np.int64))
    if base is None:
        base = Loads(out.device[:0], out.seconds[:0], out.weights[:0])
    _fill(flow, links, pays, maker, base, out)
    return out


@njit(cache=True, nogil=True)
def _fill(flow, links, pays, maker, base, out):  # type: ignore[no-untyped-def]
    ops = len(flow.is_kernel)
    moved, touched = np.empty(max(1, ops // FEW), np.int64), np.empty(len(flow.tensor_bytes), np.int64)
    met, less, more = np.full(len(touched), -1, np.int64), np.int64(-1), np.int64(1)
    for b in range(len(out.device)):
        before, row = (out, b - 1) if b > 0 else (base, len(base.device) - 1)
        seconds, weights = out.seconds[b], out.weights[b]
        count = -1
        if links.on_grid and row >= 0 and before.seconds[row].max() < EXACT:
            count = _differences(before.device[row], out.device[b], moved)
        if count >= 0:
            seconds[:], weights[:] = before.seconds[row], before.weights[row]
            near = _beside(flow, moved[:count], touched, met, b)
            _add(flow, links, pays, maker, before.device[row], moved[:count], touched[:near], less, seconds, weights)
            _add(flow, links, pays, maker, out.device[b], moved[:count], touched[:near], more, seconds, weights)
        if count < 0 or seconds.max() >= EXACT:
            seconds[:], weights[:] = 0.0, 0
            every, tensors = np.arange(ops), np.arange(len(touched))
            _add(flow, links, pays, maker, out.device[b], every, tensors, more, seconds, weights)


@njit(cache=True, nogil=True)
def _differences(one, other, moved):  # type: ignore[no-untyped-def]
    """How many ops have other devices, into `moved`; -1 where these do not fit."""
    count = 0
    for n in range(len(one)):
        if one[n] != other[n]:
            if count == len(moved):
                return -1
            moved[count] = n
            count += 1
    return count


@njit(cache=True, nogil=True)
def _beside(flow, ops, touched, met, stamp):  # type: ignore[no-untyped-def]
    """How many tensors the ops make or read, into `touched`."""
    count = 0
    for n in ops:
        for tensor in range(flow.out_ptr[n], flow.out_ptr[n + 1]):
            if met[tensor] != stamp:
                met[tensor] = stamp
                touched[count] = tensor
                count += 1
        for e in range(flow.in_ptr[n], flow.in_ptr[n + 1]):
            tensor = flow.in_tensor[e]
            if met[tensor] != stamp:
                met[tensor] = stamp
                touched[count] = tensor
                count += 1
    return count


@njit(cache=True, nogil=True)
def _add(flow, links, pays, maker, here, ops, tensors, sign, seconds, weights):  # type: ignore[no-untyped-def]
    """Adds the loads of ops and tensors under a plan [N] to those of devices, or subtracts them."""
    for n in ops:
        if flow.is_kernel[n]:
            seconds[here[n]] += sign * flow.time[n, flow.column[here[n]]]
    for tensor in tensors:
        made = maker[tensor] >= 0
        if not made and not flow.is_weight[tensor]:
            continue
        source = np.int64(here[maker[tensor]]) if made else np.int64(-1)
        seen, longest = np.int64(1) << source if made else np.int64(0), 0.0
        for r in range(flow.reader_ptr[tensor], flow.reader_ptr[tensor + 1]):
            there = np.int64(here[flow.reader[r]])
            if (seen >> there) & 1:
                continue
            seen |= np.int64(1) << there
            if made:
                travel = _travel(flow.tensor_bytes[tensor], source, there, links)
                longest = max(longest, travel)
                seconds[there] += sign * travel if pays[there] else 0.0
            else:
                weights[there] += sign * flow.tensor_bytes[tensor]
        if made:
            seconds[source] += sign * longest if pays[source] else 0.0


@njit(cache=True, nogil=True)
def _travel(size, source, there, links):  # type: ignore[no-untyped-def]
    """Seconds, on the grid on which sums are exact."""
    return np.floor((links.latency[source, there] + size / links.bandwidth[source, there]) / GRID + 0.5) * GRID
