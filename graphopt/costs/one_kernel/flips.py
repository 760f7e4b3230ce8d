"""Exact delta pricing of store/inline flags: only the kernels that other requests change are legalised and priced
again.

Equal to full pricing to the last digit, since kernel times are multiples of a power of two, whose sums do not depend on
order. The decoder's decision is repeated for every op that a change may reach, from the last to the first. These are
the ops that a changed kernel computes or reads. Kernels that do not change decide as they did before.

Shape legend: N ops, K flips.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I32, I64, Graph
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

_FEW = 8  # requests of which one is another: from there on everything is legalised and priced
_SMALL = 256  # ops of a graph whose states come again
_PRICES, _STATES = 30_000, 500  # that are kept of such a graph
_EXACT = 8192.0  # s, below which sums do not depend on their order


_KERNEL = np.dtype([
    ("waits", np.int64),  # mark of an op that is to be decided again
    ("dirty", np.int64),  # mark of a stored op whose kernel changes; its content among decided ops:
    ("inputs", np.int32), ("ops", np.int32), ("heavy", np.bool_),
], align=True)  # fmt: skip
_CHANGE = np.dtype([("flipped", np.int32), ("priced", np.int32), ("before", np.float64)])


class _Scratch(NamedTuple):
    """Few arrays, since Numba passes each by its parts. Marks and stamps count changes and walks."""

    members: I32  # [N]
    stack: I32  # [N]
    seen: I64  # [N] stamps
    stamp: I64  # [1]
    roots: I64  # [N] kernels of the op being decided
    kernel: NDArray[np.void]  # [N] _KERNEL
    inputs: I32  # [N, max_inputs + 1] reads of a changing kernel, among decided ops
    trial: I32  # [max_duplicates, max_inputs + 2] the same with one op more, and their number
    change: NDArray[np.void]  # [N] _CHANGE: ops whose flag changed; ops whose time changed, and the time before


def _scratch(n: int, limits: KernelLimits) -> _Scratch:
    kernel, width = np.zeros(n, _KERNEL), limits.max_inputs + 1
    return _Scratch(
        np.empty(n, np.int32), np.empty(n, np.int32), np.full(n, -1, np.int64), np.zeros(1, np.int64),
        np.empty(n, np.int64), kernel, np.empty((n, width), np.int32),
        np.empty((limits.max_duplicates, width + 1), np.int32), np.empty(n, _CHANGE),
    )  # fmt: skip


class FusionFlips:
    """A current state of store/inline flags on one device, and the prices of others near it."""

    def __init__(self, graph: Graph, inline: NDArray[np.bool_], device: Device, limits: KernelLimits) -> None:
        self._f, self._limits, self._device = fusible(graph), limits, device_constants([device])
        self._work, self._scratch = workspace(graph), _scratch(graph.num_ops, limits)
        self.inline = np.empty(graph.num_ops, np.bool_)
        self._times = np.zeros(graph.num_ops)
        self._prices, self._states = dict[bytes, float](), dict[bytes, FlipState]()  # by requests
        self._last: tuple[I64, int, int, float] | None = None  # how to go back: changed requests, flags, times, cost
        self._settle(inline.astype(np.uint8))
        self._requests = self.inline.astype(np.uint8)

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        """[K] seconds after flipping each op alone (the current price where the flip is not legal)."""
        self._last = None
        if len(self.inline) > _SMALL:
            return self._priced(np.ascontiguousarray(ops))
        asked = self._flipped(ops)
        if len(self._prices) + len(asked) > _PRICES:
            self._prices.clear()
        fresh = [k for k, requests in enumerate(asked) if requests not in self._prices]
        self._prices.update(zip([asked[k] for k in fresh], self._priced(ops[fresh]).tolist(), strict=True))
        return np.array([self._prices[requests] for requests in asked])

    def _flipped(self, ops: I64) -> list[bytes]:
        """[K] requests after each flip."""
        requests = np.tile(self._requests, (len(ops), 1))
        requests[np.arange(len(ops)), ops] ^= 1
        return [row.tobytes() for row in requests]

    def _priced(self, ops: I64) -> F64:
        out = np.empty(len(ops))
        if len(ops):
            _price_flips(*self._state(), self.cost, ops, out)  # type: ignore[call-arg]
        return out

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state."""
        asked = self._flipped(np.array([op]))[0] if len(self.inline) <= _SMALL else None
        if asked is not None and asked in self._states:
            return self.restore(self._states[asked])
        self._requests[op] ^= 1
        self._move(np.array([op]))
        self._requests[:], self._last = self.inline, None  # an illegal flag is no request
        if asked is not None:
            self._keep(asked)

    def _keep(self, asked: bytes) -> None:
        """Remembers the current state as the result of requests, and of its own flags."""
        if len(self._states) > _STATES:
            self._states.clear()
        flags = self._requests.tobytes()
        self._states[asked] = self._states[flags] = self.saved()
        self._prices[flags] = self.cost

    def follow(self, requests: NDArray[np.uint8]) -> float:
        """Makes other requests [N], 0 or 1, the current state, with the legal ones as its flags; returns its price.
        Cheap where they are near the state, or near the state before it."""
        if self._last is not None and (requests[self._last[0]] != self._requests[self._last[0]]).all():
            ops, flipped, priced, self.cost = self._last
            _take_back(self._requests, self.inline, self._times, self._scratch, ops, flipped, priced)
        ops, self._last = np.flatnonzero(requests != self._requests), None
        self._requests[:] = requests
        if len(ops) * _FEW > len(requests):
            self._settle(requests)
        else:
            self._move(ops)
        return self.cost

    def saved(self) -> FlipState:
        """The current state, to come back to."""
        return FlipState(self.inline.copy(), self._times.copy(), self.cost)

    def restore(self, state: FlipState) -> None:
        """Makes a saved state the current one."""
        self.inline[:], self._times[:], self.cost = state
        self._requests[:], self._last = self.inline, None

    def _state(self) -> Any:
        return (self._f, self._requests, self.inline, self._times, self._limits, self._device, self._work,
                self._scratch)  # fmt: skip

    def _settle(self, requests: NDArray[np.uint8]) -> None:
        decode(self._f, requests, self._limits, self.inline)
        self.cost = float(runtime_on_one_device(self._f, self.inline, self._device[0], self._work, self._times))

    def _move(self, ops: I64) -> None:
        before = self.cost
        delta, flipped, priced = _move(*self._state(), ops)  # type: ignore[call-arg]
        self.cost, self._last = before + delta, (ops, flipped, priced, before)
        if not max(before, self.cost) < _EXACT:
            self.cost = float(runtime_on_one_device(self._f, self.inline, self._device[0], self._work, self._times))


