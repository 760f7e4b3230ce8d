"""What is known of a move before its price is: columns without units, and how much it can gain at most.

Moves are of one op, or of a pair of groups: an op is fused into its readers, stored as a group of its own, moved to
another group, split off; a group joins one that reads it (absorb), or any near it (merge). Known are the groups that
would go, with their latency, and of those that would come what they cost at least.

Shape legend: N ops, S slots of groups, F columns.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.search.tiling.op_sets import Flags, Marks, OpArrays, OpSet, measured
from graphopt.utils.compiled import njit

FUSE, STORE, SPLIT, SHIFT, ABSORB, MERGE = range(6)
KINDS = ("fuse", "store", "split", "shift", "absorb", "merge")
COLUMNS = (*KINDS, "potential", "none", "slack", "bound", "computes_before", "computes_after", "saved", "ops",
           "products", "many_products", "fed", "needs_before", "needs_after", "gone", "tiles", "linked",
           "share")  # fmt: skip
TINY = 1e-6  # of a group's mean latency


class GroupPlaces(NamedTuple):
    """Groups in places. home: [N] the place of a stored op, -1 of a fused one. stored [S, N], many [S]: stored ops of a
    place, and how many; 0 where it is free. inside: [S, N] whether an op runs there. latency, computes, moves, needs:
    [S] of the group. linked: [S] whether a link keeps something for it or by it. key: [S] a digest of all that."""

    home: I64
    stored: I64
    many: I64
    inside: Flags
    latency: F64
    computes: F64
    moves: F64
    needs: F64
    linked: Flags
    key: I64


def no_slots(ops: int) -> GroupPlaces:
    """None is taken."""
    latency, computes, moves, needs = (np.zeros(ops) for _ in range(4))
    return GroupPlaces(np.full(ops, -1), np.zeros((ops, ops), np.int64), np.zeros(ops, np.int64),
                 np.zeros((ops, ops), np.bool_), latency, computes, moves, needs, np.zeros(ops, np.bool_),
                 np.zeros(ops, np.int64))  # fmt: skip


class Sums(NamedTuple):
    """[.] of the groups that go, and of those that come."""

    gone: F64  # latency, bound, computes, moves, needs at most, count, linked
    come: F64  # bound, computes, moves, needs at most, size at most, products at most, fed, tiles


@njit(cache=True, nogil=True)
def goes(slot: int, s: GroupPlaces, sums: Sums) -> None:
    """Counts a group that the move undoes."""
    sums.gone[0] += s.latency[slot]
    sums.gone[1] += max(s.computes[slot], s.moves[slot])
    sums.gone[2] += s.computes[slot]
    sums.gone[3] += s.moves[slot]
    sums.gone[4] = max(sums.gone[4], s.needs[slot])
    sums.gone[5] += 1.0
    sums.gone[6] += 1.0 if s.linked[slot] else 0.0


@njit(cache=True, nogil=True)
def comes(found: OpSet, sums: Sums) -> bool:
    """Counts a group that the move makes; whether it can be."""
    sums.come[0] += max(found.computes, found.moves)
    sums.come[1] += found.computes
    sums.come[2] += found.moves
    sums.come[3] = max(sums.come[3], found.needs)
    sums.come[4] = max(sums.come[4], float(found.size))
    sums.come[5] = max(sums.come[5], float(found.products))
    sums.come[6] = max(sums.come[6], 1.0 if found.fed else 0.0)
    sums.come[7] = max(sums.come[7], found.tiles)
    return found.possible


@njit(cache=True, nogil=True)
def gather(kind: int, op: int, other: int, s: GroupPlaces, a: OpArrays, m: Marks, room: I64, sums: Sums) -> bool:
    """Sums of a move of an op (or of its group) towards slot `other`; False where it cannot be. room: [N+1]."""
    sums.gone[:] = 0.0
    sums.come[:] = 0.0
    own = s.home[op]
    if kind == STORE:
        return _stored(op, s, a, m, room, sums)
    goes(own, s, sums)
    if kind == FUSE:
        return _fused(op, own, s, a, m, room, sums)
    if kind == SPLIT:
        room[0] = op
        return (comes(measured(room, 1, s.home, a, m), sums)
                and comes(measured(room, _without(op, own, s, room), s.home, a, m), sums))  # fmt: skip
    goes(other, s, sums)
    if kind == ABSORB:
        return _absorbed(own, other, s, a, m, room, sums)
    count = s.many[other]
    room[:count] = s.stored[other, :count]
    if kind == MERGE:
        room[count : count + s.many[own]] = s.stored[own, : s.many[own]]
        return comes(measured(room, count + s.many[own], s.home, a, m), sums)
    room[count] = op
    if not comes(measured(room, count + 1, s.home, a, m), sums):
        return False
    left = _without(op, own, s, room)
    return left == 0 or comes(measured(room, left, s.home, a, m), sums)


@njit(cache=True, nogil=True)
def _without(op: int, slot: int, s: GroupPlaces, room: I64) -> int:
    """Writes the stored ops of a group but one; how many."""
    count = 0
    for i in range(s.many[slot]):
        if s.stored[slot, i] != op:
            room[count] = s.stored[slot, i]
            count += 1
    return count


@njit(cache=True, nogil=True)
def reads(slot: int, op: int, s: GroupPlaces, a: OpArrays) -> bool:
    """Whether a group reads the result of an op."""
    found = False
    for k in range(a.reader_ptr[op], a.reader_ptr[op + 1]):
        found = found or s.inside[slot, a.reader[k]]
    return found


@njit(cache=True, nogil=True)
def _again(op: int, own: int, s: GroupPlaces, a: OpArrays, m: Marks, room: I64, sums: Sums) -> bool:
    """All groups but `own` that read an op are made anew."""
    for slot in range(len(s.many)):
        if slot != own and s.many[slot] and reads(slot, op, s, a):
            goes(slot, s, sums)
            if not comes(measured(s.stored[slot], s.many[slot], s.home, a, m), sums):
                return False
    return True


@njit(cache=True, nogil=True)
def _fused(op: int, own: int, s: GroupPlaces, a: OpArrays, m: Marks, room: I64, sums: Sums) -> bool:
    s.home[op] = -1
    left = _without(op, own, s, room)
    fine = (left == 0 or comes(measured(room, left, s.home, a, m), sums)) and _again(op, own, s, a, m, room, sums)
    s.home[op] = own
    return fine


@njit(cache=True, nogil=True)
def _stored(op: int, s: GroupPlaces, a: OpArrays, m: Marks, room: I64, sums: Sums) -> bool:
    s.home[op] = len(s.many)
    room[0] = op
    fine = comes(measured(room, 1, s.home, a, m), sums) and _again(op, -1, s, a, m, room, sums)
    s.home[op] = -1
    return fine


@njit(cache=True, nogil=True)
def _absorbed(own: int, other: int, s: GroupPlaces, a: OpArrays, m: Marks, room: I64, sums: Sums) -> bool:
    """What only the other group reads is fused."""
    count = s.many[other]
    room[:count] = s.stored[other, :count]
    for i in range(s.many[own]):
        op = s.stored[own, i]
        alone = a.reader_ptr[op] < a.reader_ptr[op + 1]
        for k in range(a.reader_ptr[op], a.reader_ptr[op + 1]):
            alone = alone and s.inside[other, a.reader[k]]
        if alone:
            s.home[op] = -1
        else:
            room[count] = op
            count += 1
    fine = comes(measured(room, count, s.home, a, m), sums)
    for i in range(s.many[own]):
        s.home[s.stored[own, i]] = own
    return fine


@njit(cache=True, nogil=True)
def describe(kind: int, sums: Sums, mean: float, out: F64) -> tuple[float, float, float]:
    """Writes the columns [F] of a move; (latency of what goes, what it gains at most, time for moving that it saves).
    That is but for links. mean: latency of a group."""
    gone, come = sums.gone, sums.come
    latency, potential = max(gone[0], TINY * mean), gone[0] - come[0]
    out[:] = 0.0
    out[kind] = 1.0
    out[6] = 0.25 * np.log(max(potential, TINY * mean) / mean)
    out[7] = 1.0 if potential <= TINY * mean else 0.0
    out[8] = (gone[0] - gone[1]) / latency
    out[9] = max(-3.0, (gone[1] - come[0]) / latency)
    out[10] = gone[2] / latency
    out[11] = come[1] / max(come[0], TINY * mean)
    out[12] = max(-3.0, (gone[3] - come[2]) / latency)
    out[13] = np.log(max(come[4], 1.0))
    out[14] = 1.0 if come[5] >= 2.0 else 0.0
    out[15] = 1.0 if come[5] >= 3.0 else 0.0
    out[16] = come[6]
    out[17] = 0.5 * np.log(max(gone[4], 1e-3))
    out[18] = 0.5 * np.log(max(come[3], 1e-3))
    out[19] = np.log(gone[5])
    out[20] = 0.25 * np.log(max(come[7], 1.0))
    out[21] = gone[6] / gone[5]
    out[22] = 0.25 * np.log(latency / mean)
    return latency, potential, gone[3] - come[2]
