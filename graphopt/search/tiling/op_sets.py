"""What sets of ops cost at least, whatever their tiles, in compiled code: what orders of moves go by.

A group computes every op once for each native tile of its results, and moves what enters or leaves it at least once (of
a tensor as much as its grid of tiles covers), so its latency is no less than the larger of the two (docs/tiling.md),
unless links keep tensors for it.

Shape legend: N ops, T tensors, S slots of groups.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.search.tiling.groupings import Wiring
from graphopt.utils.compiled import njit

Flags = NDArray[np.bool_]


class OpArrays(NamedTuple):
    """A workload's ops. read_ptr [N+1], read: operands of each, a left one first; reader_ptr [N+1], reader: ops that
    read its result; near_ptr [N+1], near: ops that share a tensor with it, or a neighbour. width, height, tiles: of its
    result, tiles native ones. maker: [T] -1 for inputs of the graph."""

    read_ptr: I64
    read: I64
    reader_ptr: I64
    reader: I64
    near_ptr: I64
    near: I64
    maker: I64
    elements: F64
    base: F64
    product: Flags
    depth: F64
    width: I64
    height: I64
    tiles: F64
    capacity: float
    bandwidth: float
    native_width: float
    native_height: float
    once: bool  # a slice takes room once, however many operands it is


class Marks(NamedTuple):
    """Room to work in. ops [N], tensors [3, T] (cut into tiles, rows, columns): the last time [1] that each was met;
    members [N]: of the set at hand."""

    ops: I64
    tensors: I64
    members: I64
    time: I64


class OpSet(NamedTuple):
    """computes, moves: time for either, at least. needs: elements that a native tile of full depth takes, over the
    capacity. fed: a product reads what is made inside, so that its depth is not split."""

    possible: bool
    size: int
    computes: float
    moves: float
    needs: float
    products: int
    fed: bool
    tiles: float


def op_arrays(wiring: Wiring) -> OpArrays:
    """Of a workload."""
    w = wiring.workload
    made = np.array(w.output)
    width, height = np.array(w.widths)[made], np.array(w.heights)[made]
    native_width, native_height = w.native
    readers = _lists([w.readers[tensor] for tensor in w.output])
    return OpArrays(
        *_lists(w.inputs), *readers, *_lists(wiring.alike), np.array(w.producer),
        np.array(w.widths, float) * np.array(w.heights), np.array(w.base_costs, float), np.array(w.is_matmul),
        np.array([w.depth(op) for op in range(w.num_ops)], float), width, height,
        np.ceil(width / native_width) * np.ceil(height / native_height),
        float(w.capacity), float(w.bandwidth), float(native_width), float(native_height), w.shared_slices == "once",
    )  # fmt: skip


def _lists(found: Sequence[Sequence[int]]) -> tuple[I64, I64]:
    ptr = np.concatenate([[0], np.cumsum([len(each) for each in found])]).astype(np.int64)
    return ptr, np.array([value for each in found for value in each], np.int64)


def marks(arrays: OpArrays) -> Marks:
    ops = len(arrays.base)
    return Marks(np.zeros(ops, np.int64), np.zeros((3, len(arrays.elements)), np.int64), np.zeros(ops, np.int64),
                 np.zeros(1, np.int64))  # fmt: skip


@njit(cache=True, nogil=True)
def measured(stored: I64, count: int, home: I64, a: OpArrays, m: Marks) -> OpSet:
    """The group of the first `count` ops in `stored`, with the fused ones (home -1) that they need."""
    nothing = OpSet(False, 0, 0.0, 0.0, 0.0, 0, False, 0.0)
    m.time[0] += 1
    now = m.time[0]
    for i in range(count):
        m.members[i] = stored[i]
        m.ops[stored[i]] = now
    size, i = count, 0
    while i < size:
        op = m.members[i]
        i += 1
        for k in range(a.read_ptr[op], a.read_ptr[op + 1]):
            maker = a.maker[a.read[k]]
            if maker >= 0 and home[maker] < 0 and m.ops[maker] != now:
                m.ops[maker] = now
                m.members[size] = maker
                size += 1
    if not _one_grid(stored, count, now, a, m):
        return nothing
    return _sums(stored[0], count, size, now, a, m)


@njit(cache=True, nogil=True)
def _one_grid(stored: I64, count: int, now: int, a: OpArrays, m: Marks) -> bool:
    """Whether results have one shape, and none is read inside."""
    for i in range(count):
        op = stored[i]
        if a.width[op] != a.width[stored[0]] or a.height[op] != a.height[stored[0]]:
            return False
        for k in range(a.reader_ptr[op], a.reader_ptr[op + 1]):
            if m.ops[a.reader[k]] == now:
                return False
    return True


@njit(cache=True, nogil=True)
def _sums(first: int, count: int, size: int, now: int, a: OpArrays, m: Marks) -> OpSet:
    wide, high = float(a.width[first]), float(a.height[first])
    width, height = min(wide, a.native_width), min(high, a.native_height)
    base, moved, needs, products, fed = 0.0, count * wide * high, width * height * count, 0, False
    for i in range(size):
        op = m.members[i]
        base += a.base[op]
        products += a.product[op]
        for k in range(a.read_ptr[op], a.read_ptr[op + 1]):
            tensor = a.read[k]
            maker = a.maker[tensor]
            if maker >= 0 and m.ops[maker] == now:
                fed = fed or a.product[op]
                continue
            left = k == a.read_ptr[op]
            cut = (1 if left else 2) if a.product[op] else 0
            if not a.once or m.tensors[cut, tensor] != now:
                needs += (height if left else width) * a.depth[op] if a.product[op] else width * height
            met = m.tensors[0, tensor] == now or m.tensors[1, tensor] == now or m.tensors[2, tensor] == now
            m.tensors[cut, tensor] = now
            if not met:
                read = (high if left else wide) * a.depth[op] if a.product[op] else wide * high
                moved += min(read, a.elements[tensor])
    tiles = a.tiles[first]
    return OpSet(True, size, base * tiles, moved / a.bandwidth, needs / a.capacity, products, fed, tiles)
