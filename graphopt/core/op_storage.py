"""`OpStorage`: the table of what a program allocates, op by op: what heuristics and searches for orders look at.

Shape legend: N ops, S storages.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import I64, Bool
from graphopt.core.live_storage import LiveStorage, readers_of


class OpStorage(NamedTuple):
    """`LiveStorage` by ops: what nodes without a place make is there from its first reader on. Arrays for Numba."""

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
