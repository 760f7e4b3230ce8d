"""Exact delta pricing of store/inline flips: only the kernels that a flip touches are legalised and priced again.

Equal to full pricing to the last digit: kernel times are multiples of a power of two, so their sums do not depend on
order, and the decoder's decisions are repeated for every kernel whose content changes, however far a change spreads.

Shape legend: N ops, K flips, C = most kernels that one flip may touch before the whole graph is priced instead.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I32, I64, Bool, Graph
from graphopt.core.kernels import KernelLimits, decode, find_roots, fits_root, gather, join_kernel, start_kernel
from graphopt.core.machine import Device
from graphopt.core.utils.compiled import njit
from graphopt.costs.one_kernel.kernel_time import (
    Workspace,
    clear,
    device_constants,
    kernel_time,
    kernel_work,
    runtime_on_one_device,
    workspace,
)
from graphopt.problems.cost_model import FlipState

_REFUSED, _TOO_FAR = -1, -2
_MOST_KERNELS, _MOST_OPS = 96, 2048


class _FlipScratch(NamedTuple):
    members: I32  # [N]
    stack: I32  # [N]
    seen: I64  # [N]
    stamp: I64  # [1]
    roots: I64  # [max_duplicates + 1] kernels of the op being decided
    dirty: I64  # [C] roots of kernels whose content changes
    inputs: I32  # [C, max_inputs + 1] their input tensors so far
    num_inputs: I64  # [C]
    size: I64  # [C] ops so far
    heavy: Bool  # [C] holds a reduction or contraction
    queue: I64  # ops to decide again
    trial: I32  # [max_duplicates, max_inputs + 1]
    trial_count: I64  # [max_duplicates]
    refused: I64  # inlined ops that the flip makes illegal
    flags: Bool  # [N]
    times: F64  # [N]


def _scratch(n: int, limits: KernelLimits) -> _FlipScratch:
    c, d, i = _MOST_KERNELS, limits.max_duplicates, limits.max_inputs
    return _FlipScratch(
        np.empty(n, np.int32), np.empty(n, np.int32), np.full(n, -1, np.int64), np.zeros(1, np.int64),
        np.empty(d + 1, np.int64), np.empty(c, np.int64), np.empty((c, i + 1), np.int32), np.empty(c, np.int64),
        np.empty(c, np.int64), np.empty(c, np.bool_), np.empty(_MOST_OPS, np.int64), np.empty((d, i + 1), np.int32),
        np.empty(d, np.int64), np.empty(_MOST_OPS, np.int64), np.empty(n, np.bool_), np.empty(n),
    )  # fmt: skip


class FusionFlips:
    """A current state of store/inline flags on one device, and the price of each single flip of it."""

    def __init__(self, graph: Graph, inline: NDArray[np.bool_], device: Device, limits: KernelLimits) -> None:
        self._f, self._limits, self._device = fusible(graph), limits, device_constants([device])
        self._work, self._scratch = workspace(graph), _scratch(graph.num_ops, limits)
        self.inline = np.empty(graph.num_ops, np.bool_)
        self._times = np.zeros(graph.num_ops)
        self._settle(inline.astype(np.uint8))

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] seconds after flipping each op alone (the current price where the flip is not legal)."""
        ops, out = np.ascontiguousarray(ops), np.empty(len(ops))
        _price_flips(self._f, self.inline, self._times, self.cost, ops, self._limits, self._device, self._work,
                     self._scratch, out)  # fmt: skip
        return out

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state: by its delta, or all again where it spreads far or is refused."""
        delta = _apply_flip(self._f, op, self.inline, self._times, self._limits, self._device, self._work,
                            self._scratch)  # fmt: skip
        if not np.isnan(delta):
            self.cost += float(delta)
            return
        requests = self.inline.astype(np.uint8)
        requests[op] = 1 - requests[op]
        self._settle(requests)

    def saved(self) -> FlipState:
        """The current state, to come back to."""
        return FlipState(self.inline.copy(), self._times.copy(), self.cost)

    def restore(self, state: FlipState) -> None:
        """Makes a saved state the current one."""
        self.inline[:], self._times[:], self.cost = state

    def _settle(self, requests: NDArray[np.uint8]) -> None:
        decode(self._f, requests, self._limits, self.inline)
        self.cost = float(runtime_on_one_device(self._f, self.inline, self._device[0], self._work, self._times))


@njit(cache=True, nogil=True)
def _price_flips(f: Fusible, inline: NDArray[np.bool_], times: F64, cost: float, ops: I64, limits: KernelLimits,
                 device: NDArray[np.void], w: Workspace, s: _FlipScratch, out: F64) -> None:  # fmt: skip
    for k in range(len(ops)):
        op = ops[k]
        out[k] = cost
        if f.op[op].can_inline:
            out[k] += _flip_difference(f, op, inline, times, cost, limits, device, w, s)


@njit(cache=True, nogil=True)
def _flip_difference(f: Fusible, op: int, inline: NDArray[np.bool_], times: F64, cost: float, limits: KernelLimits,
                     device: NDArray[np.void], w: Workspace, s: _FlipScratch) -> float:  # fmt: skip
    inline[op] = not inline[op]
    kernels, refused = _relegalise(f, op, inline, limits, s)
    delta = 0.0
    if kernels == _TOO_FAR:
        delta = _price_all_again(f, inline, limits, device, w, s) - cost
    elif kernels != _REFUSED:
        delta = -times[op] if inline[op] else 0.0
        for i in range(kernels):
            root = s.dirty[i]
            work = kernel_work(f, root, inline, w)
            delta += kernel_time(f, root, work, w, device[0]) - times[root]
            clear(f, work, w)
    for i in range(refused):
        inline[s.refused[i]] = True
    inline[op] = not inline[op]
    return delta


@njit(cache=True, nogil=True)
def _apply_flip(f: Fusible, op: int, inline: NDArray[np.bool_], times: F64, limits: KernelLimits,
                device: NDArray[np.void], w: Workspace, s: _FlipScratch) -> float:  # fmt: skip
    """Flips `op` and prices the kernels that change; returns the change of cost. nan: nothing was changed, since the
    flip is refused or touches too much."""
    if not f.op[op].can_inline:
        return np.nan
    inline[op] = not inline[op]
    kernels, refused = _relegalise(f, op, inline, limits, s)
    if kernels < 0:
        for i in range(refused):
            inline[s.refused[i]] = True
        inline[op] = not inline[op]
        return np.nan
    delta = 0.0
    if inline[op]:
        delta -= times[op]
        times[op] = 0.0
    for i in range(kernels):
        root = s.dirty[i]
        work = kernel_work(f, root, inline, w)
        time = kernel_time(f, root, work, w, device[0])
        clear(f, work, w)
        delta += time - times[root]
        times[root] = time
    return delta


@njit(cache=True, nogil=True)
def _relegalise(
    f: Fusible, flipped: int, inline: NDArray[np.bool_], limits: KernelLimits, s: _FlipScratch
) -> tuple[int, int]:
    """Repeats the decoder's decisions in every kernel that the flip changes, from the last op to the first.

    Returns the number of changed kernels (roots in s.dirty; _REFUSED when the flip itself is illegal, _TOO_FAR when the
    change spreads beyond the scratch space) and the number of ops in s.refused, whose flags are now off.
    """
    s.stamp[0] += 1
    most = limits.max_duplicates
    count = find_roots(f, flipped, inline, most, s.roots, s.stack, s.seen, s.stamp[0])
    if count == 0 or count > most:
        return _REFUSED, 0
    kernels = queued = refused = 0
    for i in range(count):
        kernels, queued = _open_kernel(f, s.roots[i], flipped, inline, limits, s, kernels, queued)
        if kernels == _TOO_FAR:
            return _TOO_FAR, 0
    if inline[flipped]:
        if not _accept(f, flipped, count, kernels, limits, s):
            return _REFUSED, 0
    else:
        kernels, queued = _open_kernel(f, flipped, flipped, inline, limits, s, kernels, queued)
    while queued > 0 and kernels != _TOO_FAR:
        op, queued = _pop_last(s.queue, queued)
        s.stamp[0] += 1
        count = find_roots(f, op, inline, most, s.roots, s.stack, s.seen, s.stamp[0])
        if count <= most and _accept(f, op, count, kernels, limits, s):
            continue
        if refused == _MOST_OPS:
            return _TOO_FAR, refused
        s.refused[refused] = op
        refused += 1
        kernels, queued = _store(f, op, inline, limits, s, kernels, queued)
    return kernels, refused


@njit(cache=True, nogil=True, forceinline=True)
def _store(f: Fusible, op: int, inline: NDArray[np.bool_], limits: KernelLimits, s: _FlipScratch, kernels: int,
           queued: int) -> tuple[int, int]:  # fmt: skip
    """`op` can no longer be inlined: every kernel that it was in changes, and it gets its own."""
    s.stamp[0] += 1
    roots = np.empty(_MOST_KERNELS, np.int64)
    count = find_roots(f, op, inline, _MOST_KERNELS, roots, s.stack, s.seen, s.stamp[0])
    if count > _MOST_KERNELS:
        return _TOO_FAR, queued
    inline[op] = False
    for i in range(count):
        if _index_of(s.dirty, kernels, roots[i]) < 0:
            kernels, queued = _open_kernel(f, roots[i], op, inline, limits, s, kernels, queued)
            if kernels == _TOO_FAR:
                return kernels, queued
    return _open_kernel(f, op, op, inline, limits, s, kernels, queued)


@njit(cache=True, nogil=True)
def _open_kernel(f: Fusible, root: int, below: int, inline: NDArray[np.bool_], limits: KernelLimits, s: _FlipScratch,
                 kernels: int, queued: int) -> tuple[int, int]:  # fmt: skip
    """Marks a kernel as changed from op `below` on: rebuilds its state from the ops after it, queues those before."""
    if kernels == _MOST_KERNELS:
        return _TOO_FAR, queued
    s.stamp[0] += 1
    size = gather(f, root, inline, s.members, s.seen, s.stamp[0])
    if queued + size > _MOST_OPS:
        return _TOO_FAR, queued
    s.dirty[kernels] = root
    s.num_inputs[kernels] = start_kernel(f, root, limits.max_inputs, s.inputs[kernels])
    s.heavy[kernels] = f.op[root].heavy > 0
    s.size[kernels] = 1
    for i in range(1, size):
        op = s.members[i]
        if op > below:
            s.num_inputs[kernels] = join_kernel(f, op, limits.max_inputs, s.inputs[kernels], s.num_inputs[kernels])
            s.heavy[kernels] |= f.op[op].heavy > 0
            s.size[kernels] += 1
        elif op < below and _index_of(s.queue, queued, op) < 0:
            s.queue[queued] = op
            queued += 1
    return kernels + 1, queued


@njit(cache=True, nogil=True, forceinline=True)
def _accept(f: Fusible, op: int, count: int, kernels: int, limits: KernelLimits, s: _FlipScratch) -> bool:
    """The decoder's test for `op` joining the kernels s.roots[:count]; unchanged kernels accept as they did before."""
    for i in range(count):
        root = s.roots[i]
        if not fits_root(f, op, root, count):
            return False
        k = _index_of(s.dirty, kernels, root)
        if k < 0:
            continue
        if s.size[k] >= limits.max_ops or s.num_inputs[k] > limits.max_inputs or (f.op[op].heavy > 0 and s.heavy[k]):
            return False
        for j in range(s.num_inputs[k]):
            s.trial[i, j] = s.inputs[k, j]
        s.trial_count[i] = join_kernel(f, op, limits.max_inputs, s.trial[i], s.num_inputs[k])
        if s.trial_count[i] > limits.max_inputs:
            return False
    for i in range(count):
        k = _index_of(s.dirty, kernels, s.roots[i])
        if k >= 0:
            for j in range(s.trial_count[i]):
                s.inputs[k, j] = s.trial[i, j]
            s.num_inputs[k] = s.trial_count[i]
            s.size[k] += 1
            s.heavy[k] |= f.op[op].heavy > 0
    return True


@njit(cache=True, nogil=True, forceinline=True)
def _index_of(values: I64, count: int, value: int) -> int:
    for i in range(count):
        if values[i] == value:
            return i
    return -1


@njit(cache=True, nogil=True, forceinline=True)
def _pop_last(queue: I64, queued: int) -> tuple[int, int]:
    """Removes the op with the largest id."""
    best = 0
    for i in range(1, queued):
        if queue[i] > queue[best]:
            best = i
    op = queue[best]
    queue[best] = queue[queued - 1]
    return op, queued - 1


@njit(cache=True, nogil=True)
def _price_all_again(f: Fusible, inline: NDArray[np.bool_], limits: KernelLimits, device: NDArray[np.void],
                     w: Workspace, s: _FlipScratch) -> float:  # fmt: skip
    requests = np.empty(len(inline), np.uint8)
    for i in range(len(inline)):
        requests[i] = inline[i]
    decode(f, requests, limits, s.flags)
    return runtime_on_one_device(f, s.flags, device[0], w, s.times)
