"""A lower bound on the peak of every order of ops on one device.

When an op runs, all that it waits for has run and nothing that waits for it has. So whatever is made before it and read
by it or after it lives at that moment, in every order, and so does what is kept and made before it.

Shape legend: N ops, S storages.
"""

import numpy as np

from graphopt.core.graph import I64, Bool
from graphopt.core.live_storage import LiveStorage
from graphopt.core.op_storage import OpStorage, op_storage

MOST_OPS = 8000  # who waits for whom is a matrix of their square


def memory_bound(table: LiveStorage) -> int:
    """Bytes that no order goes below; 0 for graphs of more than `MOST_OPS` ops."""
    ops, ordered = op_storage(table), table.ordered
    if not 0 < len(ordered) <= MOST_OPS:
        return 0
    runs_before = ancestors(ops, ordered)  # [N, N]: of the row's op the column's
    maker = np.full(len(ops.size), -1)
    maker[ops.made] = np.repeat(np.arange(len(runs_before)), np.diff(ops.made_ptr))
    reader = np.repeat(np.arange(len(runs_before)), np.diff(ops.read_ptr))
    by_storage = np.argsort(ops.read, kind="stable")
    parts = np.split(reader[by_storage], np.searchsorted(ops.read[by_storage], np.arange(1, len(ops.size))))
    there = np.full(len(runs_before), ops.base - ops.size[ops.given].sum())
    for storage in np.flatnonzero(ops.given | (maker >= 0)):
        alive = np.ones(len(there), np.bool_) if maker[storage] < 0 else runs_before[:, maker[storage]]
        if not ops.keep[storage]:
            readers = parts[storage]
            after: Bool = np.logical_or.reduce(runs_before[readers])
            after[readers] = True
            alive = alive & after
        there = there + alive * ops.size[storage]
    kept = ops.base - ops.size[ops.given].sum() + ops.size[ops.keep & (maker >= 0)].sum()
    return int(max(kept, (there + ops.workspace)[ordered].max()))


def ancestors(ops: OpStorage, ordered: I64) -> Bool:
    """[N, N] whether the column's op must run before the row's; `ordered` is a topological order."""
    before = np.zeros((len(ops.workspace), len(ops.workspace)), np.bool_)
    for op in ordered:
        for need in ops.need[ops.need_ptr[op] : ops.need_ptr[op + 1]]:
            before[op] = np.logical_or(before[op], before[need])
            before[op, need] = True
    return before
