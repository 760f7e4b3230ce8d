"""Collects samples of many graphs, chain by chain and sweep by sweep; what is on disk already is not priced again."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from graphopt import cache_dir
from graphopt.advantages.gibbs import ConditionalPrices, Samples, surroundings, survey, sweep, typical
from graphopt.advantages.store import Store, open_store
from graphopt.core.graph import Graph
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision
from graphopt.problems.pricing import Pricing
from graphopt.problems.task import AssignTask
from graphopt.search.walks.moves import I64, slots_in
from graphopt.utils.outside import OwnFolder
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import Between, Count, Positive, Workers


@dataclass(frozen=True, kw_only=True)
class Collection:
    """What is collected of every graph."""

    folder: OwnFolder  # of all stores; null: advantages/ in the cache folder
    chains: list[Literal["initial", "random"]]  # where each chain of Gibbs sampling starts
    sweeps: Annotated[int, Between(0, 10_000)]  # of each chain; more of them later add to what is there
    temperature: Positive  # tau, in units of the median size of an advantage around the chain's start
    slots: Count  # most slots that a sweep visits; of larger graphs another random part each time
    surveys: bool  # price all slots again around the decision at the end of every sweep
    workers: Workers  # graphs at a time


def collect(graphs: Sequence[Graph], task: AssignTask, cost: CostModel, collection: Collection,
            seed: int) -> list[Store]:  # fmt: skip
    """The stores of all graphs, completed; those without a choice are left out. Resumes after the last whole shard."""
    root = Path(collection.folder).expanduser() if collection.folder else cache_dir() / "advantages"
    how = {"temperature": collection.temperature, "most_slots": collection.slots, "surveys": collection.surveys,
           "seed": seed}  # fmt: skip
    work = [(graph, open_store(root, graph, task, cost, how)) for graph in graphs if len(slots_in(task, graph))]
    lacking = sum(len(_lacking(store, collection)) for _, store in work)
    if lacking:
        with Bar("collect", lacking) as bar:
            collector = _Collector(task, cost, collection, seed, bar)
            collector.run(work)
    return [store for _, store in work]


def shard_name(chain: int, start: str, turn: int) -> str:
    """Turn 0 is the survey of the chain's start, turn n its n-th sweep."""
    return f"{chain}-{start}-{turn:04d}"


def names(collection: Collection) -> list[str]:
    """All shards that a complete store has."""
    turns = range(collection.sweeps + 1)
    return [shard_name(chain, start, turn) for chain, start in enumerate(collection.chains) for turn in turns]


def _lacking(store: Store, collection: Collection) -> list[str]:
    return sorted({*names(collection)} - {*store.shards()})


class _Collector:
    """Shares graphs among threads; compiled pricing runs without the interpreter's lock."""

    def __init__(self, task: AssignTask, cost: CostModel, collection: Collection, seed: int, bar: Bar) -> None:
        self.task, self.cost, self.collection, self.seed, self.bar = task, cost, collection, seed, bar
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def run(self, work: Sequence[tuple[Graph, Store]]) -> None:
        if self.collection.workers == 1:
            for graph, store in work:
                self.graph(graph, store)
            return
        with ThreadPoolExecutor(self.collection.workers, "collect") as pool:
            try:
                for done in [pool.submit(self.graph, graph, store) for graph, store in work]:
                    done.result()
            except BaseException:
                self._stopped.set()  # the others end after the sweep they are in
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def graph(self, graph: Graph, store: Store) -> None:
        for chain, start in enumerate(self.collection.chains):
            self.chain(graph, store, chain, start)

    def chain(self, graph: Graph, store: Store, chain: int, start: str) -> None:
        """One chain of a graph, shard by shard. Every shard has random numbers of its own, and begins where the one
        before it ended, so it does not matter which of them were there already."""
        done, tau = {*store.shards()}, 0.0
        around: ConditionalPrices | None = None
        for turn in range(self.collection.sweeps + 1):
            name = shard_name(chain, start, turn)
            if name in done:
                around, tau = None, tau if turn else self._tau(store.read(name))
                continue
            if self._stopped.is_set():
                return
            rng, begun = np.random.default_rng([self.seed, chain, turn]), time.perf_counter()
            if around is None:
                here = store.read(shard_name(chain, start, turn - 1)).end() if turn else self._start(graph, start, rng)
                around = surroundings(Pricing(graph, self.task, self.cost), slots_in(self.task, graph), here)
            rows = self._rows(graph, rng)
            if turn:
                samples = sweep(around, rows, tau, rng, surveyed=self.collection.surveys)
            else:
                samples = survey(around, rows)
                tau = self._tau(samples)
            store.write(name, samples, time.perf_counter() - begun)
            with self._lock:
                self.bar.step(f"{graph.name} {samples.evals} prices")

    def _tau(self, first: Samples) -> float:
        return self.collection.temperature * (typical(first.price) or 1.0)

    def _start(self, graph: Graph, start: str, rng: np.random.Generator) -> Decision:
        slots, decision = slots_in(self.task, graph), self.task.initial(graph).copy()
        if start == "random":
            decision[slots.op, slots.head] = rng.integers(0, slots.choices)
        return decision

    def _rows(self, graph: Graph, rng: np.random.Generator) -> I64:
        """The slots of a sweep in their order: v = 1 .. |V|, as in the paper."""
        total = len(slots_in(self.task, graph))
        if total <= self.collection.slots:
            return np.arange(total)
        return np.sort(rng.choice(total, self.collection.slots, replace=False))
