"""`inline_all`; and `xla_priority`, XLA's priority fusion for GPUs, by XLA's own cost model. From its `priority_fusion`
pass (2024).

Greedy over producers: a producer is fused into all its users or into none. priority = time unfused - time fused; the
largest goes first, ties to the larger id, negative ones never; only the changed neighbourhood is scored again.

Refused, as in XLA: ops that cannot be inlined (outputs, opaque ops), a reduction into a reduction, an epilogue that
would turn a reduction kernel into a loop. Also anything into a matrix product (a library call), and more than 96
operands and outputs. XLA's limit on code size is played by the task's cap on ops per kernel; its epilogues of matrix
products, which another pass finds, are left to the same priorities. Kernels are priced whole, where XLA adds up pairs.

Shape legend: N ops.
"""

import heapq
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import ConfigError
from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I32, I64, Graph
from graphopt.core.kernels import KernelLimits, find_roots, fits_root, gather, join_kernel, start_kernel
from graphopt.core.machine import Device
from graphopt.core.plan import Decision, Role
from graphopt.core.utils.compiled import njit
from graphopt.costs.one_kernel.kernel_time import (
    Workspace,
    clear,
    device_constants,
    kernel_time,
    kernel_work,
    workspace,
)
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import Optimizer

LAUNCH = 1e-6  # s, XLA's assumption for every kernel
MAX_OPERANDS = 95  # 96 with the one output
SIGNIFICANT = 16.0  # a reduction over fewer elements is emitted as a loop anyway
REFUSED = -np.inf


class InlineAll(Optimizer):
    """Every op is computed inside its consumers wherever fusion is legal: the greedy answer. One evaluation."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        ops = problem.graph.num_ops
        answer(problem, np.ones(ops, np.bool_), np.arange(ops))


class XlaPriority(Optimizer):
    """XLA's choice for the machine's first device; one evaluation."""

    needs_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        answer(problem, *xla_choice(problem.graph, problem.task))


def xla_models(device: Device) -> bool:
    """Whether a device has the fields that XLA's model reads."""
    return min(device.clock, device.cores, device.fpus_per_core) > 0


def xla_choice(graph: Graph, task: AssignTask) -> tuple[NDArray[np.bool_], I64]:
    """`priority_fusion` for a task's first device, within the task's caps on kernels or XLA's own."""
    return priority_fusion(graph, task.machine.devices[0], task.limits or KernelLimits(1000, MAX_OPERANDS, 64))


def priority_fusion(graph: Graph, device: Device, limits: KernelLimits) -> tuple[NDArray[np.bool_], I64]:
    """Flags [N] of the inlined ops (views among them), and the order [N] in which they were inlined.

    Reads clock, cores, fpus_per_core, l2_bytes, bandwidth and contraction_flops of the device, for any `fusion_model`;
    ConfigError where the first three are missing.
    """
    if not xla_models(device):
        raise ConfigError(
            f"XLA's priority fusion needs clock, cores and fpus_per_core of device {device.name!r}; choose a machine "
            "that describes a GPU, or give them as machine.devices.NAME.clock=..."
        )
    modelled = device_constants([replace(device, fusion_model="xla_gpu", launch=LAUNCH)])
    capped = limits._replace(max_inputs=min(limits.max_inputs, MAX_OPERANDS))
    f, n = fusible(graph), graph.num_ops
    scratch = _FusionScratch(
        np.empty(n, np.int32), np.empty(n, np.int32), np.full(n, -1, np.int64), np.zeros(1, np.int64),
        np.empty(capped.max_duplicates + 1, np.int64), np.empty(capped.max_duplicates + 1, np.int64),
        np.empty(capped.max_inputs + 1, np.int32),
    )  # fmt: skip
    inline = f.op["is_view"].copy()
    rank = np.zeros(n, np.int64)
    _greedy(f, capped, modelled, workspace(graph), scratch, inline, rank)
    return inline, rank


