"""Kernels from store/inline flags: the legal fusions, independent of their costs.

A kernel is one stored op plus every inlined op that it needs, found backwards through inlined ops; an op with several
consumers is computed in each of their kernels. So any flags give an acyclic set of kernels. `legalise` keeps requests
that also satisfy: graph outputs and opaque ops are stored; a kernel holds at most one reduction or contraction, which
is inlined only where iteration spaces match; and the caps of `KernelLimits`.

Shape legend: N ops, T tensors, E operand edges after views are resolved, B plans.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import I64, Bool, Graph
from graphopt.core.utils.compiled import njit

KEEP, INLINE, INLINE_ONCE = 0, 1, 2  # requests: store; inline; inline unless that duplicates the op


class KernelLimits(NamedTuple):
    """Caps that the compiler's default and every learned or searched decision obey alike."""

    max_ops: int  # non-view ops per kernel
    max_inputs: int  # distinct tensors read by a kernel
    max_duplicates: int  # kernels in which one op is computed


def legalise(graph: Graph, requests: NDArray[np.uint8], limits: KernelLimits) -> Bool:
    """[B, N] legal inline flags of requests [B, N] (KEEP, INLINE, INLINE_ONCE).

    Ops are decided from the outputs backwards, so an op is accepted or refused knowing the kernels it would join. The
    result is a fixed point: legalising it again changes nothing.
    """
    f = fusible(graph)
    out = np.empty(requests.shape, np.bool_)
    for b in range(len(requests)):
        decode(f, requests[b], limits, out[b])
    return out


def legalise_by_priority(graph: Graph, levels: NDArray[np.int16], limits: KernelLimits) -> Bool:
    """[B, N] legal inline flags when ops are tried in descending level (ties: later ops first); level 0 is stored.

    GO (section 2.1 of the paper): fusion priorities replace the topological order in which candidates are fused.
    """
    f = fusible(graph)
    out = np.empty(levels.shape, np.bool_)
    for b in range(len(levels)):
        order = np.argsort(-levels[b].astype(np.int64) * graph.num_ops - np.arange(graph.num_ops), kind="stable")
        decode_ordered(f, order[levels[b][order] > 0], limits, out[b])
    return out


def default_inline(graph: Graph, limits: KernelLimits) -> Bool:
    """[N] the compiler's rule, as XLA documents it, with our caps. Cheap elementwise and layout ops are inlined. An
    expensive op, a reduction or a contraction is never duplicated, and nothing is put in front of a contraction."""
    f = fusible(graph)
    request = np.where(f.op["expensive"], INLINE_ONCE, INLINE).astype(np.uint8)
    request[_feeds_contraction(f)] = KEEP
    inline: Bool = legalise(graph, request[None], limits)[0]
    return inline


def _feeds_contraction(f: Fusible) -> Bool:
    contraction = np.repeat(f.op["heavy"] == 2, f.op["in_end"] - f.op["in_start"])
    out: Bool = np.zeros(len(f.op), np.bool_)
    out[f.edge["op"][contraction & (f.edge["op"] >= 0)]] = True
    return out


@njit(cache=True, nogil=True, forceinline=True)
def fits_root(f: Fusible, op: int, root: int, duplicates: int) -> bool:
    """Static rules for computing `op` in the kernel of `root`, when it would be computed in `duplicates` kernels."""
    if f.op[op].heavy == 0:
        return True
    if duplicates > 1 or not f.op[root].elementwise:
        return False
    if f.op[op].heavy == 2:
        return bool(f.op[root].numel == f.op[op].numel)
    return bool(f.op[root].numel == f.op[op].numel or f.op[root].numel == f.op[op].space)


@njit(cache=True, nogil=True)
def start_kernel(f: Fusible, root: int, limit: int, inputs: NDArray[np.int32]) -> int:
    """Fills the distinct inputs of the kernel that holds `root` alone; returns their number (limit + 1 = too many)."""
    count = 0
    for e in range(f.op[root].in_start, f.op[root].in_end):
        count = _add_input(inputs, count, limit, f.edge[e].tensor)
    return count


@njit(cache=True, nogil=True, forceinline=True)
def _add_input(inputs: NDArray[np.int32], count: int, limit: int, tensor: int) -> int:
    if count > limit:
        return count
    known = False
    for i in range(count):  # no early end: a mispredicted branch costs more than it saves
        known |= inputs[i] == tensor
    inputs[count] = tensor
    return count + (not known)


