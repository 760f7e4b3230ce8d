"""The queues of the event simulation, for Numba: sets of ranks, pairing heaps, and a heap of events.

Everything is arrays that the caller owns: small functions on a few arrays each are inlined and cost no calls.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from graphopt.core.utils.compiled import njit

_U = np.uintp  # indices of this type are not looked at for being negative

# Items that wait by priority: a set of ranks per resource, as bits in three levels (a bit of level 1 is 64 ranks).


@njit(cache=True, nogil=True)
def levels(num_ops):  # type: ignore[no-untyped-def]
    """Words of each level."""
    first = (num_ops + 63) >> 6
    second = (first + 63) >> 6
    return first, second, (second + 63) >> 6


def lowest_bit(word: Any) -> Any:
    """Position of the lowest bit of an int64 that is not 0."""
    return (int(word) & -int(word)).bit_length() - 1


@overload(lowest_bit)
def _lowest_bit(word):  # type: ignore[no-untyped-def]
    return lambda word: _trailing_zeros(word)  # type: ignore[call-arg]


@intrinsic
def _trailing_zeros(typing_context, word):  # type: ignore[no-untyped-def]

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@njit(cache=True, nogil=True, forceinline=True)
def insert(rank, device, ready, first, second):  # type: ignore[no-untyped-def]
    one = np.int64(1)
    ready[device, rank >> 6] |= one << (rank & 63)
    ready[device, first + (rank >> 12)] |= one << ((rank >> 6) & 63)
    ready[device, first + second + (rank >> 18)] |= one << ((rank >> 12) & 63)


@njit(cache=True, nogil=True, forceinline=True)
def take_first(device, ready, first, second):  # type: ignore[no-untyped-def]
    """Removes and returns the smallest rank of a set that is not empty."""
    top = first + second
    while ready[device, top] == 0:
        top += 1
    middle = (top - first - second << 6) + lowest_bit(ready[device, top])
    low = (middle << 6) + lowest_bit(ready[device, first + middle])
    word = ready[device, low]
    rank = (low << 6) + lowest_bit(word)
    ready[device, low] = word & (word - 1)
    if word & (word - 1) == 0:
        word = ready[device, first + middle]
        ready[device, first + middle] = word & (word - 1)
        if word & (word - 1) == 0:
            ready[device, top] &= ready[device, top] - 1
    return rank


@njit(cache=True, nogil=True, forceinline=True)
def any_left(device, ready, top):  # type: ignore[no-untyped-def]
    """0 if the set has members, else -1."""
    for i in range(top, ready.shape[1]):
        if ready[device, i] != 0:
            return np.int32(0)
    return np.int32(-1)


def _bits_of(number: Any) -> Any:
    """The bits of a float64 as int64."""
    return np.float64(number).view(np.int64)


@overload(_bits_of)
def _bits(number):  # type: ignore[no-untyped-def]
    return lambda number: _bitcast(number)  # type: ignore[call-arg]


@intrinsic
def _bitcast(typing_context, number):  # type: ignore[no-untyped-def]

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@njit(cache=True, nogil=True, forceinline=True)
def _sortable(number):  # type: ignore[no-untyped-def]
    """An integer whose bytes, highest first, order as the numbers do."""
    bits: Any = _bits_of(number)
    return bits ^ (bits >> 63 | np.int64(-0x8000000000000000))


@njit(cache=True, nogil=True)
def rank_by_priority(priority, order, rank):  # type: ignore[no-untyped-def]
    """Fills `order` and `rank` by descending priority, ties by op id.

    Few ops by insertion. Others by radix sort of the first 22 bits in which priorities differ, then insertion for ops
    that only later bits tell apart; where that takes long, by radix sort of all bits.
    """
    num_ops = len(priority)
    bits, varying = np.empty(num_ops, np.int64), np.int64(0)
    for n in range(num_ops):
        order[_U(n)] = n
        bits[_U(n)] = _sortable(0.0 - priority[_U(n)])
        varying |= bits[_U(n)] ^ bits[0]
    if varying != 0:
        if num_ops > _FEW:
            high = 63
            while not (varying >> high) & 1:
                high -= 1
            _radix_sort(bits, max(0, high - 2 * _DIGIT + 1), order)
        if not _insertion_sort(bits, order, _FEW // 2 * num_ops):
            for n in range(num_ops):
                order[_U(n)] = n
            for low in range(0, 64, 2 * _DIGIT):
                _radix_sort(bits, low, order)
    for i in range(num_ops):
        rank[_U(order[_U(i)])] = i


_DIGIT, _FEW = 11, 64


@njit(cache=True, nogil=True)
def _radix_sort(bits, low, order):  # type: ignore[no-untyped-def]
    """Sorts `order` stably by two digits of `bits`, those from bit `low` on."""
    num_ops, most = len(bits), np.int64((1 << _DIGIT) - 1)
    lower, upper = np.zeros(most + 2, np.int32), np.zeros(most + 2, np.int32)
    between = np.empty(num_ops, np.int64)  # sorted by the lower digit: the upper one above the op
    for n in range(num_ops):
        digits = bits[_U(n)] >> low
        lower[_U((digits & most) + 1)] += 1
        upper[_U((digits >> _DIGIT & most) + 1)] += 1
    for digit in range(most + 1):
        lower[_U(digit + 1)] += lower[_U(digit)]
        upper[_U(digit + 1)] += upper[_U(digit)]
    for i in range(num_ops):
        op = np.int64(order[_U(i)])
        digits = bits[_U(op)] >> low
        between[_U(lower[_U(digits & most)])] = (digits >> _DIGIT & most) << 32 | op
        lower[_U(digits & most)] += 1
    for i in range(num_ops):
        digit = between[_U(i)] >> 32
        order[_U(upper[_U(digit)])] = between[_U(i)] & 0xFFFFFFFF
        upper[_U(digit)] += 1


@njit(cache=True, nogil=True)
def _insertion_sort(bits, order, moves):  # type: ignore[no-untyped-def]
    """Sorts `order` by all bits as unsigned numbers where it is nearly sorted; False after too many moves."""
    flip = np.int64(-0x8000000000000000)
    for i in range(1, len(order)):
        item, j = order[_U(i)], i
        while j > 0 and bits[_U(item)] ^ flip < bits[_U(order[_U(j - 1)])] ^ flip:
            order[_U(j)] = order[_U(j - 1)]
            j -= 1
            moves -= 1
        order[_U(j)] = item
        if moves < 0:
            return False
    return True


@njit(cache=True, nogil=True)
def rank_results(out_ptr, order, result_order, result_rank):  # type: ignore[no-untyped-def]
    """Ranks results as their producers are ranked, ties by tensor id."""
    position = 0
    for n in order:
        for tensor in range(out_ptr[_U(n)], out_ptr[_U(n + 1)]):
            result_order[_U(position)], result_rank[_U(tensor)] = tensor, position
            position += 1


# Items that wait by keys or first in, first out: one pairing heap per resource, smallest (key, tie) first.


@njit(cache=True, nogil=True, forceinline=True)
def meld(a, b, key, tie, child, sibling):  # type: ignore[no-untyped-def]
    if key[b] < key[a] or (key[b] == key[a] and tie[b] < tie[a]):
        a, b = b, a
    sibling[b] = child[a]
    child[a] = b
    return a


@njit(cache=True, nogil=True, forceinline=True)
def dequeue(top, key, tie, child, sibling):  # type: ignore[no-untyped-def]
    """Removes the first item, returns the new first or -1: children are melded in pairs, then the pairs backwards."""
    item, pairs = child[top], np.int32(-1)
    while item >= 0:
        other, following = sibling[item], np.int32(-1)
        if other >= 0:
            following = sibling[other]
            item = meld(item, other, key, tie, child, sibling)
        sibling[item] = pairs
        pairs, item = item, following
    if pairs >= 0:
        item = sibling[pairs]
        while item >= 0:
            following = sibling[item]
            pairs = meld(pairs, item, key, tie, child, sibling)
            item = following
    return pairs


# Events: a binary heap by time with at most one entry per resource.


@njit(cache=True, nogil=True, forceinline=True)
def push_event(time, resource, size, times, resources):  # type: ignore[no-untyped-def]
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] <= time:
            break
        times[i], resources[i] = times[parent], resources[parent]
        i = parent
    times[i], resources[i] = time, resource


@njit(cache=True, nogil=True, forceinline=True)
def drop_first_event(last, times, resources):  # type: ignore[no-untyped-def]
    """Moves the entry at index `last`, the end of the heap, to where it belongs when the first is gone."""
    time, resource, i = times[last], resources[last], 0
    while True:
        best = 2 * i + 1
        if best >= last:
            break
        if best + 1 < last and times[best + 1] < times[best]:
            best += 1
        if times[best] >= time:
            break
        times[i], resources[i] = times[best], resources[best]
        i = best
    times[i], resources[i] = time, resource
