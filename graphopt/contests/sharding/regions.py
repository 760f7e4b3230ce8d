"""Regions of a pairwise model solved exactly beside fixed neighbours: states that cannot be part of anything better are
removed, what is left is eliminated variable by variable (`region_elimination`).

Shape legend: n variables of a region, V variables, S states, C entries.
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.pairwise import Pairwise, incidence
from graphopt.contests.sharding.region_elimination import FACTORS, MOST, Adjacency, Space, eliminate
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit

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

    w.region, w.place name its variables. unary + weight * extra: what states cost. Where a table would have more than
    so many entries, variables keep their labels.
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
    """Sets the states and what they cost beside fixed neighbours; the region's value now."""
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
    """Removes states with which the sum of what each part costs at least is over `most`; labels stay."""
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
    """Unaries and tables of what is left, as factors; those of variables with a single state go into their
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