@njit(cache=True, nogil=True)
def _price_flips(f: Fusible, requests: NDArray[np.uint8], inline: NDArray[np.bool_], times: F64, limits: KernelLimits,
                 device: NDArray[np.void], w: Workspace, s: _Scratch, cost: float, ops: I64, out: F64
                 ) -> None:  # fmt: skip
    for k in range(len(ops)):
        op = ops[k]
        requests[op] ^= 1
        delta, flipped, priced = _move(f, requests, inline, times, limits, device, w, s, ops[k : k + 1])
        out[k] = cost + delta
        _take_back(requests, inline, times, s, ops[k : k + 1], flipped, priced)


@njit(cache=True, nogil=True, forceinline=True)
def _take_back(requests: NDArray[np.uint8], inline: NDArray[np.bool_], times: F64, s: _Scratch, ops: I64, flipped: int,
               priced: int) -> None:  # fmt: skip
    """The state before `_move`."""
    for op in ops:
        requests[op] ^= 1
    for i in range(flipped):
        inline[s.change[i].flipped] = not inline[s.change[i].flipped]
    for i in range(priced):
        times[s.change[i].priced] = s.change[i].before


@njit(cache=True, nogil=True, forceinline=True)
def _move(f: Fusible, requests: NDArray[np.uint8], inline: NDArray[np.bool_], times: F64, limits: KernelLimits,
          device: NDArray[np.void], w: Workspace, s: _Scratch, ops: I64) -> tuple[float, int, int]:  # fmt: skip
    """Flags and times after the requests of `ops` have changed; returns the change of cost and how many flags and times
    changed (s.change)."""
    s.stamp[0] += 1
    mark = s.stamp[0]
    queue: list[Any] = [np.int64(0)]
    queue.pop()
    for op in ops:
        s.kernel[op].waits = mark
        if f.op[op].can_inline:
            heapq.heappush(queue, -op)
    flipped = priced = 0
    while len(queue) > 0:
        op = -heapq.heappop(queue)
        count = _joined(f, op, inline, limits, s, mark) if requests[op] != 0 else 0
        inlined = count > 0
        if inlined == inline[op]:
            continue
        s.change[flipped].flipped = op
        flipped += 1
        inline[op] = True  # so that kernels that hold it, before or after, are found with all that it holds
        if not inlined:
            s.stamp[0] += 1
            count = find_roots(f, op, inline, len(f.op), s.roots, s.stack, s.seen, s.stamp[0])
        s.roots[count] = op
        for i in range(count + 1):
            root = s.roots[i]
            if s.kernel[root].dirty == mark:
                continue
            s.kernel[root].dirty = mark
            s.change[priced].priced = root
            priced += 1
            size = _gathered(f, root, inline, s) if inlined else _hold(f, root, op, inline, limits, s)
            for m in range(size):  # further ops that it computes, or would if that were legal
                for e in range(f.op[s.members[m]].in_start, f.op[s.members[m]].in_end):
                    source = f.edge[e].op
                    if 0 <= source < op and requests[source] != 0 and s.kernel[source].waits != mark:
                        s.kernel[source].waits = mark
                        if f.op[source].can_inline:
                            heapq.heappush(queue, -source)
        inline[op] = inlined
    delta = 0.0
    for i in range(priced):
        kernel: Any = np.int64(s.change[i].priced)
        s.change[i].before = times[kernel]
        times[kernel] = 0.0
        if not inline[kernel]:
            work = kernel_work(f, kernel, inline, w)
            times[kernel] = kernel_time(f, kernel, work, w, device[0])
            clear(f, work, w)
        delta += times[kernel] - s.change[i].before
    return delta, flipped, priced


