"""Memory over time as a pairwise model's states use it, beyond the usage that no choice changes.

Shape legend: V variables, S states, M stretches of time in which a variable's usage depends on its state, P times.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit


class MemoryProfile(NamedTuple):
    """Variable v uses use[use_ptr[i] + s] in state s at times low[i] .. high[i]-1, for i of ptr[v] .. ptr[v+1]-1."""

    ptr: I64  # [V+1]
    low: I64  # [M]
    high: I64  # [M]
    use_ptr: I64  # [M]
    use: F64  # whole numbers, 0 for the state that uses least
    room: F64  # [P] memory left for them; negative where even the least is too much
    place: I64  # [steps of the clock] the time that each stands for, or -1

    def used(self, labels: I64) -> F64:
        """[P] by states [V]."""
        found: F64 = _used(self, labels)
        return found

    def priced(self, prices: F64, states: I64) -> F64:
        """[S] the payment of each state at prices [P] per unit. states: [V+1] of the model."""
        total = np.concatenate([np.zeros(1), np.cumsum(prices)])
        found: F64 = _priced(self, states, total)
        return found


def memory_profile(model: Pairwise, tables: StrategyTables) -> MemoryProfile:
    """Of all times that count: where states could use more than there is room for, one time of those between which
    nothing changes, the tightest."""
    members = np.argsort(model.owner, kind="stable")
    member_ptr = np.searchsorted(model.owner[members], np.arange(len(model.ptr)))
    clock = tables.clock
    ptr, low, high, use_ptr, use, base = _stretches(
        model, member_ptr, members, tables.ptr, tables.usage, clock.first, clock.last, clock.steps
    )
    room = float(tables.limit) - base
    return _tight(MemoryProfile(ptr, low, high, use_ptr, use, room, np.arange(clock.steps)))


def _tight(full: MemoryProfile) -> MemoryProfile:
    """With fewer times."""
    steps = len(full.room)
    most = np.zeros(steps + 1)
    if len(full.low):
        peak = np.maximum.reduceat(full.use, full.use_ptr)
        np.add.at(most, full.low, peak)
        np.add.at(most, full.high, -peak)
    matters = (np.cumsum(most)[:steps] > full.room) | (full.room < 0)
    group = np.zeros(steps + 1, np.int64)
    group[full.low] = 1
    group[full.high] = 1
    group[0] = 0
    place = np.cumsum(group[:steps])  # of each step: stretches begin and end between groups
    room = np.full(int(place[-1]) + 1 if steps else 0, np.inf)
    np.minimum.at(room, place[matters], full.room[matters])
    kept = np.isfinite(room)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    edge = np.append(place, place[-1] + 1 if steps else 0)
    low, high = before[edge[full.low]], before[edge[full.high]]
    lasting = low < high
    ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lasting)])[full.ptr]
    return MemoryProfile(ptr, low[lasting], high[lasting], full.use_ptr[lasting], full.use, room[kept],
                     np.where(kept[place], before[place], -1))  # fmt: skip


def moved_prices(prices: F64, before: MemoryProfile, after: MemoryProfile) -> F64:
    """[P] prices of one model's times as those of a smaller one."""
    first = np.full(len(before.room), -1, np.int64)
    steps = np.flatnonzero(before.place >= 0)
    first[before.place[steps][::-1]] = steps[::-1]
    there, out = after.place[first], np.zeros(len(after.room))
    np.add.at(out, there[there >= 0], prices[there >= 0])
    return out


def roomy(model: Pairwise, memory: MemoryProfile) -> NDArray[np.bool_]:
    """[S] states that fit beside the least of all others."""
    found: NDArray[np.bool_] = _roomy(memory, model.ptr, range_minima(memory.room))
    return found


def range_minima(values: F64) -> F64:
    """[levels, P] least of 2^level values from each place on."""
    levels = [values]
    for level in range(max(1, len(values)).bit_length() - 1):
        last, step = levels[-1], 1 << level
        levels.append(np.minimum(last, np.append(last[step:], np.full(min(step, len(last)), np.inf))))
    return np.stack(levels)


