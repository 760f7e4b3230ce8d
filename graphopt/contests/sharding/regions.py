"""Regions of a pairwise model solved exactly beside fixed neighbours, in memory that is made once.

States that cannot be part of a better answer are removed, the others are eliminated variable by variable (bucket
elimination; Dechter, Artificial Intelligence 1999).

Shape legend: n variables of a region, V variables, S states, C entries.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.pairwise import Pairwise, incidence
from graphopt.core.graph import F64, I32, I64
from graphopt.core.utils.compiled import njit

MOST = 64  # variables of one region
SCOPE = 20  # variables of a factor
LARGEST = 1 << 18  # entries of a table: each variable has two states at least, so its scope is within `SCOPE`
FACTORS = 4096
TOUCHED = 256  # factors of one variable: at most its neighbours and eliminated ones


class Adjacency(NamedTuple):
    """The tables from a variable to its neighbours: entry = start + state * own_step + other's * other_step."""

    ptr: I64  # [V+1]
    other: I64
    start: I64
    own_step: I64
    other_step: I64


class Space(NamedTuple):
    """Memory to work in, made once."""

    place: I64  # [V] position in the region, -1 outside
    region: I64  # [MOST]
    size: I64  # [MOST] states left
    at: I64  # [MOST+1] where a variable's states begin in the next two
    state: I64
    own: F64
    score: F64
    around: NDArray[np.uint64]  # [MOST] neighbours as bits
    factor: NDArray[np.uint64]  # [FACTORS] scope as bits, 0 for a used one
    base: I64  # [FACTORS]
    length: I64  # [FACTORS]
    scope: I64  # [FACTORS, SCOPE]
    step: I64  # [FACTORS, SCOPE]
    data: F64
    chosen: I32
    found: I64  # [MOST] states of the answer


def space(variables: int, widest: int, entries: int) -> Space:
    """entries: of the largest table that is made."""
    room = MOST * max(widest, 1)
    longs = [np.zeros(MOST, np.int64) for _ in range(3)]
    return Space(np.full(variables, -1), longs[0], longs[1], np.zeros(MOST + 1, np.int64), np.zeros(room, np.int64),
                 np.zeros(room), np.zeros(room), np.zeros(MOST, np.uint64), np.zeros(FACTORS, np.uint64),
                 np.zeros(FACTORS, np.int64), np.zeros(FACTORS, np.int64), np.zeros((FACTORS, SCOPE), np.int64),
                 np.zeros((FACTORS, SCOPE), np.int64), np.zeros(2 * (MOST * entries + 2_000_000)),
                 np.zeros(MOST * entries, np.int32), longs[2])  # fmt: skip


@njit(cache=True, nogil=True)
def eliminate(n: int, w: Space, labels: I64, entries: int) -> float:
    """The least sum; w.found has its states. Tables of more than so many entries are not made: instead the variable
    with most states around it keeps its label."""
    count, fill, argument = w.length[FACTORS - 1], w.base[FACTORS - 1], 0
    left = np.zeros(n, np.bool_)
    order, begin, widths = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64)
    outs = np.zeros((n, SCOPE), np.int64)
    value, todo, done = 0.0, 0, 0
    for i in range(n):
        if w.size[i] == 1:
            value += w.own[w.at[i]]
            w.found[i] = w.state[w.at[i]]
        else:
            left[i] = True
            todo += 1
    while todo > 0:
        i, size = _next(n, w, left)
        if (size > entries or count >= FACTORS - 2) and w.around[i] != np.uint64(0):
            value += _keep_widest(n, count, w, labels, left)
            todo -= 1
            continue
        width = 0
        for j in range(n):
            if w.around[i] & (np.uint64(1) << np.uint64(j)):
                outs[done, width] = j
                width += 1
        order[done], begin[done], widths[done] = i, argument, width
        total = _sum_out(i, width, outs[done], count, fill, argument, w)
        _leave_out(n, i, w, left)
        if width == 0:
            value += w.data[fill]
        elif width == 1:
            j = outs[done, 0]
            for a in range(total):
                w.own[w.at[j] + a] += w.data[fill + a]
        else:
            _add_factor(count, outs[done, :width], fill, total, w)
            count += 1
        done, todo, fill, argument = done + 1, todo - 1, fill + total, argument + total
    _read_back(n, w, labels, order[:done], begin, widths, outs)
    return value


