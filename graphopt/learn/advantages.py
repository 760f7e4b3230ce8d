"""LAF's samples and labels. Samples come from Gibbs sampling of decisions with every choice at every visited slot
priced (section 4.1). Labels are the local advantages f(k) = cost(y_v = k, rest) - cost(y_v = first choice, rest)
(sections 3 and 4.2).

A visit prices all choices of one slot with the other slots as they are. It draws the next choice with p(y_v = k | rest)
proportional to exp(-cost(y_v = k, rest) / tau). A survey prices all choices of all slots around one decision and moves
nothing: a network reads such a decision once for all its labels. Surveys are our addition. Decisions are canonical
(`AssignTask.canonical`), so exact deltas and full prices give the same samples bit for bit.

Samples of many graphs are collected once, chain by chain and sweep by sweep, and kept on disk.

    NAME-KEY/header.json           the source of the samples, for people
    NAME-KEY/0-initial-0002.npz    the arrays of `Samples` of the second sweep of a chain

Files appear all at once, so a killed collection leaves whole ones only; samples on disk are not priced again. KEY is a
digest of everything that makes samples differ: graph, choices, prices, temperature, slots, seed, format.

Shape legend: V visits, K choices, N ops, H heads, M slots, L labelled slots.
"""

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt import cache_dir
from graphopt.core.errors import UserError, writing
from graphopt.core.graph import F64, I64, Bool, Graph
from graphopt.core.plan import Decision, named_counts
from graphopt.core.utils.commit import commit
from graphopt.core.utils.limits import MIB, read_npz
from graphopt.core.utils.marks import Between, Count, OwnFolder, Positive, Workers
from graphopt.core.utils.terminal import Bar
from graphopt.core.utils.whole import whole_file
from graphopt.problems.assignment import AssignTask, PricedFlips, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.search.walks.moves import BATCH_ENTRIES, Slots, slots_in


class ConditionalPrices(Protocol):
    """A current decision, and the prices of every choice of any slot with the rest as it is."""

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
    """One decision of a graph and the known labels around it."""

    decision: Decision  # [N, H]
    row: I64  # [L] slots, indices into `Slots`
    advantage: F64  # [L, K] f of every choice; nan where there is none, or a price is infinite
    known: Bool  # [L, K] labels to learn: not f of the first choice, which is 0, nor of ops that are held out
    important: Bool  # [L, K] of these, among the largest of the graph in size


class ExampleSet:
    """All samples of one graph.

    sigma: median size of an advantage; those of exactly 0 (refused requests) are left out, which the paper does not
    say, since they are most of them on some graphs. largest: size from which an advantage is among the `share` largest.
    """

    def __init__(self, shards: Sequence[Samples], share: float, least: int, taught: Bool | None = None) -> None:
        """share: of the samples that count as important. least: decisions with fewer labels are not drawn, where there
        are others: a network reads the whole graph for them. taught: [M] slots that teach; all by default."""
        self._shards, self._taught = shards, taught
        prices = np.concatenate([np.asarray(samples.price) for samples in shards])
        self.sigma = typical(prices) or 1.0
        size = np.abs(advantages(prices)[:, 1:])
        size = size[np.isfinite(size)]
        self.largest = float(np.quantile(size, 1.0 - share)) if len(size) else np.inf
        moments = [(i, *run) for i, samples in enumerate(shards) for run in samples.moments()]
        enough = [moment for moment in moments if moment[2] - moment[1] >= least]
        self.moments = enough or moments

    def at(self, moment: int) -> TrainingExample:
        shard, first, last = self.moments[moment]
        samples = self._shards[shard]
        row = samples.row[first:last].astype(np.int64)
        return TrainingExample(samples.decision(first), row, *self._labels(row, samples.price[first:last]))

    def _labels(self, row: I64, price: F64) -> tuple[F64, Bool, Bool]:
        """(f, known, important) of visits, [V, K] each."""
        advantage = advantages(np.asarray(price))
        known = np.isfinite(advantage)
        known[:, 0] = False
        if self._taught is not None:
            known &= self._taught[row][:, None]
        return advantage, known, known & (np.abs(advantage) >= max(self.largest, np.nextafter(0.0, 1.0)))

    def counts(self) -> I64:
        """[moments, 2] how many labels are known, and how many important, around each decision."""
        totals = []
        for samples in self._shards:
            _, known, important = self._labels(samples.row.astype(np.int64), samples.price)
            totals.append(np.concatenate([np.zeros((1, 2)), np.cumsum([known.sum(1), important.sum(1)], 1).T]))
        return np.array([totals[i][last] - totals[i][first] for i, first, last in self.moments], np.int64)


