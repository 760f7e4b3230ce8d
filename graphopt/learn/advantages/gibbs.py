"""LAF's samples and labels: Gibbs sampling of decisions with every choice at every visited slot priced (section 4.1),
and the local advantages f(k) = cost(y_v = k, rest) - cost(y_v = first choice, rest) of it (sections 3 and 4.2).

A visit prices all choices of one slot with the other slots as they are, and draws the next choice with
p(y_v = k | rest) proportional to exp(-cost(y_v = k, rest) / tau). A survey prices all choices of all slots around one
decision and moves nothing: a network reads such a decision once for all its labels. Surveys are our addition.
Decisions are canonical (`AssignTask.canonical`), so exact deltas and full prices give the same samples bit for bit.

Shape legend: V visits, K choices, N ops, H heads, M slots, L labelled slots.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.core.plan import Decision
from graphopt.problems.assignment import PricedFlips, Pricing
from graphopt.search.walks.moves import BATCH_ENTRIES, Slots


class ConditionalPrices(Protocol):
    """A current decision, and what every choice of any slot would cost with the rest as it is."""

    decision: Decision  # [N, H] canonical
    evals: int  # prices asked for so far

    def prices(self, rows: I64) -> F64:
        """[V, K] cost of every choice of each slot (an index into `Slots`); nan where a choice does not exist."""

    def move(self, row: int, choice: int) -> None:
        """Makes a priced choice."""


class DeltaPrices:
    """By exact deltas of store/inline flips."""

    def __init__(self, flips: PricedFlips, slots: Slots, decision: Decision) -> None:
        self._flips, self._slots, self.evals = flips, slots, 0
        self.decision = decision

    def prices(self, rows: I64) -> F64:
        op = self._slots.op[rows]
        now = self.decision[op, 0]
        out = np.full((len(rows), 2), self._flips.cost)
        out[np.arange(len(rows)), 1 - now] = self._flips.price(op)
        self.evals += len(rows)
        return out

    def move(self, row: int, choice: int) -> None:
        if choice != self.decision[self._slots.op[row], 0]:
            self._flips.apply(int(self._slots.op[row]))
            self.decision = self._flips.decision


class FullPrices:
    """By pricing whole decisions, in batches."""

    def __init__(self, pricing: Pricing, slots: Slots, decision: Decision) -> None:
        self._pricing, self._task, self._slots = pricing, pricing.task, slots
        self.decision, self.evals = decision, 0
        self._now = self._price(decision[None])[0]
        self._known: dict[tuple[int, int], float] = {}  # prices of (row, choice) around the current decision

    def prices(self, rows: I64) -> F64:
        op, head, choices = (part[rows] for part in (self._slots.op, self._slots.head, self._slots.choices))
        present = self.decision[op, head]
        choice = np.arange(self._task.num_choices)
        visit, other = np.nonzero((choice < choices[:, None]) & (choice != present[:, None]))
        out = np.full((len(rows), len(choice)), np.nan)
        out[np.arange(len(rows)), present] = self._now
        step = max(1, BATCH_ENTRIES // self.decision.size)
        for start in range(0, len(visit), step):
            v, k = visit[start : start + step], other[start : start + step]
            changed = np.repeat(self.decision[None], len(v), 0)
            changed[np.arange(len(v)), op[v], head[v]] = k
            out[v, k] = self._price(changed)
        self.evals += len(visit)
        self._known = {(int(rows[v]), int(k)): float(out[v, k]) for v, k in zip(visit, other)} if len(rows) == 1 else {}
        return out

    def move(self, row: int, choice: int) -> None:
        op, head = self._slots.op[row], self._slots.head[row]
        if choice == self.decision[op, head]:
            return
        changed = self.decision.copy()
        changed[op, head] = choice
        self.decision = self._task.canonical(self._pricing.graph, changed)
        known = self._known.get((row, choice))
        self._now = self._price(self.decision[None])[0] if known is None else known
        self._known = {}

    def _price(self, decisions: NDArray[np.int16]) -> F64:
        return self._pricing.decisions(decisions).cost


def surroundings(pricing: Pricing, slots: Slots, decision: Decision) -> ConditionalPrices:
    """Of the canonical form of a decision; by exact deltas where the task and the cost model have them."""
    decision = pricing.task.canonical(pricing.graph, decision)
    flips = pricing.flips(decision)
    return FullPrices(pricing, slots, decision) if flips is None else DeltaPrices(flips, slots, decision)


@dataclass(frozen=True, eq=False)
class Samples:
    """V visits in order, and how the decision changed between them."""

    start: Decision  # [N, H] the decision of the first visit
    row: NDArray[np.int32]  # [V] slot visited, an index into `Slots`
    price: F64  # [V, K] cost of every choice there; nan where a choice does not exist
    changed_at: NDArray[np.int32]  # [C] the visit after which an entry changed, ascending
    changed_entry: NDArray[np.int32]  # [C] op * H + head
    changed_to: NDArray[np.int16]  # [C]
    evals: int  # prices asked for

    def decision(self, visit: int) -> Decision:
        """[N, H] the decision around which a visit priced its choices."""
        out = self.start.copy()
        until = int(np.searchsorted(self.changed_at, visit))
        for entry, choice in zip(self.changed_entry[:until].tolist(), self.changed_to[:until].tolist()):
            out.reshape(-1)[entry] = choice
        return out

    def end(self) -> Decision:
        """[N, H] the decision after the last visit."""
        return self.decision(len(self.row))

    def moments(self) -> list[tuple[int, int]]:
        """Runs of visits [first, last) around one and the same decision."""
        cuts = np.unique(np.concatenate([[0], self.changed_at.astype(np.int64) + 1, [len(self.row)]]))
        return list(zip(cuts[:-1].tolist(), cuts[1:].tolist()))


def survey(around: ConditionalPrices, rows: I64) -> Samples:
    """Prices all choices of the given slots around the current decision, and moves nothing."""
    before = around.evals
    price = around.prices(rows)
    return _samples(around.decision, [rows], [price], [], around.evals - before)


def sweep(around: ConditionalPrices, rows: I64, tau: float, rng: np.random.Generator, *, surveyed: bool) -> Samples:
    """Visits slots in order from the current decision, which moves on; with `surveyed`, a survey of where it ends."""
    start, before = around.decision, around.evals
    priced, changes = [], []
    for visit, row in enumerate(rows):
        price = around.prices(rows[visit : visit + 1])
        priced.append(price)
        here = around.decision
        around.move(int(row), draw(price[0], tau, rng))
        entry = np.flatnonzero((around.decision != here).reshape(-1))
        if len(entry):
            changes.append(np.stack([np.full(len(entry), visit), entry, around.decision.reshape(-1)[entry]]))
    if surveyed:
        priced.append(around.prices(rows))
    return _samples(start, [rows, rows] if surveyed else [rows], priced, changes, around.evals - before)


def _samples(start: Decision, rows: list[I64], priced: list[F64], changes: list[I64], evals: int) -> Samples:
    at, entry, to = np.concatenate(changes, 1) if changes else np.zeros((3, 0), np.int64)
    return Samples(start, np.concatenate(rows).astype(np.int32), np.concatenate(priced), at.astype(np.int32),
                   entry.astype(np.int32), to.astype(np.int16), evals)  # fmt: skip


def draw(price: F64, tau: float, rng: np.random.Generator) -> int:
    """A choice by p(k) proportional to exp(-price / tau); impossible ones (inf, nan) never, unless all are."""
    cost = np.where(np.isnan(price), np.inf, price)
    least = cost.min()
    if not np.isfinite(least):
        return int(np.argmin(cost))
    weight = np.exp(-(cost - least) / tau)
    cumulative = np.cumsum(weight)
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def typical(price: F64) -> float:
    """The median size of a change of cost by a change of choice, those that change nothing left out; 0 if all do.

    price: [V, K] as visits give them.
    """
    size = np.abs(price - price[:, :1])[:, 1:]
    size = size[np.isfinite(size) & (size > 0)]
    return float(np.median(size)) if len(size) else 0.0


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """One decision of a graph and what is known around it."""

    decision: Decision  # [N, H]
    row: I64  # [L] slots, indices into `Slots`
    advantage: F64  # [L, K] f of every choice; nan where there is none, or a price is infinite
    important: NDArray[np.bool_]  # [L, K] among the largest of the graph in size


class ExampleSet:
    """All samples of one graph.

    sigma: median size of an advantage; those of exactly 0 (refused requests) are left out, which the paper does not
    say, since they are most of them on some graphs. largest: size from which an advantage is among the `share` largest.
    """

    def __init__(self, shards: Sequence[Samples], share: float, least: int) -> None:
        """share: of the samples that count as important. least: decisions with fewer labels are not drawn, where there
        are others: a network reads the whole graph for them."""
        self._shards = shards
        prices = np.concatenate([np.asarray(samples.price) for samples in shards])
        self.sigma = typical(prices) or 1.0
        size = np.abs(advantages(prices)[:, 1:])
        size = size[np.isfinite(size)]
        self.largest = float(np.quantile(size, 1.0 - share)) if len(size) else np.inf
        moments = [(i, *run) for i, samples in enumerate(shards) for run in samples.moments()]
        enough = [moment for moment in moments if moment[2] - moment[1] >= least]
        self.moments = enough or moments
        labels = np.array([last - first for _, first, last in self.moments])
        self._cumulative = np.cumsum(labels / labels.sum())

    def draw(self, rng: np.random.Generator) -> TrainingExample:
        """Every label equally often."""
        return self.at(min(int(np.searchsorted(self._cumulative, rng.random())), len(self.moments) - 1))

    def at(self, moment: int) -> TrainingExample:
        shard, first, last = self.moments[moment]
        samples = self._shards[shard]
        advantage = advantages(np.asarray(samples.price[first:last]))
        important = np.abs(advantage) >= max(self.largest, np.nextafter(0.0, 1.0))
        return TrainingExample(samples.decision(first), samples.row[first:last].astype(np.int64), advantage, important)


def advantages(price: F64) -> F64:
    """[L, K] f of every choice from prices [L, K]; nan where either price is not finite."""
    finite = np.where(np.isfinite(price), price, np.nan)
    return np.asarray(finite - finite[:, :1])


def compressed(advantage: F64, sigma: float) -> F64:
    """sign(a) log(1 + |a| / sigma): section 4.2, label scale."""
    return np.asarray(np.sign(advantage) * np.log1p(np.abs(advantage) / sigma))
