"""Three orders that TorchInductor considers when it reorders for peak memory (torch/_inductor/memory.py), in our words,
on the ops of a table of storages. Inductor takes the best of them and the order as it is.

Shape legend: N ops, K ordered ops, S storages.
"""

import heapq
from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np

from graphopt.core.errors import Unsolved
from graphopt.core.graph import I64, Bool
from graphopt.core.live_storage import LiveStorage, OpStorage, op_storage
from graphopt.core.plan import Role
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.starts import F32, encode


class CompilerOrder(Optimizer):
    """One evaluation, or the answer to a budget of 0. order: `lpmf` least peak memory first, `bfs`, `dfs`."""

    needs_roles = frozenset({Role.PRIORITY})
    needs_cost = frozenset({"storage"})
    knows_roles = frozenset({Role.PRIORITY})

    def __init__(self, *, name: str, order: Literal["lpmf", "bfs", "dfs"]) -> None:
        self.name, self.order = name, order

    def solve(self, problem: AssignProblem) -> None:
        keys = keys_of(problem, ORDERS[self.order](storage_of(problem)))
        problem.commit_keys(keys)
        if problem.open:
            problem.cost_keys(keys[None])


def storage_of(problem: AssignProblem) -> LiveStorage:
    """The problem's table. Raises Unsolved where prices are of something else."""
    if problem.storage is None:
        raise Unsolved("this algorithm orders ops by what they allocate; take cost=live_bytes")
    return problem.storage


def keys_of(problem: AssignProblem, order: I64) -> F32:
    """[keys] of an order [K]."""
    urgency = np.full(problem.graph.num_ops, -np.inf)
    urgency[order] = -np.arange(len(order), dtype=np.float64)
    return encode(problem, np.zeros(problem.graph.num_ops, np.int16), urgency)


def lpmf(table: LiveStorage) -> I64:
    """Least peak memory first. Among ready ops that do not raise the peak so far, the one after which least lives; if
    all raise it, the one that allocates least. Ties by op."""
    ops = op_storage(table)
    made, kept, counted = _made(ops), ops.keep[ops.made], _counted(ops)
    left = np.bincount(ops.read, minlength=len(ops.size)) + ops.keep
    frees = np.zeros(len(made), np.int64)
    for op, storage in _pairs(ops.read_ptr, ops.read):
        frees[op] += ops.size[storage] * (left[storage] == 1) * counted[storage]
    live = int(ops.size[ops.given].sum())
    gap = max(live, int(ops.size[ops.made[kept]].sum())) - live
    waiting, order = np.diff(ops.need_ptr), list[int]()
    ready = {int(op) for op in table.ordered if waiting[op] == 0}
    readers = _readers(ops)
    while ready:
        op = min(ready, key=lambda n: (made[n] if made[n] > gap else 0, made[n] - frees[n], n))
        ready.remove(op)
        order.append(op)
        highest = max(live + gap, live + made[op])
        live += made[op] - frees[op]
        gap = highest - live
        for reader in ops.out[ops.out_ptr[op] : ops.out_ptr[op + 1]].tolist():
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready.add(reader)
        for storage in ops.read[ops.read_ptr[op] : ops.read_ptr[op + 1]].tolist():
            left[storage] -= 1
            if left[storage] == 1 and counted[storage]:
                frees[readers[storage]] += ops.size[storage]
    return np.array(order, np.int64)


def bfs(table: LiveStorage) -> I64:
    """First in, first out: of ready ops the one whose predecessors ran earliest, their places compared in turn."""
    ops, place = op_storage(table), dict[int, int]()
    waiting = np.diff(ops.need_ptr)
    ready: list[tuple[list[int], int]] = [([], int(op)) for op in table.ordered if waiting[op] == 0]
    while ready:
        op = heapq.heappop(ready)[1]
        place[op] = len(place)
        for reader in ops.out[ops.out_ptr[op] : ops.out_ptr[op + 1]].tolist():
            waiting[reader] -= 1
            if waiting[reader] == 0:
                needs = ops.need[ops.need_ptr[reader] : ops.need_ptr[reader + 1]].tolist()
                heapq.heappush(ready, (sorted(place[n] for n in needs), reader))
    return np.array(list(place), np.int64)


def dfs(table: LiveStorage) -> I64:
    """An op's inputs run right before it; smaller ops, by the bytes that they read and make, are visited first."""
    ops = op_storage(table)
    touched, counted = _made(ops), _counted(ops)
    for op, storage in _pairs(ops.read_ptr, ops.read):
        touched[op] += ops.size[storage] * counted[storage]

    def visits(found: I64) -> Iterator[int]:
        return iter(sorted(found.tolist(), key=lambda n: (touched[n], n)))

    seen, order = set[int](), list[int]()
    for root in visits(table.ordered):
        stack = [(root, visits(ops.need[ops.need_ptr[root] : ops.need_ptr[root + 1]]))] if root not in seen else []
        seen.add(root)
        while stack:
            op, waiting = stack[-1]
            need = next((n for n in waiting if n not in seen), None)
            if need is None:
                order.append(stack.pop()[0])
            else:
                seen.add(need)
                stack.append((need, visits(ops.need[ops.need_ptr[need] : ops.need_ptr[need + 1]])))
    return np.array(order, np.int64)


ORDERS: dict[str, Callable[[LiveStorage], I64]] = {"lpmf": lpmf, "bfs": bfs, "dfs": dfs}


def _made(ops: OpStorage) -> I64:
    """[N] bytes of each op's results that stay."""
    maker = np.repeat(np.arange(len(ops.workspace)), np.diff(ops.made_ptr))
    return np.bincount(maker, ops.size[ops.made], len(ops.workspace)).astype(np.int64)


def _readers(ops: OpStorage) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for op, storage in _pairs(ops.read_ptr, ops.read):
        found.setdefault(storage, []).append(op)
    return found


def _counted(ops: OpStorage) -> Bool:
    """[S] storages that Inductor counts: results, and inputs that are given away; neither weights nor constants."""
    counted = ops.given.copy()
    counted[ops.made] = True
    return counted


def _pairs(ptr: I64, column: I64) -> Iterator[tuple[int, int]]:
    return zip(np.repeat(np.arange(len(ptr) - 1), np.diff(ptr)).tolist(), column.tolist())