@njit(cache=True, nogil=True)
def _keep_widest(n: int, count: int, w: Space, labels: I64, left: NDArray[np.bool_]) -> float:
    """Fixes the label of the variable with most states around it; returns its own cost."""
    i, most, position = -1, -1.0, 0
    for j in range(n):
        if left[j] and w.around[j] != np.uint64(0):
            neighbours, mask = 0, w.around[j]
            while mask != np.uint64(0):
                mask &= mask - np.uint64(1)
                neighbours += 1
            weight = np.log(w.size[j]) * neighbours
            if weight > most:
                i, most = j, weight
    for a in range(w.size[i]):
        if w.state[w.at[i] + a] == labels[w.region[i]]:
            position = a
    _fix(i, position, count, w)
    w.found[i] = labels[w.region[i]]
    _leave_out(n, i, w, left)
    cost: float = w.own[w.at[i] + position]
    return cost


@njit(cache=True, nogil=True)
def _leave_out(n: int, i: int, w: Space, left: NDArray[np.bool_]) -> None:
    """Variable i is done."""
    left[i] = False
    for j in range(n):
        w.around[j] &= ~(np.uint64(1) << np.uint64(i))


@njit(cache=True, nogil=True)
def _add_factor(f: int, scope: I64, fill: int, total: int, w: Space) -> None:
    """The table at `fill` joins the variables of its scope."""
    one, step = np.uint64(1), total
    w.factor[f], w.base[f], w.length[f] = np.uint64(0), fill, len(scope)
    for k in range(len(scope)):
        j = scope[k]
        step //= w.size[j]
        w.scope[f, k], w.step[f, k] = j, step
        w.factor[f] |= one << np.uint64(j)
        for m in range(len(scope)):
            if m != k:
                w.around[j] |= one << np.uint64(scope[m])


@njit(cache=True, nogil=True)
def _read_back(n: int, w: Space, labels: I64, order: I64, begin: I64, widths: I64, outs: I64) -> None:
    """The best state of each eliminated variable, the last one first."""
    taken = np.zeros(n, np.int64)
    for j in range(n):
        for a in range(w.size[j]):
            if w.state[w.at[j] + a] == labels[w.region[j]]:
                taken[j] = a
    for d in range(len(order) - 1, -1, -1):
        i, entry = order[d], 0
        for k in range(widths[d]):
            entry = entry * w.size[outs[d, k]] + taken[outs[d, k]]
        taken[i] = w.chosen[begin[d] + entry]
        w.found[i] = w.state[w.at[i] + taken[i]]


@njit(cache=True, nogil=True)
def _next(n: int, w: Space, left: NDArray[np.bool_]) -> tuple[int, float]:
    """(the variable whose elimination makes the smallest table, entries to look at)."""
    best, least = -1, np.inf
    for i in range(n):
        if left[i]:
            entries = float(w.size[i])
            around, j = w.around[i], 0
            while around != np.uint64(0):
                if around & np.uint64(1):
                    entries *= w.size[j]
                around >>= np.uint64(1)
                j += 1
            if entries < least:
                best, least = i, entries
    return best, least


@njit(cache=True, nogil=True)
def _fix(i: int, position: int, count: int, w: Space) -> None:
    """Leaves variable i one state: at `position` of its own."""
    one = np.uint64(1)
    bit = one << np.uint64(i)
    for f in range(count):
        if w.factor[f] & bit:
            length = w.length[f]
            for k in range(length):
                if w.scope[f, k] == i:
                    w.base[f] += position * w.step[f, k]
                    w.scope[f, k], w.step[f, k] = w.scope[f, length - 1], w.step[f, length - 1]
                    break
            w.length[f] = length - 1
            w.factor[f] &= ~bit
            if w.length[f] == 1:  # now a unary
                j = w.scope[f, 0]
                for a in range(w.size[j]):
                    w.own[w.at[j] + a] += w.data[w.base[f] + a * w.step[f, 0]]
                w.factor[f] = np.uint64(0)


