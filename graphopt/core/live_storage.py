"""`LiveStorage`: the allocations of every node of a program and their last uses, so that any order of ops has a peak.

An op's allocations do not depend on when it runs, so a table of them prices every order exactly. Nodes that have no
place of their own in an order (views, constants) run right before the first op that needs them. `OpStorage` is the same
table op by op, which heuristics and searches for orders look at.

Shape legend: N ops, P nodes, S storages, B orders, K ordered ops.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64, Bool
from graphopt.core.utils.compiled import njit


class LiveStorage(NamedTuple):
    """Arrays for Numba. A CSR is a pair (`_ptr`, column)."""

    base: int  # bytes there before anything runs: inputs, weights, constants
    op_node: I64  # [N] the node that computes an op, -1 for ops that are not ordered
    first_ptr: I64  # [N+2]
    first: I64  # nodes without a place that must have run before each op, and (row N) before the end; in order
    workspace: I64  # [P] bytes that the node adds at its worst moment, results included
    made_ptr: I64  # [P+1]
    made: I64  # storages that each node makes
    read_ptr: I64  # [P+1]
    read: I64  # distinct storages that each node reads, through views too
    size: I64  # [S] bytes
    readers: I64  # [S] nodes that read it
    keep: Bool  # [S] weights, outputs: never freed
    need_ptr: I64  # [N+1]
    need: I64  # distinct ordered ops that each ordered op waits for, through nodes without a place

    @property
    def ordered(self) -> I64:
        """[K] the ops that have a place in orders, as the graph has them."""
        return np.flatnonzero(self.op_node >= 0)


def peaks(table: LiveStorage, orders: NDArray[np.int64]) -> I64:
    """[B] peak bytes of legal orders [B, K]."""
    out = np.empty(len(orders), np.int64)
    _peaks(table, orders, out)
    return out


def orders_of(table: LiveStorage, priority: NDArray[np.floating]) -> I64:
    """[B, K] the orders that priorities [B, N] mean: of ready ops the highest first, ties by op id."""
    rows = np.ascontiguousarray(priority, np.float64)
    found: I64 = _orders(table, *readers_of(table), rows, len(table.ordered))
    return found


def legal(table: LiveStorage, order: I64) -> bool:
    """Whether every ordered op is there once, after all that it waits for."""
    place = np.full(len(table.op_node), len(order))
    place[order] = np.arange(len(order))
    reader = np.repeat(np.arange(len(table.op_node)), np.diff(table.need_ptr))
    return bool(np.array_equal(np.sort(order), table.ordered) and (place[table.need] < place[reader]).all())


def readers_of(table: LiveStorage) -> tuple[I64, I64]:
    """CSR (ptr [N+1], op) of the ordered ops that wait for each op."""
    reader = np.repeat(np.arange(len(table.op_node)), np.diff(table.need_ptr))
    by_need = np.argsort(table.need, kind="stable")
    ptr = np.searchsorted(table.need[by_need], np.arange(len(table.op_node) + 1)).astype(np.int64)
    return ptr, reader[by_need].astype(np.int64)


@njit(cache=True, nogil=True)
def _run(table, node, live, peak, left):  # type: ignore[no-untyped-def]
    """(bytes that live after a node, peak so far)."""
    peak = max(peak, live + table.workspace[node])
    for e in range(table.made_ptr[node], table.made_ptr[node + 1]):
        made = table.made[e]
        if left[made] > 0 or table.keep[made]:
            live += table.size[made]
    for e in range(table.read_ptr[node], table.read_ptr[node + 1]):
        read = table.read[e]
        left[read] -= 1
        if left[read] == 0 and not table.keep[read]:
            live -= table.size[read]
    return live, peak


@njit(cache=True, nogil=True)
def peak_of(table, order, left, done):  # type: ignore[no-untyped-def]
    """Peak bytes of one order [K]; scratch: left [S], done [P]."""
    left[:] = table.readers
    done[:] = False
    live, peak = table.base, table.base
    end = len(table.op_node)
    for i in range(len(order) + 1):
        op = order[i] if i < len(order) else end
        for e in range(table.first_ptr[op], table.first_ptr[op + 1]):
            node = table.first[e]
            if not done[node]:
                done[node] = True
                live, peak = _run(table, node, live, peak, left)
        if op < end:
            live, peak = _run(table, table.op_node[op], live, peak, left)
    return peak


@njit(cache=True, nogil=True)
def _peaks(table, orders, out):  # type: ignore[no-untyped-def]
    left, done = np.empty(len(table.size), np.int64), np.empty(len(table.workspace), np.bool_)
    for b in range(len(orders)):
        out[b] = peak_of(table, orders[b], left, done)


@njit(cache=True, nogil=True)
def _orders(table, ptr, reader, priority, count):  # type: ignore[no-untyped-def]
    orders = np.empty((len(priority), count), np.int64)
    ops = len(table.op_node)
    waiting, heap, rank = np.empty(ops, np.int64), np.empty(ops, np.int64), np.empty(ops, np.int64)
    for b in range(len(priority)):
        by_rank = np.argsort(-priority[b], kind="mergesort")
        rank[by_rank] = np.arange(ops)
        size = 0
        for n in range(ops):
            waiting[n] = table.need_ptr[n + 1] - table.need_ptr[n]
            if table.op_node[n] >= 0 and waiting[n] == 0:
                size = _push(heap, size, rank[n])
        for i in range(count):
            op = by_rank[heap[0]]
            size = _pop(heap, size)
            orders[b, i] = op
            for e in range(ptr[op], ptr[op + 1]):
                waiting[reader[e]] -= 1
                if waiting[reader[e]] == 0:
                    size = _push(heap, size, rank[reader[e]])
    return orders


@njit(cache=True, nogil=True)
def _push(heap, size, key):  # type: ignore[no-untyped-def]
    """The size of a binary heap after a key came in."""
    at = size
    while at > 0 and heap[(at - 1) // 2] > key:
        heap[at] = heap[(at - 1) // 2]
        at = (at - 1) // 2
    heap[at] = key
    return size + 1


@njit(cache=True, nogil=True)
def _pop(heap, size):  # type: ignore[no-untyped-def]
    """The size of a binary heap after its least key went."""
    size -= 1
    key, at = heap[size], 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= key:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = key
    return size


class OpStorage(NamedTuple):
    """`LiveStorage` by ops: results of nodes without a place exist from their first reader on. Arrays for Numba."""

    base: int  # bytes
    workspace: I64  # [N]
    given: Bool  # [S] there from the start, and freed
    made_ptr: I64  # [N+1]
    made: I64  # storages that each op makes and that stay for a while
    read_ptr: I64  # [N+1]
    read: I64  # storages that each op reads
    size: I64  # [S]
    keep: Bool  # [S]
    late: Bool  # [S] made by a node without a place
    need_ptr: I64  # [N+1]
    need: I64
    out_ptr: I64  # [N+1]
    out: I64  # ops that wait for each op


def op_storage(table: LiveStorage) -> OpStorage:
    """The table by ops."""
    ops, late = len(table.op_node), np.ones(len(table.size), np.bool_)
    ordered = table.ordered.tolist()
    made, read = [list[int]() for _ in range(ops)], [list[int]() for _ in range(ops)]
    workspace = np.zeros(ops, np.int64)
    for op in ordered:
        node = int(table.op_node[op])
        workspace[op] = table.workspace[node]
        here = table.made[table.made_ptr[node] : table.made_ptr[node + 1]]
        late[here] = False
        made[op] = [s for s in here.tolist() if table.readers[s] or table.keep[s]]
        read[op] = table.read[table.read_ptr[node] : table.read_ptr[node + 1]].tolist()
    there = np.ones(len(late), np.bool_)
    there[table.made] = False  # inputs and weights
    return OpStorage(
        table.base, workspace, there & ~table.keep, *_csr(made), *_csr(read), table.size, table.keep,
        late & ~there, table.need_ptr, table.need, *readers_of(table),
    )  # fmt: skip


def _csr(rows: list[list[int]]) -> tuple[I64, I64]:
    ptr = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return ptr, np.array([value for row in rows for value in row], np.int64)