@njit(cache=True, nogil=True, forceinline=True)
def join_kernel(f: Fusible, op: int, limit: int, inputs: NDArray[np.int32], count: int) -> int:
    """Replaces the results of `op` among the inputs by its own operands; returns the new number (limit + 1 = refused,
    `inputs` then undefined)."""
    if count > limit:
        return count
    kept, first, last = 0, f.op[op].result_start, f.op[op].result_end
    for i in range(count):
        tensor = inputs[i]
        inputs[kept] = tensor
        kept += not (first <= tensor < last)
    for e in range(f.op[op].in_start, f.op[op].in_end):
        kept = _add_input(inputs, kept, limit, f.edge[e].tensor)
    return kept


@njit(cache=True, nogil=True)
def decode(f: Fusible, requests: NDArray[np.uint8], limits: KernelLimits, inline: NDArray[np.bool_]) -> None:
    """Writes the legal flags of `requests` into `inline` [N], deciding ops from the last to the first."""
    n = len(f.op)
    most, cap = limits.max_duplicates, limits.max_inputs
    roots = np.empty((n, most), np.int32)
    num_roots = np.zeros(n, np.int32)
    inputs = np.empty((n, cap + 1), np.int32)
    num_inputs = np.empty(n, np.int32)
    num_ops = np.ones(n, np.int32)
    has_heavy = np.empty(n, np.bool_)
    for op in range(n):
        has_heavy[op] = f.op[op].heavy > 0
    trial = np.empty((most, cap + 1), np.int32)
    trial_count = np.empty(most, np.int32)
    for op in range(n - 1, -1, -1):
        inline[op] = f.op[op].is_view
        if f.op[op].is_view:
            continue
        if requests[op] != 0 and f.op[op].can_inline:
            count = _union_of_roots(f, op, inline, roots, num_roots, most)
            wanted = 0 < count <= most and (requests[op] == 1 or count == 1)
            if wanted and _all_accept(
                f, op, limits, roots[op], count, inputs, num_inputs, num_ops, has_heavy, trial, trial_count
            ):
                inline[op] = True
                num_roots[op] = count
                for i in range(count):
                    root = roots[op, i]
                    for j in range(trial_count[i]):
                        inputs[root, j] = trial[i, j]
                    num_inputs[root] = trial_count[i]
                    num_ops[root] += 1
                    has_heavy[root] |= f.op[op].heavy > 0
                continue
        num_inputs[op] = start_kernel(f, op, cap, inputs[op])


@njit(cache=True, nogil=True)
def _union_of_roots(f: Fusible, op: int, inline: NDArray[np.bool_], roots: NDArray[np.int32],
                    num_roots: NDArray[np.int32], most: int) -> int:  # fmt: skip
    """Kernels that need `op`: fills roots[op], returns their number (most + 1 = too many)."""
    count = 0
    for e in range(f.op[op].out_start, f.op[op].out_end):
        consumer = f.out_op[e]
        for i in range(num_roots[consumer] if inline[consumer] else 1):
            root = roots[consumer, i] if inline[consumer] else consumer
            known = False
            for j in range(count):
                known |= roots[op, j] == root
            if not known:
                if count == most:
                    return most + 1
                roots[op, count] = root
                count += 1
    return count


@njit(cache=True, nogil=True)
def _all_accept(f: Fusible, op: int, limits: KernelLimits, roots: NDArray[np.int32], count: int,
                inputs: NDArray[np.int32], num_inputs: NDArray[np.int32], num_ops: NDArray[np.int32],
                has_heavy: NDArray[np.bool_], trial: NDArray[np.int32],
                trial_count: NDArray[np.int32]) -> bool:  # fmt: skip
    for i in range(count):
        root = roots[i]
        if (
            num_ops[root] >= limits.max_ops
            or not fits_root(f, op, root, count)
            or (f.op[op].heavy > 0 and has_heavy[root])
        ):
            return False
        if num_inputs[root] > limits.max_inputs:
            return False
        for j in range(num_inputs[root]):
            trial[i, j] = inputs[root, j]
        trial_count[i] = join_kernel(f, op, limits.max_inputs, trial[i], num_inputs[root])
        if trial_count[i] > limits.max_inputs:
            return False
    return True