@njit(cache=True, nogil=True)
def _sum_out(i: int, width: int, out: I64, count: int, fill: int, argument: int, w: Space) -> int:
    """Writes the table of least sums over the states of variable i, and which state that is; its number of entries."""
    bit = np.uint64(1) << np.uint64(i)
    mine = np.zeros(TOUCHED, np.int64)
    own_step, offset = np.zeros(TOUCHED, np.int64), np.zeros(TOUCHED, np.int64)
    steps = np.zeros((TOUCHED, SCOPE), np.int64)
    factors = 0
    for f in range(count):
        if w.factor[f] & bit:
            mine[factors], offset[factors] = f, w.base[f]
            for k in range(w.length[f]):
                if w.scope[f, k] == i:
                    own_step[factors] = w.step[f, k]
                else:
                    for m in range(width):
                        if out[m] == w.scope[f, k]:
                            steps[factors, m] = w.step[f, k]
            w.factor[f] = np.uint64(0)
            factors += 1
    digits = np.zeros(width + 1, np.int64)
    total, states = 1, w.size[i]
    for k in range(width):
        total *= w.size[out[k]]
    for entry in range(total):
        best, least = 0, np.inf
        for s in range(states):
            cost = w.own[w.at[i] + s]
            for f in range(factors):
                cost += w.data[offset[f] + s * own_step[f]]
            if cost < least:
                best, least = s, cost
        w.data[fill + entry] = least
        w.chosen[argument + entry] = best
        k = width - 1
        while k >= 0:
            digits[k] += 1
            for f in range(factors):
                offset[f] += steps[f, k]
            if digits[k] < w.size[out[k]]:
                break
            for f in range(factors):
                offset[f] -= steps[f, k] * w.size[out[k]]
            digits[k] = 0
            k -= 1
    return total


State = NDArray[np.uint64]  # [1]


def links(model: Pairwise) -> Adjacency:
    ptr, edges = incidence(model)
    variable = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    row = model.counts[model.second[edges]]
    leads = model.first[edges] == variable
    return Adjacency(ptr, np.where(leads, model.second[edges], model.first[edges]), model.table_ptr[edges],
                 np.where(leads, row, 1), np.where(leads, 1, row))  # fmt: skip


@njit(cache=True, nogil=True)
def solve_region(n: int, w: Space, ptr: I64, unary: F64, extra: F64, weight: float, table: F64, link: Adjacency,
                 labels: I64, entries: int) -> tuple[float, float]:  # fmt: skip
    """(value of the region beside its neighbours, that of the answer in w.found): never more.

    w.region, w.place name its variables. unary + weight * extra: costs of states. Where a table would have more than so
    many entries, variables keep their labels.
    """
    now = _open(n, w, ptr, unary, extra, weight, table, link, labels)
    _narrow(n, w, table, link, labels, now)
    if not _factors(n, w, table, link):
        for i in range(n):
            w.found[i] = labels[w.region[i]]
        return now, now
    value = eliminate(n, w, labels, entries)
    return now, value


@njit(cache=True, nogil=True)
def _open(n: int, w: Space, ptr: I64, unary: F64, extra: F64, weight: float, table: F64, link: Adjacency,
          labels: I64) -> float:  # fmt: skip
    """Sets the states and their costs beside fixed neighbours; returns the region's value now."""
    now, fill = 0.0, 0
    for i in range(n):
        v = w.region[i]
        w.at[i] = fill
        w.size[i] = 0
        for s in range(ptr[v + 1] - ptr[v]):
            cost = unary[ptr[v] + s] + (weight * extra[ptr[v] + s] if weight != 0.0 else 0.0)
            if not cost < np.inf and s != labels[v]:
                continue
            for k in range(link.ptr[v], link.ptr[v + 1]):
                o = link.other[k]
                if w.place[o] < 0:
                    cost += table[link.start[k] + s * link.own_step[k] + labels[o] * link.other_step[k]]
            if cost < np.inf or s == labels[v]:
                w.state[fill] = s
                w.own[fill] = cost
                fill += 1
                w.size[i] += 1
                if s == labels[v]:
                    now += cost
        for k in range(link.ptr[v], link.ptr[v + 1]):
            o = link.other[k]
            if w.place[o] > i:
                now += table[link.start[k] + labels[v] * link.own_step[k] + labels[o] * link.other_step[k]]
    w.at[n] = fill
    return now


