"""The best contiguous split over all topological orders: dynamic programming over ideals, where these are few enough.

Tarnawski et al. (NeurIPS 2020), section 5: an ideal is a set of items that has with each one all that come before it.
Contiguous splits are chains of ideals; between two of them lies what one device gets. Beside the paper: a split that is
known limits the search. What takes longer than it on every kind of device is not looked at, nor are ideals that leave
more work to the devices that are left than they do in that time.

Shape legend: M items, I ideals, E pairs of ideals that differ by one item, C kinds of devices, S states, L words of 64.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from graphopt.core.graph import F64
from graphopt.search.pipelines.linear_split import LinearSplit, add, judge, remove, window
from graphopt.search.pipelines.pipeline import Kinds, Stream
from graphopt.utils.compiled import njit


class Ideals(NamedTuple):
    """All ideals by size, the empty one first, and for each its subsets of one item less (CSR)."""

    size: Any  # int64 [I] items
    ptr: Any  # int64 [I+1]
    below: Any  # int64 [E] the smaller ideal
    item: Any  # int64 [E] the item that it lacks


def ideals(first: csr_array, most: int) -> Ideals | None:
    """The ideals of a precedence [M, M]; None where there are more than `most`."""
    items = first.shape[0]
    needs = csr_array(first.T)
    words = -(-items // 64)
    mark = np.random.default_rng(0).integers(1, 2**63, items, dtype=np.int64)
    made = _enumerate(
        needs.indptr.astype(np.int64), needs.indices.astype(np.int64), first.indptr.astype(np.int64),
        first.indices.astype(np.int64), words, mark, most,
    )  # fmt: skip
    count, size, above, below, item = made
    if count < 0:
        return None
    order = np.argsort(above, kind="stable")
    ptr = np.searchsorted(above[order], np.arange(count + 1)).astype(np.int64)
    return Ideals(size, ptr, below[order], item[order])


@njit(cache=True, nogil=True)
def _enumerate(need_ptr, needs, after_ptr, after, words, mark, most):  # type: ignore[no-untyped-def]
    """(count or -1, sizes, pairs): breadth first, so by size; a table of hashes finds those already met."""
    items, one = len(mark), np.uint64(1)
    capacity = 1024
    sets = np.zeros((capacity, words), np.uint64)
    size, digest = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
    table = np.full(4 * capacity, -1, np.int64)
    above, below, item_of = np.empty(4096, np.int64), np.empty(4096, np.int64), np.empty(4096, np.int64)
    count, pairs, here = 1, 0, 0
    table[0] = 0
    while here < count:
        for item in range(items):
            if (sets[here, item >> 6] >> np.uint64(item & 63)) & one:
                continue
            ready = True
            for e in range(need_ptr[item], need_ptr[item + 1]):
                j = needs[e]
                if not (sets[here, j >> 6] >> np.uint64(j & 63)) & one:
                    ready = False
                    break
            if not ready:
                continue
            code = digest[here] + mark[item]
            place = _place(code, len(table))
            found = -1
            while table[place] >= 0 and found < 0:
                other = table[place]
                if digest[other] == code and size[other] == size[here] + 1 and _plus(sets, here, item, other):
                    found = other
                else:
                    place = (place + 1) % len(table)
            if found < 0:
                if count == most:
                    return -1, size, above, below, item_of
                if count == capacity:
                    capacity *= 2
                    sets, size, digest = _grown_sets(sets), _grown(size), _grown(digest)
                    table = _rehashed(digest, count, 4 * capacity)
                    place = _place(code, len(table))
                    while table[place] >= 0:
                        place = (place + 1) % len(table)
                found = count
                sets[found] = sets[here]
                sets[found, item >> 6] |= one << np.uint64(item & 63)
                size[found], digest[found], table[place] = size[here] + 1, code, found
                count += 1
            if pairs == len(above):
                above, below, item_of = _grown(above), _grown(below), _grown(item_of)
            above[pairs], below[pairs], item_of[pairs] = found, here, item
            pairs += 1
        here += 1
    return count, size[:count], above[:pairs], below[:pairs], item_of[:pairs]


@njit(cache=True, nogil=True)
def _place(code, length):  # type: ignore[no-untyped-def]
    return (code ^ (code >> 29)) % length


@njit(cache=True, nogil=True)
def _plus(sets, here, item, other):  # type: ignore[no-untyped-def]
    """Whether the set `other` is `here` with the item."""
    for word in range(sets.shape[1]):
        bit = np.uint64(1) << np.uint64(item & 63) if word == item >> 6 else np.uint64(0)
        if sets[here, word] | bit != sets[other, word]:
            return False
    return True


@njit(cache=True, nogil=True)
def _grown(values):  # type: ignore[no-untyped-def]
    out = np.zeros(2 * len(values), values.dtype)
    out[: len(values)] = values
    return out


@njit(cache=True, nogil=True)
def _grown_sets(sets):  # type: ignore[no-untyped-def]
    out = np.zeros((2 * len(sets), sets.shape[1]), sets.dtype)
    out[: len(sets)] = sets
    return out


@njit(cache=True, nogil=True)
def _rehashed(digest, count, length):  # type: ignore[no-untyped-def]
    table = np.full(length, -1, np.int64)
    for i in range(count):
        place = _place(digest[i], length)
        while table[place] >= 0:
            place = (place + 1) % length
        table[place] = i
    return table


def split_ideals(stream: Stream, kinds: Kinds, lattice: Ideals, limit: float, most_steps: int) -> LinearSplit | None:
    """The contiguous split with the least maximal load, if that is below `limit` (else its cost is inf).

    None where more than `most_steps` pairs of ideals would have to be looked at.
    """
    count, states = len(lattice.size), len(kinds.after)
    value = np.full((count, states), np.inf)
    value[0, 0] = 0.0
    came = np.full((count, states, 3), -1, np.int64)
    alive = _alive(stream, kinds, lattice, limit)
    if not _chains(stream, kinds, lattice, float(limit), alive, window(stream), value, came, most_steps):
        return None
    state = int(np.argmin(value[-1]))
    cost, place = float(value[-1, state]), count - 1
    kind: list[int] = []
    run = np.zeros(len(stream.time), np.int64)
    while np.isfinite(cost) and place > 0:
        earlier, before, used = (int(i) for i in came[place, state])
        run[_between(lattice, earlier, place)] = len(kind)
        kind.append(used)
        place, state = earlier, before
    return LinearSplit(cost, np.maximum(len(kind) - 1 - run, 0), np.array(kind[::-1], np.int64))


def _alive(stream: Stream, kinds: Kinds, lattice: Ideals, limit: float) -> Any:
    """bool [I, S]: the used devices can have done the ideal within the limit, and the others the rest.

    Work counts as on the kind that is fastest for each item; a device does at most as much of it as its best item says.
    """
    can = np.where(stream.blocked == 0, stream.time, np.inf)
    fastest = np.where(np.isfinite(can.min(1)), can.min(1), 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where((can > 0) & np.isfinite(can), fastest[:, None] / can, 0.0).max(0, initial=0.0)
    done = _work(lattice, fastest)
    holds = limit * (kinds.used @ share)
    left = limit * ((kinds.used.max(0) - kinds.used) @ share)
    slack = 1e-9 * max(float(done[-1]), 1e-30)
    return (done[:, None] <= holds + slack) & (done[-1] - done[:, None] <= left + slack)


def _work(lattice: Ideals, seconds: F64) -> F64:
    """[I] summed seconds of the items of each ideal."""
    done = np.zeros(len(lattice.size))
    for i in range(1, len(done)):
        e = lattice.ptr[i]
        done[i] = done[lattice.below[e]] + seconds[lattice.item[e]]
    return done


def _between(lattice: Ideals, lower: int, upper: int) -> list[int]:
    """Items of ideal `upper` that are not in `lower`."""

    def members(i: int) -> set[int]:
        found = set()
        while i:
            found.add(int(lattice.item[lattice.ptr[i]]))
            i = int(lattice.below[lattice.ptr[i]])
        return found

    return sorted(members(upper) - members(lower))


@njit(cache=True, nogil=True)
def _chains(stream, kinds, lattice, limit, alive, window, value, came, most):  # type: ignore[no-untyped-def]
    """value[i, s]: the least maximal load of ideal i with the devices of state s. Below each ideal, depth first, lie
    those that it may follow. False when that takes more than `most` steps."""
    count, states, kind_count = len(lattice.size), len(kinds.after), len(kinds.pays)
    seen, load = np.full(count, -1, np.int64), np.empty(kind_count)
    deepest = lattice.size[count - 1] + 1
    stack, edge, steps = np.empty(deepest, np.int64), np.empty(deepest, np.int64), 0
    lowest = np.full(count, np.inf)
    lowest[0] = 0.0
    for top in range(1, count):
        if not alive[top].any():
            continue
        depth = 0
        stack[0], edge[0] = top, lattice.ptr[top]
        while depth >= 0:
            here = stack[depth]
            if edge[depth] == lattice.ptr[here + 1]:
                depth -= 1
                if depth >= 0:
                    remove(stream, window, lattice.item[edge[depth] - 1])
                continue
            e = edge[depth]
            edge[depth] += 1
            below = lattice.below[e]
            if seen[below] == top:
                continue
            seen[below] = top
            steps += 1
            add(stream, window, lattice.item[e])
            least = judge(kinds, window, load)
            if least >= limit:
                remove(stream, window, lattice.item[e])
                continue
            if lowest[below] < limit:
                for s in range(states):
                    if value[below, s] >= limit:
                        continue
                    for c in range(kind_count):
                        after = kinds.after[s, c]
                        both = max(value[below, s], load[c])
                        if after >= 0 and both < limit and both < value[top, after] and alive[top, after]:
                            value[top, after] = both
                            came[top, after, 0], came[top, after, 1], came[top, after, 2] = below, s, c
            depth += 1
            stack[depth], edge[depth] = below, lattice.ptr[below]
        lowest[top] = value[top].min()
        if steps > most:
            return False
    return True
