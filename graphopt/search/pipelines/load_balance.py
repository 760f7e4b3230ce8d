"""`load_balance`: moves runs of items away from the device that limits a pipeline, from contiguous and other splits.

Ours, of no paper, for `max_load`. A split is seen as an order of items, those of one device after those of another, in
which runs are moved: one end of what the fullest device has, or a run within it, to a device that it trades with or to
any; two devices exchange runs; a run of any device joins another. Of a batch of moves the best is made unless it is
worse; of equal ones that with the smaller sum of powers of loads. After `patience` evaluations without improvement the
order is cut anew by dynamic programming, which finds the best runs of any order; if that does not help either, the
search goes on from the best split after `kick` random moves.

Shape legend: N ops, M items, D devices, B moves, X results.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.core.head import Role
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics import partition
from graphopt.search.pipelines.contiguous import Effort, best_split, decided
from graphopt.search.pipelines.linear_split import split_order, to_devices
from graphopt.search.pipelines.pipeline import Pipeline, pipeline
from graphopt.search.walks.moves import scores
from graphopt.utils.compiled import njit
from graphopt.utils.ranges import Count, Few, Whole

POWER = 8.0  # of loads, in the sum by which equal prices are told apart
IMBALANCE = 0.03  # of METIS
STARTS = ("contiguous", "spectral", "metis")


class LoadBalance(Optimizer):
    """yaml: conf/algo/load_balance.yaml. Every candidate is priced by the cost model, one evaluation each."""

    needs_roles = frozenset({Role.DEVICE})
    objectives = frozenset[Objective]({"max_load"})

    def __init__(
        self, *, name: str, starts: list[str], effort: Effort, batch: Few, patience: Count, kick: Whole
    ) -> None:
        if not starts or set(starts) - set(STARTS):
            raise ConfigError(f"algo={name}: starts are some of {', '.join(STARTS)}")
        self.name, self.starts, self.effort = name, starts, effort
        self.batch, self.patience, self.kick = batch, patience, kick

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        line = pipeline(problem)
        starts = [start for name in self.starts for start in self._start(name, line, problem.rng)]
        if line.num_items and starts:
            search = _LoadSearch(problem, line)
            found = search.price(np.stack(starts))
            self._descend(search, starts[int(np.argmin(found))], float(found.min()))

    def _start(self, name: str, line: Pipeline, rng: Generator) -> list[I64]:
        """Devices [M] by the named method, made to fit; none where it finds none."""
        if name == "contiguous":
            split = best_split(line, self.effort, rng).device
            return [split] if len(split) else []
        able = np.where(line.stream.blocked == 0, line.stream.time, np.inf)[:, line.kind]
        weight = np.where(np.isfinite(able), able, 0.0).mean(1)
        speed = 1.0 / np.maximum(np.where(np.isfinite(able), able, 0.0).sum(0), 1e-30)
        share = speed / speed.sum()
        links = line.edges + partition.CHAIN * max(float(line.edges.max()), 1e-30) * partition.chain(len(weight))
        part = partition.metis(weight, share, links, IMBALANCE) if name == "metis" else None
        part = partition.spectral(weight, share, links) if part is None else part
        return [repaired(line, part.astype(np.int64))]

    def _descend(self, search: "_LoadSearch", here: I64, cost: float) -> None:
        """Until the budget ends; OutOfBudget passes through."""
        best, best_cost, since, cut = here, cost, 0, False
        while search.problem.open:
            moved = search.around(here, self.batch)
            found = search.price(moved)
            even = search.unevenness(moved)
            winner = int(np.lexsort((even, found))[0])
            if (found[winner], even[winner]) <= (cost, search.unevenness(here[None])[0]):
                here, cost = moved[winner], float(found[winner])
            since += len(moved)
            if cost < best_cost:
                best, best_cost, since, cut = here, cost, 0, False
            if since >= self.patience and search.problem.open:
                here = search.kicked(best, self.kick) if cut else search.cut_anew(best)
                cost, since, cut = float(search.price(here[None])[0]), 0, not cut


class _LoadSearch:
    """One problem: its prices, moves and loads."""

    def __init__(self, problem: AssignProblem, line: Pipeline) -> None:
        self.problem, self.line, self.readers = problem, line, readers_of(line)
        self.devices = len(line.kind)

    def price(self, rows: I64) -> F64:
        """[B] scores of devices [B, M], billed."""
        return scores(self.problem, decided(self.problem, self.line, rows))

    def unevenness(self, rows: I64) -> F64:
        """[B] sums of powers of loads, as the pipeline counts them."""
        load = loads(self.line, self.readers, rows)[0]
        return np.asarray(((load / max(float(load.max()), 1e-30)) ** POWER).sum(1) * load.max() ** POWER)

    def around(self, here: I64, count: int) -> I64:
        """[count, M] the devices after one random move each; most begin at the fullest device."""
        fullest = int(np.argmax(loads(self.line, self.readers, here[None])[0][0]))
        return np.stack([self._moved(here, fullest) for _ in range(min(count, max(1, self.problem.remaining)))])

    def kicked(self, here: I64, moves: int) -> I64:
        """[M] the devices after some random moves of any device."""
        for _ in range(moves):
            here = self._moved(here, int(self.problem.rng.integers(self.devices)))
        return here

    def cut_anew(self, here: I64) -> I64:
        """[M] the best runs of the order that these devices make: never worse where all links are alike."""
        place = np.array([np.flatnonzero(here == d).mean() if (here == d).any() else 0.0 for d in range(self.devices)])
        order = np.lexsort((np.arange(len(here)), place[here], here))
        order = order[np.argsort(place[here[order]], kind="stable")]
        found = split_order(self.line.stream, self.line.kinds, order, np.inf)
        return to_devices(found, self.line.kind) if np.isfinite(found.cost) else here

    def _moved(self, here: I64, source: int) -> I64:
        rng, row = self.problem.rng, here.copy()
        if rng.random() < 0.15:
            source = int(here[rng.integers(len(here))])
        run = self._run(here, source)
        if not len(run):
            return row
        target = self._target(here, run, source)
        if rng.random() < 0.25:
            row[self._run(here, target)] = source
        row[run] = target
        return row

    def _run(self, here: I64, source: int) -> I64:
        """Some items in a row of what a device has, often at one end, mostly few."""
        rng, own = self.problem.rng, np.flatnonzero(here == source)
        if not len(own):
            return own
        length = int(len(own) ** rng.random())
        kind = rng.random()
        start = 0 if kind < 0.25 else len(own) - length if kind < 0.5 else int(rng.integers(len(own) - length + 1))
        return np.asarray(own[start : start + length])

    def _target(self, here: I64, run: I64, source: int) -> int:
        """Where a neighbour of the run is, or any other device."""
        rng, links = self.problem.rng, self.line.edges
        near = np.concatenate([links.indices[links.indptr[i] : links.indptr[i + 1]] for i in (run[0], run[-1])])
        beside = here[near][here[near] != source]
        if len(beside) and rng.random() < 0.7:
            return int(beside[rng.integers(len(beside))])
        return int((source + rng.integers(1, max(2, self.devices))) % self.devices)


class Readers(NamedTuple):
    """Items that read each result, its maker not counted (CSR). Arrays for Numba."""

    ptr: Any  # int64 [X+1]
    item: Any  # int64


def readers_of(line: Pipeline) -> Readers:
    """The readers of a pipeline's results."""
    flow = line.stream
    reader = np.repeat(np.arange(line.num_items), np.diff(flow.read_ptr))
    order = np.argsort(flow.read, kind="stable")
    return Readers(np.append(0, np.cumsum(flow.readers)).astype(np.int64), reader[order])