class _FusionScratch(NamedTuple):
    members: I32  # [N]
    stack: I32  # [N]
    seen: I64  # [N]
    stamp: I64  # [1]
    roots: I64  # [max_duplicates + 1] kernels that the producer joins
    others: I64  # [max_duplicates + 1]
    inputs: I32  # [max_inputs + 1]


@njit(cache=True, nogil=True)
def _greedy(f: Fusible, limits: KernelLimits, device: NDArray[np.void], w: Workspace, s: _FusionScratch,
            inline: NDArray[np.bool_], rank: I64) -> None:  # fmt: skip
    """Writes the flags and the order of fusion."""
    n = len(f.op)
    times = np.zeros(n)
    version = np.zeros(n, np.int64)
    for op in range(n):
        if not inline[op]:
            times[op] = _time(f, op, inline, device, w)
    queue = [(0.0, 0, np.int64(0))]
    queue.pop()
    for op in range(n):
        _push(queue, op, _priority(f, op, limits, device, w, s, inline, times), version)
    changed = np.empty(n, np.int64)
    fused = 0
    while len(queue) > 0:
        _, negative_op, when = heapq.heappop(queue)
        op = -negative_op
        if when != version[op] or inline[op]:
            continue
        inline[op] = True
        rank[op] = fused
        fused += 1
        for i in range(_neighbourhood(f, op, inline, limits, s, device, w, times, changed)):
            version[changed[i]] += 1
            _push(queue, changed[i], _priority(f, changed[i], limits, device, w, s, inline, times), version)


@njit(cache=True, nogil=True)
def _push(queue, op, priority, version):  # type: ignore[no-untyped-def]
    if priority >= 0.0:
        heapq.heappush(queue, (-priority, -op, version[op]))


@njit(cache=True, nogil=True)
def _time(f: Fusible, root: int, inline: NDArray[np.bool_], device: NDArray[np.void], w: Workspace) -> float:
    work = kernel_work(f, root, inline, w)
    seconds: float = kernel_time(f, root, work, w, device[0])
    clear(f, work, w)
    return seconds


@njit(cache=True, nogil=True)
def _priority(f: Fusible, op: int, limits: KernelLimits, device: NDArray[np.void], w: Workspace, s: _FusionScratch,
              inline: NDArray[np.bool_], times: F64) -> float:  # fmt: skip
    """Seconds saved by fusing `op` into all its users, or REFUSED."""
    if inline[op] or not f.op[op].can_inline:
        return REFUSED
    for e in range(f.op[op].out_start, f.op[op].out_end):
        if f.op[f.out_op[e]].heavy == 2:
            return REFUSED
    inline[op] = True
    saved = _saving(f, op, limits, device, w, s, inline, times)
    inline[op] = False
    return saved


@njit(cache=True, nogil=True)
def _saving(f: Fusible, op: int, limits: KernelLimits, device: NDArray[np.void], w: Workspace, s: _FusionScratch,
            inline: NDArray[np.bool_], times: F64) -> float:  # fmt: skip
    count = _roots(f, op, limits.max_duplicates, s.roots, inline, s)
    if count == 0 or count > limits.max_duplicates or not _copies_fit(f, op, limits, inline, s):
        return REFUSED
    saved: float = times[op]
    for i in range(count):
        root = s.roots[i]
        if not _accepts(f, root, limits, inline, s):
            return REFUSED
        saved += times[root] - _time(f, root, inline, device, w)
    return saved


@njit(cache=True, nogil=True)
def _roots(f: Fusible, op: int, most: int, roots: I64, inline: NDArray[np.bool_], s: _FusionScratch) -> int:
    s.stamp[0] += 1
    return find_roots(f, op, inline, most, roots, s.stack, s.seen, s.stamp[0])


