"""Orders of kernels, as urgencies: of ready kernels the most urgent starts first. Compiled, O(E log N).

Shape legend: N ops (ids without a kernel included), T tensors, E operands of kernels.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np

from graphopt.core.graph import F64, Graph
from graphopt.core.list_schedule import Dependencies
from graphopt.costs.one_kernel.kernel_time import KernelGraph
from graphopt.utils.compiled import njit


class Holdings(NamedTuple):
    """What kernels read and keep, for orders that watch memory. Arrays for Numba."""

    in_ptr: Any  # int64 [N+1]
    in_tensor: Any  # int32 [E] distinct tensors that each kernel reads
    producer: Any  # int32 [T]
    made: Any  # int64 [N] bytes of the results
    size: Any  # int64 [T] bytes that end with the last reader; 0 of weights and graph outputs


def holdings(graph: Graph, kernels: KernelGraph) -> Holdings:
    """The holdings of a kernel graph."""
    stays = graph.is_weight | kernels.keep
    size = np.where(stays, 0, graph.tensor_bytes)
    return Holdings(kernels.in_ptr, kernels.in_tensor, graph.producer, graph.result_bytes, size)


def memory_greedy(work: Holdings) -> F64:
    """Of the ready kernels that one first which adds least live memory: bytes of its results, less those of operands
    that it is the last to read. Ties by op id."""
    order, last = _memory_greedy(work)
    return _as_urgency(order[:last], len(work.made))


def depth_first(needs: Dependencies) -> F64:
    """What an op needs right before it: a walk against the arrows from every sink, in op order."""
    return _as_urgency(_depth_first(needs), len(needs.ptr) - 1)


def _as_urgency(order: Any, ops: int) -> F64:
    urgency = np.full(ops, -float(ops))
    urgency[order] = -np.arange(len(order), dtype=np.float64)
    return urgency


@njit(cache=True, nogil=True)
def _memory_greedy(work):  # type: ignore[no-untyped-def]
    """A heap with late corrections: a kernel's bytes fall when it becomes the only one left to read an operand."""
    in_ptr, in_tensor, producer, made, size = work
    num, tensors = len(made), len(size)
    waiting, bytes_of = np.zeros(num, np.int64), made.copy()
    left, sum_of_readers = np.zeros(tensors, np.int64), np.zeros(tensors, np.int64)
    reader_ptr = np.zeros(tensors + 2, np.int64)
    for n in range(num):
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            waiting[n] += producer[tensor] >= 0
            left[tensor] += 1
            sum_of_readers[tensor] += n
            reader_ptr[tensor + 2] += 1
    reader_ptr, reader = np.cumsum(reader_ptr), np.empty(len(in_tensor), np.int64)
    for n in range(num):
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            reader[reader_ptr[tensor + 1]] = n
            reader_ptr[tensor + 1] += 1
            bytes_of[n] -= size[tensor] if left[tensor] == 1 else 0
    out_ptr = np.searchsorted(producer, np.arange(num + 1))
    done, order, count = np.zeros(num, np.bool_), np.empty(num, np.int64), 0
    ready = [(bytes_of[n], n) for n in range(num) if waiting[n] == 0]
    heapq.heapify(ready)
    while ready:
        score, n = heapq.heappop(ready)
        if done[n] or score != bytes_of[n]:
            continue
        done[n] = True
        order[count] = n
        count += 1
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            left[tensor] -= 1
            sum_of_readers[tensor] -= n
            if left[tensor] == 1 and size[tensor] > 0:
                last = sum_of_readers[tensor]
                bytes_of[last] -= size[tensor]
                if waiting[last] == 0:
                    heapq.heappush(ready, (bytes_of[last], last))
        for tensor in range(out_ptr[n], out_ptr[n + 1]):
            for r in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                waiting[reader[r]] -= 1
                if waiting[reader[r]] == 0:
                    heapq.heappush(ready, (bytes_of[reader[r]], reader[r]))
    return order, count


@njit(cache=True, nogil=True)
def _depth_first(needs):  # type: ignore[no-untyped-def]
    ptr, source = needs.ptr, needs.source
    num = len(ptr) - 1
    read = np.zeros(num, np.bool_)
    for maker in source:
        read[maker] = True
    seen, at, order, count = np.zeros(num, np.bool_), ptr[:-1].copy(), np.empty(num, np.int64), 0
    stack = np.empty(num + 1, np.int64)
    for sink in range(num):
        if read[sink]:
            continue
        stack[0], depth = sink, 1
        seen[sink] = True
        while depth > 0:
            n = stack[depth - 1]
            if at[n] < ptr[n + 1]:
                maker = source[at[n]]
                at[n] += 1
                if not seen[maker]:
                    seen[maker] = True
                    stack[depth] = maker
                    depth += 1
            else:
                depth -= 1
                order[count] = n
                count += 1
    return order
