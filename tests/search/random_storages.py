"""Random tables of what ops allocate, small enough for all orders to be tried."""

from itertools import permutations

import numpy as np

from graphopt.core.graph import I64
from graphopt.core.live_storage import LiveStorage, legal, peaks
from graphopt.hardware.execution.session import csr


def random_table(seed: int, ops: int = 7, chain: bool = False) -> LiveStorage:
    """Op n makes storage n + 1 and reads some earlier ones, of a chain the last among them. Storage 0 is an input that
    is given away."""
    rng = np.random.default_rng(seed)
    read = [sorted({*rng.integers(0, n + 1, rng.integers(1, 3)).tolist(), *([n] * chain)}) for n in range(ops)]
    size = rng.integers(1, 100, ops + 1)
    readers = np.bincount([s for row in read for s in row], minlength=ops + 1)
    keep = readers == 0
    keep[-1] = True
    none = csr([[] for _ in range(ops + 1)])
    workspace = size[1:] + rng.integers(0, 30, ops)
    needs = csr([[s - 1 for s in row if s] for row in read])
    return LiveStorage(int(size[0]), np.arange(ops), *none, workspace, *csr([[n + 1] for n in range(ops)]), *csr(read),
                       size, readers, keep, *needs)  # fmt: skip


def all_orders(table: LiveStorage) -> I64:
    """[B, K] every legal order."""
    every = (np.array(order) for order in permutations(table.ordered.tolist()))
    return np.array([order for order in every if legal(table, order)])


def least_peak(table: LiveStorage) -> int:
    return int(peaks(table, all_orders(table)).min())