@njit(cache=True, nogil=True, forceinline=True)
def _gathered(f: Fusible, root: Any, inline: NDArray[np.bool_], s: _Scratch) -> int:
    """Writes the ops of a kernel to s.members; their number."""
    s.stamp[0] += 1
    return gather(f, root, inline, s.members, s.seen, s.stamp[0])


@njit(cache=True, nogil=True, forceinline=True)
def _hold(f: Fusible, root: Any, below: Any, inline: NDArray[np.bool_], limits: KernelLimits, s: _Scratch) -> int:
    """Writes the content of a kernel among ops after `below`, as the decoder has it at that point; `_gathered`."""
    size = _gathered(f, root, inline, s)
    inputs = start_kernel(f, root, limits.max_inputs, s.inputs[root])
    heavy, ops = f.op[root].heavy > 0, 1
    while ops < size and s.members[ops] > below:
        inputs = join_kernel(f, s.members[ops], limits.max_inputs, s.inputs[root], inputs)
        heavy |= f.op[s.members[ops]].heavy > 0
        ops += 1
    s.kernel[root].inputs, s.kernel[root].ops, s.kernel[root].heavy = inputs, ops, heavy
    return size


@njit(cache=True, nogil=True, forceinline=True)
def _joined(f: Fusible, op: Any, inline: NDArray[np.bool_], limits: KernelLimits, s: _Scratch, mark: Any) -> int:
    """The decoder's decision on a request to inline `op`: adds it to kernels (s.roots) and returns how many compute it,
    0 where one refuses. A kernel that does not change accepts the ops that it has held."""
    s.stamp[0] += 1
    count = find_roots(f, op, inline, limits.max_duplicates, s.roots, s.stack, s.seen, s.stamp[0])
    if count > limits.max_duplicates:
        return 0
    for i in range(count):
        root = s.roots[i]
        if s.kernel[root].dirty != mark:
            if inline[op]:
                continue
            _hold(f, root, op, inline, limits, s)
        if (
            s.kernel[root].ops >= limits.max_ops
            or s.kernel[root].inputs > limits.max_inputs
            or not fits_root(f, op, root, count)
            or (f.op[op].heavy > 0 and s.kernel[root].heavy)
        ):
            return 0
        for k in range(s.kernel[root].inputs):
            s.trial[i, k] = s.inputs[root, k]
        s.trial[i, limits.max_inputs + 1] = join_kernel(f, op, limits.max_inputs, s.trial[i], s.kernel[root].inputs)
        if s.trial[i, limits.max_inputs + 1] > limits.max_inputs:
            return 0
    for i in range(count):
        root = s.roots[i]
        if s.kernel[root].dirty == mark or not inline[op]:
            for k in range(s.trial[i, limits.max_inputs + 1]):
                s.inputs[root, k] = s.trial[i, k]
            s.kernel[root].inputs = s.trial[i, limits.max_inputs + 1]
            s.kernel[root].ops += 1
            s.kernel[root].heavy |= f.op[op].heavy > 0
    return count
