"""Lower bounds of pairwise models: by messages, and by prices of memory over time beside them.

`Passing`: tree-reweighted message passing with a sequential schedule (TRW-S): a lower bound, an equal model with lower
bounds in its parts, and a labelling. Source: Kolmogorov, Convergent tree-reweighted message passing for energy
minimization, TPAMI 2006, section 3; variables go by their numbers.

`MemoryDual`: prices by Lagrangian relaxation: subgradients from labels that message passing chooses, deflected by their
past (Camerini, Fratta and Maffioli, Mathematical Programming Study 3, 1975), with Polyak's step length.

Shape legend: V variables, S states, E edges, C entries of tables.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphopt.contests.sharding.memory_profile import MemoryProfile
from graphopt.contests.sharding.pairwise import Pairwise, incidence
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit


@dataclass(frozen=True, eq=False)
class EdgeMessages:
    """Into both ends of every edge: to_first at at_first[e] + state, to_second likewise."""

    at_first: I64  # [E]
    at_second: I64  # [E]
    values: F64


def no_messages(model: Pairwise) -> EdgeMessages:
    counts = model.counts
    sizes = (
        np.stack([counts[model.first], counts[model.second]], 1).ravel() if len(model.first) else np.zeros(0, np.int64)
    )
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return EdgeMessages(starts[:-1:2], starts[1::2], np.zeros(int(starts[-1])))


class Passing:
    """The state of message passing over one model."""

    def __init__(self, model: Pairwise) -> None:
        self.model, self.messages = model, no_messages(model)
        self._edge_ptr, self._edges = incidence(model)
        self.labels = np.zeros(len(model.ptr) - 1, np.int64)

    def sweep(self, unary: F64, *, forward: bool) -> float:
        """One pass over all variables with these unaries [S]; the lower bound that it proves. Forward passes choose
        labels by the way."""
        m, model = self.messages, self.model
        return float(_sweep(model.ptr, unary, model.first, model.second, model.table_ptr, model.table, self._edge_ptr,
                            self._edges, m.at_first, m.at_second, m.values, self.labels, forward))  # fmt: skip

    def equal_model(self, unary: F64) -> tuple[F64, F64]:
        """(unary [S], table [C]) of an equal model after a forward pass: the sum of the least of all parts is the
        bound."""
        m, model = self.messages, self.model
        own, table = unary.copy(), model.table.copy()
        _absorb(model.ptr, own, model.first, model.second, model.table_ptr, table, self._edge_ptr, self._edges,
                m.at_first, m.at_second, m.values)  # fmt: skip
        return own, table


@njit(cache=True, nogil=True)
def _shares(v: int, first: I64, second: I64, edge_ptr: I64, edges: I64) -> tuple[int, int]:
    """(edges to later variables, edges to earlier ones)."""
    later = 0
    for i in range(edge_ptr[v], edge_ptr[v + 1]):
        later += first[edges[i]] == v
    return later, edge_ptr[v + 1] - edge_ptr[v] - later


@njit(cache=True, nogil=True)
def _sweep(ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64, edge_ptr: I64, edges: I64,
           at_first: I64, at_second: I64, message: F64, labels: I64, forward: bool) -> float:  # fmt: skip
    variables = len(ptr) - 1
    widest = 0
    for v in range(variables):
        widest = max(widest, ptr[v + 1] - ptr[v])
    own, shared, out = np.zeros(widest), np.zeros(widest), np.zeros(widest)
    bound = 0.0
    for i in range(variables):
        v = i if forward else variables - 1 - i
        n = ptr[v + 1] - ptr[v]
        for s in range(n):
            own[s] = unary[ptr[v] + s]
        for k in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[k]
            at = at_first[e] if first[e] == v else at_second[e]
            for s in range(n):
                own[s] += message[at + s]
        if forward:
            labels[v] = _label(
                v, n, ptr, unary, first, second, table_ptr, table, edge_ptr, edges, at_first, message, labels
            )
        later, earlier = _shares(v, first, second, edge_ptr, edges)
        ahead = later if forward else earlier
        share = 1.0 / max(later, earlier, 1)
        least = np.inf
        for s in range(n):
            least = min(least, own[s])
        bound += (1.0 - ahead * share) * least if ahead * share < 1.0 else 0.0
        for k in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[k]
            if (first[e] == v) != forward:
                continue
            at, to = (at_first[e], at_second[e]) if forward else (at_second[e], at_first[e])
            other = second[e] if forward else first[e]
            size, t = ptr[other + 1] - ptr[other], table_ptr[e]
            for s in range(n):
                shared[s] = share * own[s] - message[at + s]
            for o in range(size):
                out[o] = np.inf
            if forward:
                for s in range(n):
                    for o in range(size):
                        out[o] = min(out[o], shared[s] + table[t + s * size + o])
            else:
                for o in range(size):
                    low = np.inf
                    for s in range(n):
                        low = min(low, shared[s] + table[t + o * n + s])
                    out[o] = low
            low = np.inf
            for o in range(size):
                low = min(low, out[o])
            bound += low
            for o in range(size):
                message[to + o] = out[o] - low
    return bound


@njit(cache=True, nogil=True)
def _label(v: int, n: int, ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64, edge_ptr: I64,
           edges: I64, at_first: I64, message: F64, labels: I64) -> int:  # fmt: skip
    """The best state beside the labels of earlier variables and the messages of later ones."""
    best, least, fewest = 0, np.inf, n * 0 + 1 << 60
    for s in range(n):
        cost, broken = unary[ptr[v] + s], 0
        for k in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[k]
            part = message[at_first[e] + s] if first[e] == v else table[table_ptr[e] + labels[first[e]] * n + s]
            if part < np.inf:
                cost += part
            else:
                broken += 1
        if broken < fewest or (broken == fewest and cost < least):
            best, least, fewest = s, cost, broken
    return best


@njit(cache=True, nogil=True)
def _absorb(ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64, edge_ptr: I64, edges: I64,
            at_first: I64, at_second: I64, message: F64) -> None:  # fmt: skip
    for v in range(len(ptr) - 1):
        n = ptr[v + 1] - ptr[v]
        for k in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[k]
            at = at_first[e] if first[e] == v else at_second[e]
            for s in range(n):
                unary[ptr[v] + s] += message[at + s]
    for e in range(len(first)):
        u, v = first[e], second[e]
        later, earlier = _shares(u, first, second, edge_ptr, edges)
        share, t = 1.0 / max(later, earlier, 1), table_ptr[e]
        nu, nv = ptr[u + 1] - ptr[u], ptr[v + 1] - ptr[v]
        for a in range(nu):
            given = share * unary[ptr[u] + a] - message[at_first[e] + a]
            for b in range(nv):
                table[t + a * nv + b] += given - message[at_second[e] + b]
    for v in range(len(ptr) - 1):
        later, earlier = _shares(v, first, second, edge_ptr, edges)
        kept = 1.0 - later / max(later, earlier, 1)
        for s in range(ptr[v], ptr[v + 1]):
            unary[s] *= kept


class Ascent(NamedTuple):
    """How prices rise. sweeps: of message passing each way, between prices. memory: share of the past in a direction.
    patience: steps without a better bound before steps shrink by `shrink`. reach: how far above the best bound, as
    a share of it, the optimum is taken to lie at most."""

    sweeps: int
    memory: float
    patience: int
    shrink: float
    reach: float


ASCENTS = (Ascent(1, 0.0, 20, 0.7, 0.15), Ascent(3, 0.7, 10, 0.7, 0.3))  # they take turns


class MemoryDual:
    """A lower bound, prices, and labels, from one step to the next. Prices are per share of `unit` in use."""

    def __init__(self, model: Pairwise, memory: MemoryProfile, unit: float, settings: Ascent) -> None:
        self.model, self.memory, self.unit, self.settings = model, memory, max(unit, 1.0), settings
        self.passing = Passing(model)
        self.room = memory.room / self.unit
        self.prices = np.zeros(len(self.room))
        self.bound, self.bound_prices = -np.inf, self.prices
        self.cost, self.labels = np.inf, self.passing.labels.copy()  # of the cheapest labels that fit
        self._recent: tuple[float, float, I64] | None = None  # over the room, cost, labels: the best of late
        self._direction = np.zeros(len(self.room))
        self.scale, self._stalled = 1.0, 0

    def paid(self, prices: F64) -> F64:
        """[S] payments of states for memory."""
        return self.memory.priced(prices / self.unit, self.model.ptr)

    def step(self, known: float = np.inf) -> None:
        """One set of sweeps, then other prices. known: the cost of the best answer."""
        found = self.sweep()
        over = self.memory.used(self.passing.labels) / self.unit - self.room
        cost, worst = self.model.energy(self.passing.labels), max(0.0, float(over.max(initial=0.0)))
        if self._recent is None or (worst, cost) < self._recent[:2]:
            self._recent = worst, cost, self.passing.labels.copy()
        if worst == 0 and cost < self.cost:
            self.cost, self.labels = cost, self.passing.labels.copy()
        self._stalled = 0 if found > self.bound + 1e-4 * abs(self.bound) else self._stalled + 1
        if found > self.bound:
            self.bound, self.bound_prices = found, self.prices
        if self._stalled > self.settings.patience:
            self.scale, self._stalled = self.scale * self.settings.shrink, 0
        if not len(over):
            return
        best = min(known, self.cost)
        base = max(found, self.bound)
        goal = min(best, base + self.settings.reach * abs(base))
        self._direction = self.settings.memory * self._direction + (1 - self.settings.memory) * over
        way = np.where((self.prices <= 0) & (self._direction < 0), 0.0, self._direction)
        length = float(way @ way)
        if length > 0:
            self.prices = np.maximum(0.0, self.prices + self.scale * max(goal - found, 0.0) / length * way)

    def sweep(self) -> float:
        """Passes messages at the present prices; the bound."""
        unary = self.model.unary + self.paid(self.prices)
        found, paid = -np.inf, float(self.prices @ self.room)
        for _ in range(self.settings.sweeps):
            self.passing.sweep(unary, forward=False)
            found = self.passing.sweep(unary, forward=True) - paid
        return found

    def recent(self) -> I64:
        """[V] the best labels since it was asked last."""
        labels = self.passing.labels.copy() if self._recent is None else self._recent[2]
        self._recent = None
        return labels

    def equal_model(self, *, at_bound: bool = False) -> tuple[F64, F64, F64]:
        """(unary [S], table [C], paid [S]): an equal model at the present prices, or those of the best bound, and its
        part that is paid for memory."""
        prices = self.bound_prices if at_bound else self.prices
        paid = self.paid(prices)
        if at_bound:
            for forward in (False, True, False, True):
                self.passing.sweep(self.model.unary + paid, forward=forward)
        unary, table = self.passing.equal_model(self.model.unary + paid)
        return unary, table, paid
