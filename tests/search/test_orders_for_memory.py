"""Orders for least memory: the compilers' against torch's own functions, the walk and its bound against all orders."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
from hardware.small_programs import branches
from torch._inductor import memory
from torch.utils._ordered_set import OrderedSet

from graphopt.core.graph import I64
from graphopt.core.live_storage import LiveStorage, legal, op_storage, peaks
from graphopt.hardware.program_run import Session, csr
from graphopt.search.heuristics.compiler_orders import ORDERS
from graphopt.search.walks.order_walk import descend, memory_bound, walk_from


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


class Node:
    """What torch's functions ask of a scheduler's node."""

    def __init__(self, op: int) -> None:
        self.op, self.outputs, self.unmet_dependencies = op, [], []
        self.mpi_node = SimpleNamespace(index=op, size=0, pred_nodes=OrderedSet(), succ_nodes=OrderedSet(),
                                        pred_buffers=OrderedSet())  # fmt: skip

    def get_outputs(self) -> list["Buffer"]:
        return self.outputs

    def get_buffer_names(self) -> list[str]:
        return [buffer.get_name() for buffer in self.outputs]


class Buffer:
    def __init__(self, storage: int, size: int) -> None:
        self.storage = storage
        self.mpi_buffer = SimpleNamespace(size_free=size, size_alloc=size, succ_nodes=OrderedSet())

    def get_name(self) -> str:
        return f"buf{self.storage}"


def as_torch_has_it(table: LiveStorage) -> tuple[list[Node], dict[str, Buffer], dict[str, Buffer], OrderedSet[str]]:
    """(nodes, inputs that are freed, made buffers, names of outputs), by name."""
    ops = op_storage(table)
    nodes = {int(op): Node(int(op)) for op in table.ordered}
    buffers = {s: Buffer(s, int(ops.size[s])) for s in range(len(ops.size)) if not ops.late[s]}
    for op, node in nodes.items():
        for s in ops.made[ops.made_ptr[op] : ops.made_ptr[op + 1]].tolist():
            node.outputs.append(buffers[s])
            node.mpi_node.size += buffers[s].mpi_buffer.size_alloc
        for s in ops.read[ops.read_ptr[op] : ops.read_ptr[op + 1]].tolist():
            if s in buffers and (ops.given[s] or s in ops.made):
                buffers[s].mpi_buffer.succ_nodes.add(node)
                node.mpi_node.pred_buffers.add(buffers[s])
        for need in ops.need[ops.need_ptr[op] : ops.need_ptr[op + 1]].tolist():
            node.mpi_node.pred_nodes.add(nodes[need])
            nodes[need].mpi_node.succ_nodes.add(node)
    for node in nodes.values():
        for need in sorted(n.op for n in node.mpi_node.pred_nodes):
            node.unmet_dependencies.append(SimpleNamespace(name=f"of{need}"))
    given = {b.get_name(): b for s, b in buffers.items() if ops.given[s]}
    made = {b.get_name(): b for s, b in buffers.items() if s in ops.made}
    return list(nodes.values()), given, made, OrderedSet(b.get_name() for s, b in buffers.items() if ops.keep[s])


def torch_order(name: str, table: LiveStorage) -> list[int]:
    nodes, given, made, outputs = as_torch_has_it(table)
    if name == "lpmf":
        found = memory.topological_sort_lpmf(nodes, given, made, outputs)
    elif name == "bfs":
        found = memory.topological_sort_bfs(nodes)
    else:
        for node in nodes:
            node.get_buffer_names = lambda op=node.op: [f"of{op}"]
        found = memory.topological_sort_dfs(nodes)
    return [node.op for node in found]


@pytest.fixture(scope="module")
def real_table() -> LiveStorage:
    return Session(branches(True), "cpu", 1).table


@pytest.mark.parametrize("name", ORDERS)
def test_compilers_orders_are_torchs_own(name: str, real_table: LiveStorage) -> None:
    for table in (real_table, *(random_table(seed, 12) for seed in range(30))):
        assert ORDERS[name](table).tolist() == torch_order(name, table)


@pytest.mark.parametrize("chain", [False, True])
def test_the_bound_is_below_every_order_and_the_peak_where_there_is_one(chain: bool) -> None:
    for seed in range(6 if chain else 12):
        table = random_table(seed, chain=chain)
        assert 0.5 * least_peak(table) < memory_bound(table) <= least_peak(table)
        assert not chain or (len(all_orders(table)) == 1 and memory_bound(table) == least_peak(table))


def test_the_walk_finds_the_least_peak() -> None:
    for seed in range(8):
        table = random_table(seed)
        order = all_orders(table)[0]
        ops, best = op_storage(table), np.empty_like(order)
        walk = walk_from(ops, order)
        descend(ops, walk, 2000, float(walk.high.max()), 16.0, 0.3, 64, np.random.default_rng(seed), best)
        assert legal(table, best) and int(peaks(table, best[None])[0]) == least_peak(table)


def test_a_walks_state_is_what_its_order_implies(real_table: LiveStorage) -> None:
    ops, order = op_storage(real_table), real_table.ordered
    walk, best = walk_from(ops, order), np.empty_like(order)
    descend(ops, walk, 5000, float(walk.high.max()), 16.0, 0.3, 4096, np.random.default_rng(0), best)
    anew = walk_from(ops, walk.order)
    for changed, made in zip(walk, anew, strict=True):
        assert np.array_equal(changed, made)
    assert legal(real_table, walk.order)
