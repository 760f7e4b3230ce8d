"""`MoveTable`: all moves from one grouping, scored before any is priced, and drawn by their scores.

A move's score is kept by what it touches, as are its failures; so only what a change has touched is scored again.

Shape legend: N ops, S slots of groups, M moves, F columns.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.errors import Unsolved
from graphopt.search.tiling.groupings import Grouping, Wiring
from graphopt.search.tiling.move_columns import (
    ABSORB,
    COLUMNS,
    FUSE,
    MERGE,
    SHIFT,
    SPLIT,
    STORE,
    TINY,
    GroupPlaces,
    Sums,
    describe,
    gather,
    no_slots,
    reads,
)
from graphopt.search.tiling.op_sets import Marks, OpArrays, marks, measured, op_arrays
from graphopt.tiling.tile_costs import bits
from graphopt.utils.compiled import njit
from graphopt.utils.share_network import ShareNetwork, expected, no_network

EVEN, SAVED, POTENTIAL = range(3)  # scores: all alike; time for moving tensors that is saved; most that can be gained
MOST_OPS = 2000  # tables have rows and columns for ops
KEYS = 2**16  # places for scores; half of them are used, then all are forgotten


class Known(NamedTuple):
    """Scores by digests. key, score, fails: [KEYS]; used: [1] places that are taken."""

    key: I64
    score: F64
    fails: I64
    used: I64


class MoveLists(NamedTuple):
    """kind, op, slot, place (of its score), weight: [M]. met: [3, S, S] when pairs of groups, or of an op and a group,
    were last seen; time: [1]."""

    kind: I64
    op: I64
    slot: I64
    place: I64
    weight: F64
    met: I64
    time: I64


class ListedMove(NamedTuple):
    """number: in the table. other: the number of another group, -1 without one."""

    number: int
    kind: int
    op: int
    other: int


class MoveTable:
    """Of one solve. by: what scores are. power: of scores, in weights. fade: what a failure leaves of a weight.
    network: then scores are what it expects, a share of the latency of what would go."""

    def __init__(self, wiring: Wiring, by: int, power: float, fade: float, network: ShareNetwork | None = None) -> None:
        if wiring.workload.num_ops > MOST_OPS:
            raise Unsolved(
                f"tables of moves are for {MOST_OPS:,} ops at most: take algo=tile_walk algo.order.by=passes"
            )
        self._by, self._power, self._fade = by, power, fade
        self._network = network or no_network()
        self._arrays = op_arrays(wiring)
        self._marks = marks(self._arrays)
        n = wiring.workload.num_ops
        self._slots = no_slots(n)
        most = 2 * len(self._arrays.near) + n * n + 2 * n
        kind, op, slot, place = (np.zeros(most, np.int64) for _ in range(4))
        self._moves = MoveLists(
            kind, op, slot, place, np.zeros(most), np.zeros((3, n, n), np.int64), np.zeros(1, np.int64)
        )
        self._known = Known(np.zeros(KEYS, np.int64), np.zeros(KEYS), np.zeros(KEYS, np.int64),
                            np.zeros(1, np.int64))  # fmt: skip
        self._sums, self._room = Sums(np.zeros(7), np.zeros(8)), np.zeros(n + 1, np.int64)
        self._columns = np.zeros(len(COLUMNS))
        self._wiring, self._mean = wiring, 1.0
        self._place: dict[int, int] = {}  # of groups, by number
        self._entered: dict[int, object] = {}
        self._free = [*range(n)]
        self.count = 0

    def enter(self, now: Grouping) -> None:
        """Moves from this grouping."""
        for number in [number for number in self._entered if number not in now.groups]:
            del self._entered[number]
            place = self._place.pop(number)
            self._slots.many[place] = 0
            self._free.append(place)
        self._slots.home[[*bits(now.fused)]] = -1
        changed = [number for number, group in now.groups.items() if self._entered.get(number) is not group]
        for number in changed:
            self._write_home(number, now)
        for number in changed:
            self._write(number, now)
        self._numbers = {place: number for number, place in self._place.items()}
        self._mean = now.mean
        if self._known.used[0] > KEYS // 2:
            self._known.key[:] = self._known.used[:] = 0
        self.count = _listed(self._slots, self._arrays, self._marks, self._moves, self._known, self._sums, self._room,
                             self._columns, self._mean, self._by, self._network)  # fmt: skip
        self._weigh()

    def _write_home(self, number: int, now: Grouping) -> None:
        if number not in self._place:
            self._place[number] = self._free.pop()
        self._slots.home[[*bits(now.groups[number].stored)]] = self._place[number]

    def _write(self, number: int, now: Grouping) -> None:
        group, s, place = now.groups[number], self._slots, self._place[number]
        self._entered[number] = group
        stored = [*bits(group.stored)]
        s.stored[place, : len(stored)] = stored
        s.many[place] = len(stored)
        s.inside[place] = False
        s.inside[place, [*bits(group.ops)]] = True
        found = measured(s.stored[place], len(stored), s.home, self._arrays, self._marks)
        s.latency[place] = self._wiring.cost(group)
        s.computes[place], s.moves[place], s.needs[place] = found.computes, found.moves, found.needs
        s.linked[place] = bool(group.resident or group.retained)
        s.key[place] = hash((group.stored, group.ops, group.resident, group.retained))

    def _weigh(self) -> None:
        self.total = _weighed(self._moves, self.count, self._known, self._power, self._fade, self._by, self._mean)

    def drawn(self, chance: float) -> ListedMove:
        """One of `count`, by weights; chance: in [0, 1)."""
        return self.move(_drawn(self._moves, self.count, chance * self.total))

    def move(self, number: int) -> ListedMove:
        """One of `count`."""
        kind, op, slot = int(self._moves.kind[number]), int(self._moves.op[number]), int(self._moves.slot[number])
        return ListedMove(number, kind, op, self._numbers[slot] if slot >= 0 else -1)

    def refuse(self, move: ListedMove) -> None:
        """It was not taken."""
        self._known.fails[self._moves.place[move.number]] += 1
        before = self._moves.weight[move.number]
        self._moves.weight[move.number] = before * self._fade
        self.total -= before * (1.0 - self._fade)

    def described(self, move: ListedMove) -> tuple[F64, float]:
        """(columns [F] of a move, latency of the groups that would go)."""
        slot = int(self._moves.slot[move.number])
        gather(move.kind, move.op, slot, self._slots, self._arrays, self._marks, self._room, self._sums)
        latency, _, _ = describe(move.kind, self._sums, self._mean, self._columns)
        return self._columns.copy(), latency


@njit(cache=True, nogil=True)
def _listed(s: GroupPlaces, a: OpArrays, m: Marks, moves: MoveLists, known: Known, sums: Sums, room: I64, columns: F64,
            mean: float, by: int, network: ShareNetwork) -> int:  # fmt: skip
    """Writes all moves that can be; how many."""
    moves.time[0] += 1
    count = 0
    for op in range(len(s.home)):
        own = s.home[op]
        if own < 0:
            count = _add(STORE, op, -1, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
            continue
        if a.reader_ptr[op] < a.reader_ptr[op + 1]:
            count = _add(FUSE, op, -1, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
        if s.many[own] > 1:
            count = _add(SPLIT, op, -1, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
        for k in range(a.near_ptr[op], a.near_ptr[op + 1]):
            other = s.home[a.near[k]]
            if other < 0 or other == own:
                continue
            if s.many[own] > 1 and moves.met[2, op, other] != moves.time[0]:
                moves.met[2, op, other] = moves.time[0]
                count = _add(SHIFT, op, other, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
            if own < other and moves.met[0, own, other] != moves.time[0]:
                moves.met[0, own, other] = moves.time[0]
                count = _add(MERGE, op, other, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
        for other in range(len(s.many)):
            if s.many[other] and other != own and moves.met[1, own, other] != moves.time[0] and reads(other, op, s, a):
                moves.met[1, own, other] = moves.time[0]
                count = _add(ABSORB, op, other, count, s, a, m, moves, known, sums, room, columns, mean, by, network)
    return count


@njit(cache=True, nogil=True)
def _add(kind: int, op: int, other: int, count: int, s: GroupPlaces, a: OpArrays, m: Marks, moves: MoveLists,
         known: Known, sums: Sums, room: I64, columns: F64, mean: float, by: int,
         network: ShareNetwork) -> int:  # fmt: skip
    """Writes one move, unless it cannot be."""
    key = _key(kind, op, other, s, a)
    place = _find(key, known)
    if known.key[place] != key:
        known.key[place], known.fails[place] = key, 0
        known.used[0] += 1
        known.score[place] = -1.0
        if gather(kind, op, other, s, a, m, room, sums):
            latency, potential, saved = describe(kind, sums, mean, columns)
            if len(network.second):
                known.score[place] = expected(latency, columns, network)
            else:
                known.score[place] = max(saved if by == SAVED else potential, 0.0)
    if known.score[place] < 0.0:
        return count
    moves.kind[count], moves.op[count], moves.slot[count], moves.place[count] = kind, op, other, place
    return count + 1


@njit(cache=True, nogil=True)
def _mixed(value: int) -> int:
    """SplitMix64's last steps, as a positive number."""
    z = np.uint64(value) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.int64((z ^ (z >> np.uint64(31))) >> np.uint64(1))  # type: ignore[return-value] # compiled, it is an int