def loads(line: Pipeline, readers: Readers, rows: NDArray[np.integer]) -> tuple[F64, F64]:
    """(seconds [B, D], inf where something cannot run; bytes of weights [B, D]) of items on devices [B, M]."""
    load, held = np.zeros((len(rows), len(line.kind))), np.zeros((len(rows), len(line.kind)))
    _loads(line.stream, readers, line.kind, line.kinds.pays, rows.astype(np.int64), load, held)
    return load, held


@njit(cache=True, nogil=True)
def _loads(stream, readers, kind, pays, rows, load, held):  # type: ignore[no-untyped-def]
    for b in range(len(rows)):
        here = rows[b]
        seen = np.zeros(len(stream.weight_bytes), np.int64)  # devices as bits
        for i in range(len(here)):
            d = here[i]
            load[b, d] += np.inf if stream.blocked[i, kind[d]] else stream.time[i, kind[d]]
            for e in range(stream.weight_ptr[i], stream.weight_ptr[i + 1]):
                w = stream.weight[e]
                if not (seen[w] >> d) & 1:
                    seen[w] |= np.int64(1) << d
                    held[b, d] += stream.weight_bytes[w]
        for x in range(len(stream.maker)):
            source = here[stream.maker[x]]
            met, sent = np.int64(1) << source, False
            for e in range(readers.ptr[x], readers.ptr[x + 1]):
                there = here[readers.item[e]]
                if not (met >> there) & 1:
                    met |= np.int64(1) << there
                    sent = True
                    load[b, there] += stream.travel[x] if pays[kind[there]] else 0.0
            load[b, source] += stream.travel[x] if sent and pays[kind[source]] else 0.0


def repaired(line: Pipeline, here: I64) -> I64:
    """[M] devices that can run and hold what they have, as far as that goes.

    Items that cannot run where they are go where they run fastest; then items leave devices that are over their
    capacity, the largest that fits elsewhere first, for the device with most room.
    """
    able = np.where(line.stream.blocked == 0, line.stream.time, np.inf)[:, line.kind]
    here = np.where(np.isfinite(able[np.arange(len(here)), here]), here, np.argmin(able, 1))
    readers, capacity = readers_of(line), line.kinds.capacity[line.kind]
    item = np.repeat(np.arange(len(here)), np.diff(line.stream.weight_ptr))
    size = np.bincount(item, line.stream.weight_bytes[line.stream.weight], len(here))
    for _ in range(len(here)):
        room = capacity - loads(line, readers, here[None])[1][0]
        full = int(np.argmin(room))
        if room[full] >= 0:
            break
        fits = (here[:, None] == full) & np.isfinite(able) & (size[:, None] <= room) & (size[:, None] > 0)
        if not fits.any():
            break
        moved = int(np.argmax(np.where(fits.any(1), size, -1.0)))
        here = here.copy()
        here[moved] = int(np.argmax(np.where(fits[moved], room, -np.inf)))
    return here