@njit(cache=True, nogil=True)
def _narrow(n: int, w: Space, table: F64, link: Adjacency, labels: I64, most: float) -> None:
    """Removes states with which the sum of the parts' least costs is over `most`; labels stay."""
    rows = np.zeros(w.at[n])
    for _ in range(3):
        bound = 0.0
        for i in range(n):
            least = np.inf
            for a in range(w.at[i], w.at[i] + w.size[i]):
                least = min(least, w.own[a])
            bound += least
            for a in range(w.at[i], w.at[i] + w.size[i]):
                w.score[a] = w.own[a] - least
        for i in range(n):
            v = w.region[i]
            for k in range(link.ptr[v], link.ptr[v + 1]):
                j = w.place[link.other[k]]
                if j <= i:
                    continue
                t, su, so = link.start[k], link.own_step[k], link.other_step[k]
                least = np.inf
                for b in range(w.at[j], w.at[j] + w.size[j]):
                    rows[b] = np.inf
                for a in range(w.at[i], w.at[i] + w.size[i]):
                    low, row = np.inf, t + w.state[a] * su
                    for b in range(w.at[j], w.at[j] + w.size[j]):
                        cost = table[row + w.state[b] * so]
                        low = min(low, cost)
                        rows[b] = min(rows[b], cost)
                    rows[a] = low
                    least = min(least, low)
                if not least < np.inf:
                    continue
                bound += least
                for a in range(w.at[i], w.at[i] + w.size[i]):
                    w.score[a] += rows[a] - least
                for b in range(w.at[j], w.at[j] + w.size[j]):
                    w.score[b] += rows[b] - least
        removed = 0
        for i in range(n):
            kept = w.at[i]
            for a in range(w.at[i], w.at[i] + w.size[i]):
                if bound + w.score[a] < most or w.state[a] == labels[w.region[i]]:
                    w.state[kept], w.own[kept] = w.state[a], w.own[a]
                    kept += 1
            removed += w.at[i] + w.size[i] - kept
            w.size[i] = kept - w.at[i]
        if removed == 0:
            return


@njit(cache=True, nogil=True)
def _factors(n: int, w: Space, table: F64, link: Adjacency) -> bool:
    """Unaries and tables of the remaining states, as factors; those of variables with a single state go into their
    neighbours'. False where they need too much memory."""
    one = np.uint64(1)
    count, fill = 0, 0
    for i in range(n):
        w.around[i] = np.uint64(0)
    for i in range(n):
        v = w.region[i]
        for k in range(link.ptr[v], link.ptr[v + 1]):
            j = w.place[link.other[k]]
            if j < 0:
                continue
            t, su, so = link.start[k], link.own_step[k], link.other_step[k]
            if w.size[i] > 1 and w.size[j] == 1:
                for a in range(w.at[i], w.at[i] + w.size[i]):
                    w.own[a] += table[t + w.state[a] * su + w.state[w.at[j]] * so]
            elif j > i and w.size[i] == 1 and w.size[j] == 1:
                w.own[w.at[i]] += table[t + w.state[w.at[i]] * su + w.state[w.at[j]] * so]
            elif j > i and w.size[i] > 1:
                if count >= FACTORS - 2 * MOST or fill + w.size[i] * w.size[j] > len(w.data) // 2:
                    return False
                w.factor[count] = (one << np.uint64(i)) | (one << np.uint64(j))
                w.around[i] |= one << np.uint64(j)
                w.around[j] |= one << np.uint64(i)
                w.base[count], w.length[count] = fill, 2
                w.scope[count, 0], w.scope[count, 1] = i, j
                w.step[count, 0], w.step[count, 1] = w.size[j], 1
                for a in range(w.at[i], w.at[i] + w.size[i]):
                    row = t + w.state[a] * su
                    for b in range(w.at[j], w.at[j] + w.size[j]):
                        w.data[fill] = table[row + w.state[b] * so]
                        fill += 1
                count += 1
    w.length[FACTORS - 1], w.base[FACTORS - 1] = count, fill  # how many, and where free memory begins
    return True


@njit(cache=True, nogil=True)
def grow(seed: int, most: int, w: Space, free: NDArray[np.bool_], link: Adjacency, spread: float, state: State) -> int:
    """Fills w.region from a seed with free variables, neighbour by neighbour; their number. spread: how often it goes
    on from any variable of the region, not from the one reached last."""
    w.region[0], w.place[seed] = seed, 0
    n, tries = 1, 0
    while n < most and tries < 4 * most:
        tries += 1
        i = below(state, n) if uniform(state) < spread else n - 1
        v = w.region[i]
        degree = link.ptr[v + 1] - link.ptr[v]
        if degree == 0:
            break
        start = below(state, degree)
        for d in range(min(degree, 64)):
            o = link.other[link.ptr[v] + (start + d) % degree]
            if w.place[o] < 0 and free[o]:
                w.region[n], w.place[o] = o, n
                n += 1
                break
    return n


@njit(cache=True, nogil=True)
def leave(n: int, w: Space) -> None:
    """Forgets the region."""
    for i in range(n):
        w.place[w.region[i]] = -1


# Random numbers inside compiled code: SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).


@njit(cache=True, nogil=True)
def uniform(state: State) -> float:
    """From 0 to 1, without 1."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((z ^ (z >> np.uint64(31))) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
def below(state: State, most: int) -> int:
    """From 0 to most - 1."""
    return int(uniform(state) * most)