class SampleSet:
    """All samples of all training graphs, and how often each is drawn (section 4.2).

    With the probability `priority` a sample is one of those with the largest advantages of their graphs, each equally
    often, else any of all. Samples around one decision are read together. A decision is drawn with the sum of the
    probabilities of its samples. Each of these has its share of the loss, which is the same in expectation.
    """

    def __init__(self, graphs: Mapping[str, ExampleSet], priority: float | None) -> None:
        """priority: null: every sample equally often."""
        self._graphs = graphs
        counts = [examples.counts() for examples in graphs.values()]
        self.decisions = [(key, moment) for key, own in zip(graphs, counts) for moment in range(len(own))]
        total = np.concatenate([np.zeros((0, 2)), *counts])
        known, important = total.sum(0)
        first = (priority or 0.0) if important else 0.0
        self.each, self.each_important = (1.0 - first) / max(known, 1), first / max(important, 1)
        self._cumulative = np.cumsum(total @ np.array([self.each, self.each_important]))

    def probability(self, example: TrainingExample) -> F64:
        """[L, K] with which a draw is each label."""
        return np.asarray(self.each * example.known + self.each_important * example.important)

    def draw(self, rng: np.random.Generator) -> tuple[str, TrainingExample, F64]:
        """(graph, decision, [L, K] shares of the loss, which sum to 1)."""
        at = min(int(np.searchsorted(self._cumulative, rng.random(), "right")), len(self.decisions) - 1)
        key, moment = self.decisions[at]
        example = self._graphs[key].at(moment)
        share = self.probability(example)
        return key, example, share / max(share.sum(), np.nextafter(0.0, 1.0))


def advantages(price: F64) -> F64:
    """[L, K] f of every choice from prices [L, K]; nan where either price is not finite."""
    finite = np.where(np.isfinite(price), price, np.nan)
    return np.asarray(finite - finite[:, :1])


def compressed(advantage: F64, sigma: float) -> F64:
    """sign(a) log(1 + |a| / sigma): section 4.2, label scale."""
    return np.asarray(np.sign(advantage) * np.log1p(np.abs(advantage) / sigma))


# ---- collections on disk


FORMAT = 2  # of the files; a part of KEY
MOST_BYTES = 4096 * MIB  # of a file
KINDS = {"start": "<i2", "row": "<i4", "price": "<f8", "changed_at": "<i4", "changed_entry": "<i4", "changed_to": "<i2",
         "evals": "<i8"}  # fmt: skip
PROBES = 3  # random decisions whose prices tell one cost model from another


@dataclass(frozen=True, kw_only=True)
class Collection:
    """The samples to collect of every graph."""

    folder: OwnFolder  # of all stores; null: advantages/ in the cache folder
    chains: list[Literal["initial", "random"]]  # where each chain of Gibbs sampling starts
    sweeps: Annotated[int, Between(0, 10_000)]  # of each chain; more of them later add to stored ones
    temperature: Positive  # tau, in units of the median size of an advantage around the chain's start
    slots: Count  # most slots that a sweep visits; of larger graphs another random part each time
    surveys: bool  # price all slots again around the decision at the end of every sweep; false: learn from visits alone
    workers: Workers  # graphs at a time

    def names(self, turns: Sequence[int] | None = None) -> list[str]:
        """Of the shards of some turns; by default of all of a complete store."""
        turns = range(self.sweeps + 1) if turns is None else turns
        return [shard_name(chain, start, turn) for chain, start in enumerate(self.chains) for turn in turns]


def shard_name(chain: int, start: str, turn: int) -> str:
    """Turn 0 is the survey of the chain's start, turn n its n-th sweep."""
    return f"{chain}-{start}-{turn:04d}"


@dataclass(frozen=True)
class Store:
    """The samples of one graph."""

    folder: Path

    def path(self, name: str) -> Path:
        """Of a shard."""
        return self.folder / f"{name}.npz"

    def write(self, name: str, samples: Samples) -> None:
        """Adds a shard, all or nothing. Raises UserError when the disk does not take it."""
        arrays = {key: np.asarray(getattr(samples, key)).astype(kind) for key, kind in KINDS.items()}
        with writing(self.path(name)), whole_file(self.path(name)) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]

    def read(self, name: str) -> Samples:
        """A shard. Raises UserError when it is damaged."""
        try:
            arrays = read_npz(self.path(name), MOST_BYTES)
            if {key: array.dtype.str for key, array in arrays.items()} != KINDS:
                raise UserError("it holds other arrays than samples do")
            evals = int(arrays.pop("evals"))
            return Samples(**arrays, evals=evals)
        except (OSError, UserError, TypeError) as error:
            raise UserError(
                f"samples in {self.path(name)} are damaged ({error}); the same command collects them again"
            ) from None


def collect(graphs: Sequence[Graph], task: AssignTask, cost: CostModel, collection: Collection,
            seed: int) -> list[Store]:  # fmt: skip
    """The stores of all graphs, completed; those without a choice are left out. Resumes after the last whole shard."""
    work = [(graph, _open(graph, task, cost, collection, seed)) for graph in graphs if len(slots_in(task, graph))]
    lacking = sum(not store.path(name).exists() for _, store in work for name in collection.names())
    if lacking:
        with Bar("collect", lacking) as bar:
            _Collector(task, cost, collection, seed, bar).run(work)
    return [store for _, store in work]


