"""Random moves on keys whose kind and op are drawn by weights, so that a search can say where it perturbs.

The moves are those of `regal_local`; all kinds are of an op: `transfer` gives a result of the op a new place among
those that wait for a link. Which other op, device or place it is stays uniform.

Shape legend: K keys, N ops, M kinds of moves, B moves.
"""

from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from graphopt.core.graph import F64, I64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.search.genetic.brkga import F32
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.key_moves import adjacent, by_op, elsewhere, exchange, movable_keys, spread
from graphopt.search.walks.regal_local import LARGEST_BLOCK, Moves
from graphopt.utils.compiled import njit

KINDS = ("device", "block", "swap", "shift", "transfer")
DEVICE, BLOCK, SWAP, SHIFT, TRANSFER = range(len(KINDS))


class Drawn(NamedTuple):
    """Moves by kind and op, [B] each."""

    kind: I64
    op: I64


class WeightedMoves:
    """Moves on the keys of one problem. base: [M, N] how often each is tried by chance alone, summing to 1 (or to 0
    where nothing can move)."""

    def __init__(self, problem: AssignProblem, shares: Moves) -> None:
        layout, task, ops = problem.layout, problem.task, problem.graph.num_ops
        affinity, priority = (
            by_op(problem, movable_keys(problem, role)) for role in (KeyRole.AFFINITY, KeyRole.PRIORITY)
        )
        ptr, beside = adjacent(SchedulingInstance(problem.graph, task).needs)
        sends = np.flatnonzero(layout.role == KeyRole.TRANSFER)
        sends = sends[np.argsort(layout.op[sends], kind="stable")]
        send_ptr = np.searchsorted(layout.op[sends], np.arange(ops + 1))
        window = np.zeros(ops, np.int64)  # blocks may spread everywhere
        orders = np.flatnonzero(priority >= 0)
        self._keys = (affinity, priority, orders, sends, send_ptr, window, ptr, beside, task.machine.num_devices)
        ordered = (priority >= 0) & (len(orders) > 1)
        able = np.stack([affinity >= 0, (affinity >= 0) & (np.diff(ptr) > 0), ordered, ordered, np.diff(send_ptr) > 0])
        self.base = _shared(able, np.array([getattr(shares, kind) for kind in KINDS]))

    def drawn(self, weight: F64, count: int, rng: Generator) -> Drawn:
        """Kinds and ops by weights [M, N] of any scale."""
        total = np.cumsum(weight)
        flat = np.searchsorted(total, rng.random(count) * total[-1], side="right")
        kind, op = np.divmod(np.minimum(flat, weight.size - 1), weight.shape[1])
        return Drawn(kind, op)

    def made(self, keys: F32, moves: Drawn, rng: Generator, *, together: bool = False) -> F32:
        """[B, K] copies of keys [K], each after its move; together: [1, K] one copy after all of them."""
        count = len(moves.kind)
        rows = np.repeat(keys[None], 1 if together else count, 0)
        which = np.zeros(count, np.int64) if together else np.arange(count)
        _make(rows, which, moves.kind, moves.op, rng.random((count, 2)), *self._keys)
        return rows


def _shared(able: np.ndarray, share: F64) -> F64:
    """[M, N] each kind's share, divided among the ops that are able to."""
    base = able * (share / np.maximum(able.sum(1), 1))[:, None]
    return np.asarray(base / max(base.sum(), 1e-30))


@njit(cache=True, nogil=True)
def _make(rows, which, kinds, ops, uniform, affinity, priority, orders, sends, send_ptr, window, ptr, beside, devices):  # type: ignore[no-untyped-def] # fmt: skip
    """Makes moves in place, move i on row which[i], with uniform numbers [B, 2]: another op or device, a value."""
    for i in range(len(which)):
        keys, kind, op = rows[which[i]], kinds[i], ops[i]
        pick, value = uniform[i]
        if kind == 0:
            here = np.argmax(keys[affinity[op] : affinity[op] + devices])
            exchange(keys, affinity[op], here, (here + 1 + int(pick * (devices - 1))) % devices)
        elif kind == 1:
            here = np.argmax(keys[affinity[op] : affinity[op] + devices])
            there = elsewhere(keys, op, here, pick, devices, affinity, ptr, beside)
            if there < 0:
                there = (here + 1 + int(pick * (devices - 1))) % devices
            spread(keys, op, here, there, int(LARGEST_BLOCK**value), window, devices, affinity, ptr, beside)
        elif kind == 2:
            other = priority[orders[int(pick * len(orders))]]
            keys[priority[op]], keys[other] = keys[other], keys[priority[op]]
        elif kind == 3:
            keys[priority[op]] = value
        else:
            count = send_ptr[op + 1] - send_ptr[op]
            keys[sends[send_ptr[op] + int(pick * count)]] = value
