"""The order of ops on one device that needs the least memory, exactly.

The content of memory depends only on the set of ops that have run. So the search is over such sets (down-sets), by
rising peak, and the first way to run everything is the best. From each set, an op that neither adds to memory nor needs
more than is conceded anyway is run at once, and no other is tried. Running it early never hurts, since its freed bytes
stay freed and each later set holds no more than before.

Shape legend: N ops, T tensors.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

EVERY = 256  # sets of ops between two looks at the clock


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor: there from its maker's start (from the beginning, where nothing makes it) until its last reader ends,
    or to the end of all with `keep`. One that nobody reads goes when its maker ends."""

    size: int  # bytes
    maker: int  # op, or -1
    readers: tuple[int, ...]  # distinct ops
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Order:
    """An order of all ops."""

    ops: tuple[int, ...]
    peak: int  # bytes
    states: int  # sets of ops that were looked at


def optimal_order(
    ops: int, tensors: Sequence[Lifetime], *, max_states: int, check: Callable[[], None] = lambda: None
) -> Order | None:
    """An order of least peak memory; None beyond `max_states` sets of ops. `check` is called throughout, and may raise
    to end it."""
    search = _OrderSearch(ops, tensors)
    peak, empty = max([search.first, *search.least()]), 0
    held: dict[int, int] = {empty: search.first}  # set of ops -> bytes when they have run
    came: dict[int, tuple[int, int]] = {}  # set -> (set before, op)
    turn, open_now, later = (
        0,
        [empty],
        list[tuple[int, int, int]](),
    )  # sets to go on from; (peak, set before, op) put off
    while open_now or later:
        if not open_now:
            peak, before, op = heapq.heappop(later)
            search.enter(before, op, held, came, open_now)
            continue
        done = open_now.pop()
        if done == search.all:
            return Order(search.path(came), peak, len(held))
        if len(held) > max_states:
            return None
        turn += 1
        if not turn % EVERY:
            check()
        for op, needs in search.moves(done, held[done], peak):
            if needs <= peak:
                search.enter(done, op, held, came, open_now)
            elif done | 1 << op not in held:
                heapq.heappush(later, (needs, done, op))
    raise ValueError("the ops wait for each other in a cycle")


def peak_of(order: Sequence[int], tensors: Sequence[Lifetime]) -> int:
    """Peak bytes of an order."""
    search = _OrderSearch(len(order), tensors)
    done, held, peak = 0, search.first, search.first
    for op in order:
        peak = max(peak, held + search.made[op])
        held, done = held + search.made[op] - search.freed(op, done), done | 1 << op
    return peak


class _OrderSearch:
    """The ops as bit masks."""

    def __init__(self, ops: int, tensors: Sequence[Lifetime]) -> None:
        self.all = (1 << ops) - 1
        self.before = [0] * ops  # ops that must have run
        self.made = [0] * ops  # bytes of results
        self.unread = [0] * ops  # bytes of results that go at once
        self.read: list[list[tuple[int, int]]] = [[] for _ in range(ops)]  # (other readers, bytes) of freed results
        self.kept = [0] * ops  # bytes read that are not freed
        self.first = sum(t.size for t in tensors if t.maker < 0 and (t.readers or t.keep))
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Lifetime) -> None:
        readers = sum(1 << op for op in set(tensor.readers))
        for op in set(tensor.readers):
            if tensor.maker >= 0:
                self.before[op] |= 1 << tensor.maker
            if tensor.keep:
                self.kept[op] += tensor.size
            else:
                self.read[op].append((readers & ~(1 << op), tensor.size))
        if tensor.maker >= 0:
            self.made[tensor.maker] += tensor.size
            if not readers and not tensor.keep:
                self.unread[tensor.maker] += tensor.size

    def least(self) -> list[int]:
        """[N] bytes that each op needs at least: its inputs and results."""
        return [made + kept + sum(size for _, size in read)
                for made, kept, read in zip(self.made, self.kept, self.read)]  # fmt: skip

    def freed(self, op: int, done: int) -> int:
        """Bytes that go when an op ends after `done`."""
        return self.unread[op] + sum(size for others, size in self.read[op] if not others & ~done)

    def moves(self, done: int, held: int, peak: int) -> list[tuple[int, int]]:
        """(op, bytes that it needs) of the ready ops; a single one where that never hurts."""
        found, waiting = [], self.all & ~done
        while waiting:
            op = (waiting & -waiting).bit_length() - 1
            waiting &= waiting - 1
            if self.before[op] & ~done:
                continue
            needs = held + self.made[op]
            if needs <= peak and self.made[op] <= self.freed(op, done):
                return [(op, needs)]
            found.append((op, needs))
        return found

    def enter(self, done: int, op: int, held: dict[int, int], came: dict[int, tuple[int, int]],
              open_now: list[int]) -> None:  # fmt: skip
        """Runs an op after `done`, unless that set has been seen: then it was with no higher a peak."""
        now = done | 1 << op
        if now not in held:
            held[now] = held[done] + self.made[op] - self.freed(op, done)
            came[now] = done, op
            open_now.append(now)

    def path(self, came: dict[int, tuple[int, int]]) -> tuple[int, ...]:
        done, ops = self.all, list[int]()
        while done in came:
            done, op = came[done]
            ops.append(op)
        return tuple(reversed(ops))