@njit(cache=True, nogil=True, forceinline=True)
def find_roots(f: Fusible, op: int, inline: NDArray[np.bool_], most: int, roots: NDArray[np.int64],
               stack: NDArray[np.int32], seen: NDArray[np.int64], stamp: int) -> int:  # fmt: skip
    """Kernels in which an inlined `op` is computed, by walking forwards; most + 1 = too many. `seen` is [N] scratch."""
    count, top = 0, 1
    stack[0] = op
    while top > 0:
        top -= 1
        here = stack[top]
        for e in range(f.op[here].out_start, f.op[here].out_end):
            consumer = f.out_op[e]
            if seen[consumer] == stamp:
                continue
            seen[consumer] = stamp
            if inline[consumer]:
                stack[top] = consumer
                top += 1
            else:
                if count == most:
                    return most + 1
                roots[count] = consumer
                count += 1
    return count


@njit(cache=True, nogil=True)
def gather(
    f: Fusible, root: int, inline: NDArray[np.bool_], members: NDArray[np.int32], seen: NDArray[np.int64], stamp: int
) -> int:
    """Ops of the kernel of `root` in descending order, root first; returns their number. `seen` is [N] scratch."""
    members[0] = root
    count, done = 1, 0
    while done < count:
        here = members[done]
        done += 1
        for e in range(f.op[here].in_start, f.op[here].in_end):
            op = f.edge[e].op
            if op >= 0 and inline[op] and seen[op] != stamp:
                seen[op] = stamp
                members[count] = op
                count += 1
    _sort_descending(members, count)
    return count


@njit(cache=True, nogil=True)
def _sort_descending(members: NDArray[np.int32], count: int) -> None:
    """All but the first, by Shell's sort: NumPy's takes a second to compile, and most kernels are small."""
    gap = 1
    while 9 * gap < count - 1:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(1 + gap, count):
            value, j = members[i], i
            while j > gap and members[j - gap] < value:
                members[j] = members[j - gap]
                j -= gap
            members[j] = value
        gap //= 3


@njit(cache=True, nogil=True)
def decode_ordered(f: Fusible, order: I64, limits: KernelLimits, inline: NDArray[np.bool_]) -> None:
    """Tries to inline ops in the given order; each is kept when every kernel that it would join stays legal."""
    n = len(f.op)
    for op in range(n):
        inline[op] = f.op[op].is_view
    members, stack, roots = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(limits.max_duplicates, np.int64)
    roots_of_member = np.empty(limits.max_duplicates, np.int64)
    inputs = np.empty(limits.max_inputs + 1, np.int32)
    seen = np.full(n, -1, np.int64)
    stamp = 0
    for op in order:
        if not f.op[op].can_inline:
            continue
        inline[op] = True
        stamp += 1
        count = find_roots(f, op, inline, limits.max_duplicates, roots, stack, seen, stamp)
        legal = 0 < count <= limits.max_duplicates
        for i in range(count if legal else 0):
            stamp += 1
            size = gather(f, roots[i], inline, members, seen, stamp)
            if not kernel_is_legal(f, members, size, inline, limits, inputs):
                legal = False
                break
            stamp += 1
            stamp = _members_within(f, members, size, inline, limits, roots_of_member, stack, seen, stamp)
            if stamp < 0:
                legal = False
                stamp = -stamp
                break
        inline[op] = legal


@njit(cache=True, nogil=True)
def kernel_is_legal(f: Fusible, members: NDArray[np.int32], size: int, inline: NDArray[np.bool_], limits: KernelLimits,
                    inputs: NDArray[np.int32]) -> bool:  # fmt: skip
    """Caps on ops and inputs, and at most one reduction or contraction, for a kernel with the given members."""
    if size > limits.max_ops:
        return False
    root, heavies, count = members[0], 0, 0
    for i in range(size):
        op = members[i]
        heavies += f.op[op].heavy > 0
        if heavies > 1 or (i > 0 and not fits_root(f, op, root, 1)):
            return False
        for e in range(f.op[op].in_start, f.op[op].in_end):
            if f.edge[e].op < 0 or not inline[f.edge[e].op]:
                count = _add_input(inputs, count, limits.max_inputs, f.edge[e].tensor)
    return count <= limits.max_inputs


@njit(cache=True, nogil=True)
def _members_within(f: Fusible, members: NDArray[np.int32], size: int, inline: NDArray[np.bool_], limits: KernelLimits,
                    roots: NDArray[np.int64], stack: NDArray[np.int32], seen: NDArray[np.int64],
                    stamp: int) -> int:  # fmt: skip
    """Checks that no member is computed in too many kernels (one, for reductions and contractions).

    Returns the next stamp, negative when a member is."""
    for i in range(1, size):
        stamp += 1
        most = 1 if f.op[members[i]].heavy > 0 else limits.max_duplicates
        if find_roots(f, members[i], inline, most, roots, stack, seen, stamp) > most:
            return -stamp
    return stamp
