"""LAF's samples of many graphs: collected once, chain by chain and sweep by sweep, and kept on disk.

    NAME-KEY/header.json           what the samples are of, for people
    NAME-KEY/0-initial-0002.npz    the arrays of `Samples` of the second sweep of a chain

Files appear all at once, so a killed collection leaves whole ones only; what is on disk is not priced again. KEY is a
digest of everything that makes samples differ: graph, choices, prices, temperature, slots, seed, format.
"""

import hashlib
import json
import re
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from graphopt import cache_dir
from graphopt.core.errors import UserError, writing
from graphopt.core.graph import I64, Graph
from graphopt.core.plan import named_counts
from graphopt.core.utils.commit import commit
from graphopt.core.utils.limits import MIB, read_npz
from graphopt.core.utils.marks import Between, Count, OwnFolder, Positive, Workers
from graphopt.core.utils.terminal import Bar
from graphopt.core.utils.whole import whole_file
from graphopt.learn.advantages.gibbs import ConditionalPrices, Samples, surroundings, survey, sweep, typical
from graphopt.problems.assignment import AssignTask, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.search.walks.moves import slots_in

FORMAT = 2  # of the files; a part of KEY
MOST_BYTES = 4096 * MIB  # of a file
KINDS = {"start": "<i2", "row": "<i4", "price": "<f8", "changed_at": "<i4", "changed_entry": "<i4", "changed_to": "<i2",
         "evals": "<i8"}  # fmt: skip
PROBES = 3  # random decisions whose prices tell one cost model from another


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

    def names(self) -> list[str]:
        """Of all shards of a complete store."""
        turns = range(self.sweeps + 1)
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
    """What tells this task and cost model from others on this graph: default, slots, and the prices of a few random
    decisions (names alone where prices are measured)."""
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