@njit(cache=True, nogil=True)
def _key(kind: int, op: int, other: int, s: GroupPlaces, a: OpArrays) -> int:
    """A digest of a move and the groups that it touches."""
    own = s.home[op]
    key = _mixed(kind + 8 * (op + 1) if kind < ABSORB else kind)  # those of two groups are of no one op
    if own >= 0:
        key = _mixed(key ^ s.key[own])
    if other >= 0:
        return _mixed(key ^ (s.key[other] << 1))
    if kind == SPLIT:
        return key
    around = 0
    for slot in range(len(s.many)):
        if slot != own and s.many[slot] and reads(slot, op, s, a):
            around ^= _mixed(s.key[slot])
    return _mixed(key ^ around)


@njit(cache=True, nogil=True)
def _find(key: int, known: Known) -> int:
    """The place of a key, or an empty one for it."""
    place = key % len(known.key)
    while known.key[place] != key and known.key[place] != 0:
        place = (place + 1) % len(known.key)
    return place


@njit(cache=True, nogil=True)
def _weighed(moves: MoveLists, count: int, known: Known, power: float, fade: float, by: int, mean: float) -> float:
    """Writes the weight of every move; their sum."""
    total = 0.0
    for i in range(count):
        place = moves.place[i]
        score = 1.0 if by == EVEN else max(known.score[place] / mean, TINY) ** power
        moves.weight[i] = score * fade ** known.fails[place]
        total += moves.weight[i]
    return total


@njit(cache=True, nogil=True)
def _drawn(moves: MoveLists, count: int, where: float) -> int:
    for i in range(count):
        where -= moves.weight[i]
        if where < 0.0:
            return i
    return count - 1