def _open(graph: Graph, task: AssignTask, cost: CostModel, collection: Collection, seed: int) -> Store:
    """The store of a graph, made if it is not there, without its damaged shards."""
    root = Path(collection.folder).expanduser() if collection.folder else cache_dir() / "advantages"
    about = {
        "format": FORMAT, "graph": graph.hash, "ops": graph.num_ops, "slots": len(slots_in(task, graph)),
        "task": {"name": task.name, "heads": named_counts(task.heads)},
        "machine": task.machine.name, "cost": {"name": cost.name, "objective": cost.objective},
        "prices": fingerprint(graph, task, cost), "temperature": collection.temperature,
        "most_slots": collection.slots, "surveys": collection.surveys, "seed": seed,
    }  # fmt: skip
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    store = Store(root / f"{re.sub(r'[^A-Za-z0-9_.+-]', '_', graph.name)[:80]}-{key}")
    header = store.folder / "header.json"
    if not header.exists():
        with writing(header), whole_file(header) as file:
            file.write(json.dumps({**about, "family": graph.family, "commit": commit()}, indent=1).encode())
    for name in collection.names():
        if store.path(name).exists():
            try:
                store.read(name)
            except UserError as error:
                warnings.warn(str(error), stacklevel=2)
                store.path(name).unlink()
    return store


def fingerprint(graph: Graph, task: AssignTask, cost: CostModel) -> str:
    """A fingerprint of task and cost model on this graph: default, slots, and the prices of a few random decisions
    (names alone where prices are measured)."""
    slots, initial = slots_in(task, graph), task.initial(graph)
    digest = hashlib.sha256(initial.tobytes() + slots.op.tobytes() + slots.head.tobytes())
    if cost.deterministic:
        decisions = np.repeat(initial[None], PROBES + 1, 0)
        rng = np.random.default_rng(0)
        decisions[1:, slots.op, slots.head] = rng.integers(0, slots.choices, (PROBES, len(slots)))
        digest.update(Pricing(graph, task, cost).decisions(decisions).cost.tobytes())
    return digest.hexdigest()[:16]


class _Collector:
    """Shares graphs among threads; compiled pricing runs without the interpreter's lock."""

    def __init__(self, task: AssignTask, cost: CostModel, collection: Collection, seed: int, bar: Bar) -> None:
        self.task, self.cost, self.collection, self.seed, self.bar = task, cost, collection, seed, bar
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def run(self, work: Sequence[tuple[Graph, Store]]) -> None:
        with ThreadPoolExecutor(self.collection.workers, "collect") as pool:
            try:
                for done in [pool.submit(self.chains, graph, store) for graph, store in work]:
                    done.result()
            except BaseException:
                self._stopped.set()  # the others end after the sweep they are in
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def chains(self, graph: Graph, store: Store) -> None:
        for chain, start in enumerate(self.collection.chains):
            self.chain(graph, store, chain, start)

    def chain(self, graph: Graph, store: Store, chain: int, start: str) -> None:
        """One chain of a graph, shard by shard. Every shard has random numbers of its own, and begins where the one
        before it ended, so it does not matter which of them were there already."""
        tau, slots = 0.0, slots_in(self.task, graph)
        around: ConditionalPrices | None = None
        for turn in range(self.collection.sweeps + 1):
            name = shard_name(chain, start, turn)
            if store.path(name).exists():
                around, tau = None, tau if turn else self._tau(store.read(name))
                continue
            if self._stopped.is_set():
                return
            rng = np.random.default_rng([self.seed, chain, turn])
            if around is None:
                if turn:
                    here = store.read(shard_name(chain, start, turn - 1)).end()
                else:
                    here = self.task.initial(graph).copy()
                    if start == "random":
                        here[slots.op, slots.head] = rng.integers(0, slots.choices)
                around = surroundings(Pricing(graph, self.task, self.cost), slots, here)
            rows = self._rows(len(slots), rng)
            if turn:
                samples = sweep(around, rows, tau, rng, surveyed=self.collection.surveys)
            else:
                samples = survey(around, rows)
                tau = self._tau(samples)
            store.write(name, samples)
            with self._lock:
                self.bar.step(f"{graph.name} {samples.evals} prices")

    def _tau(self, first: Samples) -> float:
        return self.collection.temperature * (typical(first.price) or 1.0)

    def _rows(self, total: int, rng: np.random.Generator) -> I64:
        """The slots of a sweep in their order: v = 1 .. |V|, as in the paper."""
        if total <= self.collection.slots:
            return np.arange(total)
        return np.sort(rng.choice(total, self.collection.slots, replace=False))
