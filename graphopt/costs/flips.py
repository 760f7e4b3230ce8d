"""Exact delta pricing of store/inline flips: only the kernels that a flip touches are legalised and priced again.

Equal to full pricing to the last digit: kernel times are multiples of a power of two, so sums do not depend on order, and
whenever a flip would change the legality of another op, the whole graph is legalised and priced instead.

Shape legend: N ops, K flips.
"""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from graphopt.costs.kernel_time import (
    DeviceConstants,
    Workspace,
    clear,
    device_constants,
    kernel_time,
    kernel_work,
    runtime_on_one_device,
    workspace,
)
from graphopt.graph import Bool, F64, Graph, I32, I64
from graphopt.kernels import Fusible, Limits, decode, find_roots, fits_root, fusible, gather, join_kernel, start_kernel
from graphopt.machine import Device

_REFUSED, _CASCADE = -1, -2


class _Scratch(NamedTuple):
    members: I32  # [N]
    stack: I32  # [N]
    seen: I64  # [N]
    stamp: I64  # [1]
    roots: I32  # [max_duplicates + 1]
    roots_of_member: I32  # [max_duplicates + 1]
    inputs: I32  # [max_inputs + 1]
    trial: Bool  # [N] flags for the full fallback
    times: F64  # [N]


class FusionFlips:
    """A current state of store/inline flags on one device, and the price of each single flip of it."""

    def __init__(self, graph: Graph, inline: NDArray[np.bool_], device: Device, limits: Limits) -> None:
        self._f, self._limits, self._device = fusible(graph), limits, device_constants(device)
        self._work = workspace(graph)
        n = graph.num_ops
        self.inline = np.empty(n, np.bool_)
        decode(self._f, inline.astype(np.uint8), limits, self.inline)
        self._times = np.zeros(n)
        self._scratch = _Scratch(
            np.empty(n, np.int32), np.empty(n, np.int32), np.full(n, -1, np.int64), np.zeros(1, np.int64),
            np.empty(limits.max_duplicates + 1, np.int32), np.empty(limits.max_duplicates + 1, np.int32),
            np.empty(limits.max_inputs + 1, np.int32), np.empty(n, np.bool_), np.empty(n),
        )  # fmt: skip
        self.cost = self._price_state()

    def _price_state(self) -> float:
        return float(runtime_on_one_device(self._f, self.inline, self._device, self._work, self._times))

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] seconds after flipping each op alone (the current price where the flip is not legal)."""
        out = np.empty(len(ops))
        _price_flips(self._f, self.inline, self._times, self.cost, ops, self._limits, self._device, self._work,
                     self._scratch, out)  # fmt: skip
        return out

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state."""
        requests = self.inline.astype(np.uint8)
        requests[op] = 1 - requests[op]
        decode(self._f, requests, self._limits, self.inline)
        self.cost = self._price_state()


@njit(cache=True, nogil=True)
def _price_flips(f: Fusible, inline: NDArray[np.bool_], times: F64, cost: float, ops: I64, limits: Limits,
                 device: DeviceConstants, w: Workspace, s: _Scratch, out: F64) -> None:  # fmt: skip
    for k in range(len(ops)):
        op = ops[k]
        out[k] = cost
        if not f.can_inline[op]:
            continue
        inline[op] = not inline[op]
        count = _touched_kernels(f, op, inline, limits, s)
        if count == _CASCADE:
            out[k] = _price_again(f, op, inline, limits, device, w, s)
        elif count != _REFUSED:
            out[k] = cost + _difference(f, op, inline, times, count, device, w, s)
        inline[op] = not inline[op]


@njit(cache=True, nogil=True)
def _touched_kernels(f: Fusible, op: int, inline: NDArray[np.bool_], limits: Limits, s: _Scratch) -> int:
    """Roots of the kernels that contain `op` when inlined, in s.roots; their number, or _REFUSED, or _CASCADE."""
    s.stamp[0] += 1
    count = find_roots(f, op, inline, limits.max_duplicates, s.roots, s.stack, s.seen, s.stamp[0])
    if count == 0 or count > limits.max_duplicates:
        return _REFUSED
    cascade = False
    for i in range(count):
        verdict = _relegalise(f, s.roots[i], op, count, inline, limits, s)
        if verdict == _REFUSED:
            return _REFUSED
        cascade |= verdict == _CASCADE
    if not inline[op] and not cascade:
        cascade = _relegalise(f, op, op, 1, inline, limits, s) != 0
    return _CASCADE if cascade else count


@njit(cache=True, nogil=True)
def _relegalise(f: Fusible, root: int, flipped: int, duplicates: int, inline: NDArray[np.bool_], limits: Limits,
                s: _Scratch) -> int:  # fmt: skip
    """Repeats the decoder's decisions for one kernel. 0 = all members accepted again, _REFUSED = the flipped op itself is
    not, _CASCADE = another op is not."""
    s.stamp[0] += 1
    size = gather(f, root, inline, s.members, s.seen, s.stamp[0])
    inputs = start_kernel(f, root, limits.max_inputs, s.inputs)
    heavy = f.heavy[root] > 0
    for i in range(1, size):
        op = s.members[i]
        verdict = _REFUSED if op == flipped else _CASCADE
        s.stamp[0] += 1
        count = duplicates
        if op != flipped:
            count = find_roots(f, op, inline, limits.max_duplicates, s.roots_of_member, s.stack, s.seen, s.stamp[0])
        if i >= limits.max_ops or count > limits.max_duplicates or not fits_root(f, op, root, count):
            return verdict
        if (f.heavy[op] > 0 and heavy) or inputs > limits.max_inputs:
            return verdict
        inputs = join_kernel(f, op, limits.max_inputs, s.inputs, inputs)
        if inputs > limits.max_inputs:
            return verdict
        heavy |= f.heavy[op] > 0
    return 0


@njit(cache=True, nogil=True)
def _difference(f: Fusible, op: int, inline: NDArray[np.bool_], times: F64, count: int, device: DeviceConstants,
                w: Workspace, s: _Scratch) -> float:  # fmt: skip
    delta = -times[op]
    for i in range(count):
        delta += _time_of(f, s.roots[i], inline, device, w) - times[s.roots[i]]
    if not inline[op]:
        delta += _time_of(f, op, inline, device, w)
    return delta


@njit(cache=True, nogil=True)
def _time_of(f: Fusible, root: int, inline: NDArray[np.bool_], device: DeviceConstants, w: Workspace) -> float:
    work = kernel_work(f, root, inline, w)
    seconds = kernel_time(f, root, work, w, device)
    clear(f, work, w)
    return seconds


@njit(cache=True, nogil=True)
def _price_again(f: Fusible, op: int, inline: NDArray[np.bool_], limits: Limits, device: DeviceConstants, w: Workspace,
                 s: _Scratch) -> float:  # fmt: skip
    """The price by full legalisation: `inline` holds the request with the flip made."""
    requests = np.empty(len(inline), np.uint8)
    for i in range(len(inline)):
        requests[i] = inline[i]
    decode(f, requests, limits, s.trial)
    return runtime_on_one_device(f, s.trial, device, w, s.times)