@njit(cache=True, nogil=True)
def _copies_fit(f: Fusible, op: int, limits: KernelLimits, inline: NDArray[np.bool_], s: _FusionScratch) -> bool:
    """May every op of the kernel of `op` be computed as often as the fusion asks for?"""
    s.stamp[0] += 1
    size = gather(f, op, inline, s.members, s.seen, s.stamp[0])
    for i in range(size):
        member: Any = np.int64(s.members[i])
        most = 1 if f.op[member].heavy > 0 else limits.max_duplicates
        if _roots(f, member, most, s.others, inline, s) > most:
            return False
    return True


@njit(cache=True, nogil=True)
def _accepts(f: Fusible, root: int, limits: KernelLimits, inline: NDArray[np.bool_], s: _FusionScratch) -> bool:
    """Is the kernel of `root` within the caps, built in the order of the task's decoder, and one that XLA emits?"""
    s.stamp[0] += 1
    size = gather(f, root, inline, s.members, s.seen, s.stamp[0])
    if size > limits.max_ops:
        return False
    count = start_kernel(f, root, limits.max_inputs, s.inputs)
    heavy = f.op[root].heavy > 0
    for i in range(1, size):
        op = s.members[i]
        if not fits_root(f, op, root, 1) or (f.op[op].heavy > 0 and heavy):
            return False
        looped = f.op[op].numel != f.op[root].numel and f.op[op].space >= SIGNIFICANT * f.op[op].numel
        if f.op[op].heavy == 1 and looped:
            return False
        heavy |= f.op[op].heavy > 0
        count = join_kernel(f, op, limits.max_inputs, s.inputs, count)
        if count > limits.max_inputs:
            return False
    return True


@njit(cache=True, nogil=True)
def _neighbourhood(f: Fusible, op: int, inline: NDArray[np.bool_], limits: KernelLimits, s: _FusionScratch,
                   device: NDArray[np.void], w: Workspace, times: F64, changed: I64) -> int:  # fmt: skip
    """After fusing `op`: prices the kernels it joined; fills `changed` with their roots and stored operands."""
    kernels = _roots(f, op, limits.max_duplicates, s.roots, inline, s)
    for i in range(kernels):
        times[s.roots[i]] = _time(f, s.roots[i], inline, device, w)
    s.stamp[0] += 1
    mark, count = s.stamp[0], 0
    for i in range(kernels):
        w.stamp[0] += 1
        size = gather(f, s.roots[i], inline, s.members, w.seen, w.stamp[0])
        for m in range(size):
            member = s.members[m]
            if m == 0 and s.seen[member] != mark:
                s.seen[member] = mark
                changed[count] = member
                count += 1
            for e in range(f.op[member].in_start, f.op[member].in_end):
                source = f.edge[e].op
                if source >= 0 and not inline[source] and s.seen[source] != mark:
                    s.seen[source] = mark
                    changed[count] = source
                    count += 1
    return count


def answer(problem: AssignProblem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> None:
    """Answers with the flags `inline` [N]: one evaluation, or a commitment where there is no budget.

    rank: [N] order in which the rule inlined the ops, from 0.
    """
    decision = as_decision(problem, inline, rank)
    if problem.open:
        problem.cost(decision[None])
    else:
        problem.commit(decision)


def as_decision(problem: AssignProblem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> Decision:
    """[N, H] the initial decision with its fusion head replaced where an op has a choice.

    With K choices stored ops get 0, inlined ones K-1 (inlined first) to 1. Raises Incompatible when the task decides no
    fusion.
    """
    column = problem.task.column(Role.FUSION)
    most = problem.task.heads[column].count - 1
    order = np.argsort(np.argsort(np.where(inline, rank, np.iinfo(np.int64).max), kind="stable"), kind="stable")
    choices = np.where(inline, most - order * most // max(1, int(inline.sum())), 0)
    decision = problem.initial.copy()
    free = problem.task.mask(problem.graph)[:, column]
    decision[free, column] = choices[free]
    return decision