@njit(cache=True, nogil=True)
def _stretches(model: Pairwise, member_ptr: I64, members: I64, node_ptr: I64, usage: I64, first: I64, last: I64,
               steps: int) -> tuple[I64, I64, I64, I64, F64, F64]:  # fmt: skip
    """(ptr, low, high, use_ptr, use) of a profile, and the usage that no choice changes [steps]. members: nodes by
    their variable; first, last: [N] of the clock."""
    ptr, map_ptr, maps = model.ptr, model.map_ptr, model.map
    variables, bound, room = len(ptr) - 1, 0, 0
    for v in range(variables):
        count = 0
        for i in range(member_ptr[v], member_ptr[v + 1]):
            count += first[members[i]] < last[members[i]]
        bound += 2 * count
        room += 2 * count * (ptr[v + 1] - ptr[v])
    out_ptr, low, high = np.zeros(variables + 1, np.int64), np.zeros(bound, np.int64), np.zeros(bound, np.int64)
    use_ptr, use, base = np.zeros(bound, np.int64), np.zeros(room), np.zeros(steps + 1)
    found, filled = 0, 0
    for v in range(variables):
        n = ptr[v + 1] - ptr[v]
        width = member_ptr[v + 1] - member_ptr[v]
        times, who, sign = np.zeros(2 * width, np.int64), np.zeros(2 * width, np.int64), np.zeros(2 * width)
        count = 0
        for i in range(member_ptr[v], member_ptr[v + 1]):
            m = members[i]
            if first[m] < last[m]:
                times[count], who[count], sign[count] = first[m], m, 1.0
                times[count + 1], who[count + 1], sign[count + 1] = last[m], m, -1.0
                count += 2
        order = np.argsort(times[:count])
        now = np.zeros(n)
        begun = found
        for k in range(count):
            i = order[k]
            m = who[i]
            for s in range(n):
                now[s] += sign[i] * usage[node_ptr[m] + maps[map_ptr[m] + s]]
            if k + 1 == count or times[order[k + 1]] == times[i]:
                continue
            least, most = now.min(), now.max()
            base[times[i]] += least
            base[times[order[k + 1]]] -= least
            if least == most:
                continue
            same = found > begun and high[found - 1] == times[i]
            if same:
                for s in range(n):
                    if use[use_ptr[found - 1] + s] != now[s] - least:
                        same = False
                        break
            if same:
                high[found - 1] = times[order[k + 1]]
                continue
            low[found], high[found], use_ptr[found] = times[i], times[order[k + 1]], filled
            for s in range(n):
                use[filled + s] = now[s] - least
            filled += n
            found += 1
        out_ptr[v + 1] = found
    return out_ptr, low[:found], high[:found], use_ptr[:found], use[:filled], np.cumsum(base)[:steps]


@njit(cache=True, nogil=True)
def _used(p: MemoryProfile, labels: I64) -> F64:
    change = np.zeros(len(p.room) + 1)
    for v in range(len(p.ptr) - 1):
        for i in range(p.ptr[v], p.ptr[v + 1]):
            amount = p.use[p.use_ptr[i] + labels[v]]
            change[p.low[i]] += amount
            change[p.high[i]] -= amount
    return np.cumsum(change)[: len(p.room)]


@njit(cache=True, nogil=True)
def _priced(p: MemoryProfile, states: I64, total: F64) -> F64:
    out = np.zeros(states[-1])
    for v in range(len(p.ptr) - 1):
        for i in range(p.ptr[v], p.ptr[v + 1]):
            price = total[p.high[i]] - total[p.low[i]]
            if price != 0.0:
                for s in range(states[v + 1] - states[v]):
                    out[states[v] + s] += price * p.use[p.use_ptr[i] + s]
    return out


@njit(cache=True, nogil=True)
def _roomy(p: MemoryProfile, states: I64, minima: F64) -> NDArray[np.bool_]:
    keep = np.ones(states[-1], np.bool_)
    for v in range(len(p.ptr) - 1):
        for i in range(p.ptr[v], p.ptr[v + 1]):
            level = 0
            while (2 << level) <= p.high[i] - p.low[i]:
                level += 1
            room = min(minima[level, p.low[i]], minima[level, p.high[i] - (1 << level)])
            for s in range(states[v + 1] - states[v]):
                if p.use[p.use_ptr[i] + s] > room:
                    keep[states[v] + s] = False
    return keep


# A segment tree over times: add to a range, least of all. Node 1 is the root; leaves are size .. 2*size-1. least[i] is
# the least below node i, with pending[j] of j from i down.


def segment_tree(values: F64) -> tuple[F64, F64]:
    """(least, pending) over values [P]; further leaves are inf."""
    size = 1 << max(0, (max(1, len(values)) - 1).bit_length())
    least = np.full(2 * size, np.inf)
    least[size : size + len(values)] = values
    for i in range(size - 1, 0, -1):
        least[i] = min(least[2 * i], least[2 * i + 1])
    return least, np.zeros(2 * size)


@njit(cache=True, nogil=True)
def add(least: F64, pending: F64, low: int, high: int, amount: float) -> None:
    """To all from low to high - 1."""
    size = len(least) // 2
    left, right = low + size, high + size
    first, last = left, right - 1
    while left < right:
        if left & 1:
            least[left] += amount
            pending[left] += amount
            left += 1
        if right & 1:
            right -= 1
            least[right] += amount
            pending[right] += amount
        left >>= 1
        right >>= 1
    _repair(least, pending, first)
    _repair(least, pending, last)


@njit(cache=True, nogil=True)
def _repair(least: F64, pending: F64, leaf: int) -> None:
    node = leaf >> 1
    while node >= 1:
        least[node] = min(least[2 * node], least[2 * node + 1]) + pending[node]
        node >>= 1
