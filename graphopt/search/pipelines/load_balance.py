"""`load_balance`: splits of a pipeline into stages, for `max_load`.

The first evaluation is the best contiguous split that some orders give; each stage lies between two prefixes of a
topological order (Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020).
For one order dynamic programming finds the best cuts. The orders, our choice: as given, depth first, by levels from
either end, along an eigenvector; then mixtures of these, and orders that keep the best split and mix within and across
its borders. In training graphs whose backward ops are marked and share devices with forward ops, the forward pass is
split and the backward pass follows. Splits respect the capacity of devices.

Then runs of items leave the fullest device. A split is seen as an order of items, in which runs are moved: one end of
the fullest device's items, or a run within, to a device that it trades with or to any; two devices exchange runs; a run
of any device joins another. Of a batch of moves the best is made unless it is worse; of equal ones that with the
smaller sum of powers of loads. After `patience` evaluations without improvement the search goes on from the best split
after `kick` random moves.

An item is a group of kernels that share a device. Transfers have one duration each, the longest over all pairs of
devices, and devices that are alike are one kind; so loads here are those of the cost model where all links are alike,
and never less elsewhere. The cost model prices the results.

Shape legend: N ops, M items, X transferred results, W weights, C kinds of devices, D devices, S states, B moves.
"""

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.sparse import coo_array, csgraph, csr_array

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, I64
from graphopt.core.list_schedule import Dependencies
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Count, Few, Whole
from graphopt.costs.event_arrays import GRID
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.partition import chain, fiedler
from graphopt.search.heuristics.rules import SchedulingInstance, depth_first
from graphopt.search.walks.moves import scores

POWER = 8.0  # of loads, in the sum by which equal prices are told apart
MAX_STATES = 1024  # numbers of used devices of each kind
MOST_CUTS = 2_000  # positions at which an order may be cut: all up to so many items, beyond it evenly spread ones


class Stream(NamedTuple):
    """Items and the results that they send each other. Arrays for Numba; pointers are CSR."""

    time: Any  # float64 [M, C] seconds; 0 where `blocked`
    blocked: Any  # int64 [M, C] ops of an item that a kind of device cannot run
    maker: Any  # int64 [X] item
    travel: Any  # float64 [X] seconds
    readers: Any  # int64 [X] items that read it, its maker not counted; at least 1
    made_ptr: Any  # int64 [M+1]
    made: Any  # int64 [X] transferred results by maker
    read_ptr: Any  # int64 [M+1]
    read: Any  # int64 results of others that an item reads
    weight_ptr: Any  # int64 [M+1]
    weight: Any  # int64 distinct weights that an item reads
    weight_bytes: Any  # float64 [W]


class Kinds(NamedTuple):
    """Kinds of devices, and the states of having used some of each. Arrays for Numba."""

    pays: Any  # bool [C]
    capacity: Any  # float64 [C] bytes
    after: Any  # int64 [S, C] the state after one more device of a kind, -1 where none is left; state 0: none used


@dataclass(frozen=True)
class Pipeline:
    """The items of a problem in the order of their first ops, and its devices."""

    instance: SchedulingInstance
    item: I64  # [N] item of a kernel, -1 of ops without
    kind: I64  # [D] kind of each device
    kinds: Kinds

    @cached_property
    def stream(self) -> Stream:
        return stream(self, self.item)

    @cached_property
    def edges(self) -> csr_array:
        """[M, M] symmetric: seconds that items send each other."""
        return exchange(self.stream)

    @cached_property
    def num_items(self) -> int:
        return int(self.item.max(initial=-1)) + 1

    @cached_property
    def of_op(self) -> I64:
        """[N] the item whose device an op shares, -1 of ops that stay where the initial decision has them."""
        graph, item = self.instance.graph, self.item
        if not len(graph.together):
            return item
        first = np.full(graph.num_ops, -1)
        kernels = np.flatnonzero(item >= 0)[::-1]
        first[graph.together[kernels]] = kernels
        leader = first[graph.together]
        return np.where(leader >= 0, item[leader], item)

    def devices(self, of_item: NDArray[np.integer]) -> NDArray[np.int16]:
        """[..., N] devices of all ops from those of items [..., M]."""
        stay = self.instance.initial.device[0].astype(np.int16)
        if not self.num_items:
            return np.broadcast_to(stay, (*of_item.shape[:-1], len(self.item)))
        return np.where(self.of_op >= 0, of_item.astype(np.int16)[..., self.of_op], stay)


def pipeline_of(instance: SchedulingInstance) -> Pipeline:
    """The pipeline of the kernels that `instance` sees. Raises ConfigError where kinds of devices are too many."""
    graph, machine, time = instance.graph, instance.task.machine, instance.kernels.time
    leader = graph.together.astype(np.int64) if len(graph.together) else np.arange(graph.num_ops)
    kernels = np.flatnonzero(instance.kernels.is_kernel)
    item = np.full(graph.num_ops, -1)
    item[kernels] = _numbered(leader[kernels])
    traits = [(time[:, d].tobytes(), one.capacity, one.pays_transfers) for d, one in enumerate(machine.devices)]
    distinct = list(dict.fromkeys(traits))
    kind = np.array([distinct.index(trait) for trait in traits])
    count = np.bincount(kind)
    if np.prod(count + 1.0) > MAX_STATES:
        raise ConfigError(f"algo=load_balance tells {len(distinct)} kinds of devices apart, which are too many")
    used = np.stack(np.unravel_index(np.arange(int(np.prod(count + 1))), tuple(count + 1)), 1)
    weight = np.array([int(np.prod(count[c + 1 :] + 1)) for c in range(len(count))])
    after = np.where(used < count, np.arange(len(used))[:, None] + weight, -1).astype(np.int64)
    kinds = Kinds(np.array([pays for *_, pays in distinct]), np.array([room for _, room, _ in distinct]), after)
    return Pipeline(instance, item, kind, kinds)


def stream(line: Pipeline, item: I64) -> Stream:
    """The stream of kernels grouped by `item` [N], -1 without one."""
    graph, kernels = line.instance.graph, line.instance.kernels
    count, representative = int(item.max(initial=-1)) + 1, np.unique(line.kind, return_index=True)[1]
    has = item >= 0
    time, blocked = np.zeros((count, len(representative))), np.zeros((count, len(representative)), np.int64)
    alone = kernels.time[has][:, representative]
    np.add.at(time, item[has], np.where(np.isfinite(alone), alone, 0.0))
    np.add.at(blocked, item[has], ~np.isfinite(alone))
    reader = item[np.repeat(np.arange(graph.num_ops), np.diff(kernels.in_ptr))]
    tensor = kernels.in_tensor.astype(np.int64)
    maker = np.where(graph.producer[tensor] >= 0, item[graph.producer[tensor]], -1)
    sent = np.unique(np.stack([tensor, reader], 1)[(maker >= 0) & (maker != reader)], axis=0)
    held = np.unique(np.stack([tensor, reader], 1)[graph.is_weight[tensor]], axis=0)
    tensors, result, readers = np.unique(sent[:, 0], return_inverse=True, return_counts=True)
    makers, (weights, weight) = item[graph.producer[tensors]], np.unique(held[:, 0], return_inverse=True)
    made_ptr, made = _csr(makers, np.arange(len(tensors)), count)
    read_ptr, read = _csr(sent[:, 1], result, count)
    weight_ptr, by_item = _csr(held[:, 1], weight, count)
    return Stream(
        time, blocked, makers, _travel(line, graph.tensor_bytes[tensors]), readers.astype(np.int64), made_ptr, made,
        read_ptr, read, weight_ptr, by_item, graph.tensor_bytes[weights].astype(np.float64),
    )  # fmt: skip


def exchange(flow: Stream) -> csr_array:
    """[M, M] symmetric: seconds that items send each other."""
    items = len(flow.time)
    reader = np.repeat(np.arange(items), np.diff(flow.read_ptr))
    one_way = coo_array((flow.travel[flow.read], (flow.maker[flow.read], reader)), shape=(items, items)).tocsr()
    return csr_array(one_way + one_way.T)


def _travel(line: Pipeline, size: I64) -> F64:
    """[X] the longest that so many bytes travel between two devices, on the grid on which sums are exact."""
    machine = line.instance.task.machine
    between = ~np.eye(machine.num_devices, dtype=np.bool_)
    if not between.any():
        return np.zeros(len(size))
    latency, bandwidth = machine.link_latency_DD[between], machine.link_bandwidth_DD[between]
    return np.asarray(np.floor((latency[:, None] + size[None] / bandwidth[:, None]).max(0) / GRID + 0.5) * GRID)


def _csr(row: I64, column: I64, rows: int) -> tuple[I64, I64]:
    order = np.argsort(row, kind="stable")
    return np.searchsorted(row[order], np.arange(rows + 1)).astype(np.int64), column[order].astype(np.int64)


def _numbered(label: I64) -> I64:
    """Labels as numbers in the order of first appearance."""
    _, place, which = np.unique(label, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(place))[which], np.int64)


# ---- contiguous splits


class Split(NamedTuple):
    """The best runs of an order. load: seconds; inf where none is below the limit. run: [M] of each item, in order."""

    load: float
    run: I64
    kind: I64  # [runs] kind of device of each run

    def devices(self, kind_of_device: I64) -> I64:
        """[M] runs take the devices of their kind one after another."""
        left = {int(k): np.flatnonzero(kind_of_device == k).tolist() for k in np.unique(kind_of_device)}
        return np.array([left[int(k)].pop(0) for k in self.kind], np.int64)[self.run]


def contiguous(line: Pipeline, mixtures: int, rng: Generator) -> I64 | None:
    """[M] devices of the best contiguous split that the orders and so many mixtures of them give; None where none
    fits."""
    first = precedence(line)
    block = _numbered(csgraph.connected_components(first, connection="strong")[1])  # items that wait for each other
    pairs, count = first.tocoo(), int(block.max(initial=-1)) + 1
    before, after = block[pairs.row], block[pairs.col]
    first = _pairs(before[before != after], after[before != after], count)
    flow = stream(line, np.where(line.item >= 0, block[line.item], -1))
    keys, best = order_keys(flow, first), Split(np.inf, np.zeros(0, np.int64), np.zeros(0, np.int64))
    for i in range(len(keys) + mixtures):
        key = keys[i] if i < len(keys) else rng.dirichlet(np.full(len(keys), 0.3)) @ keys
        if i >= len(keys):
            key = key + rng.choice([0.0, 0.02, 0.1]) * rng.random(count)
            if i % 3 and np.isfinite(best.load):  # keeps the runs, or lets neighbours overlap
                key = best.run + rng.choice([1.0, 1.5, 2.0]) * key
        found = split_order(flow, line.kinds, topological(first, key), best.load)
        best = found if found.load < best.load else best
    return best.devices(line.kind)[block] if np.isfinite(best.load) else None


def precedence(line: Pipeline) -> csr_array:
    """[M, M] an entry (a, b) where item a comes before b.

    Where ops are marked as those of a backward pass, the forward ops of two items say which comes first: the backward
    pass mirrors them. An item of backward ops only is where its neighbours in the backward pass are, mirrored.
    """
    needs, graph, item = line.instance.needs, line.instance.graph, line.item
    target, source = np.repeat(np.arange(len(item)), np.diff(needs.ptr)), needs.source.astype(np.int64)
    back = np.array([bool(op.get("backward", False)) for op in graph.attributes] or [False] * graph.num_ops)
    late = np.ones(line.num_items, np.bool_)
    late[item[(item >= 0) & ~back]] = False  # items of backward ops only
    turned = back[source] & back[target] & (late[item[source]] | late[item[target]])
    straight = ~back[target]
    before = np.concatenate([item[source[straight]], item[target[turned]]])
    return _pairs(before, np.concatenate([item[target[straight]], item[source[turned]]]), line.num_items)


def _pairs(before: I64, after: I64, count: int) -> csr_array:
    return csr_array(coo_array((np.ones(len(before)), (before, after)), shape=(count, count)).tocsr())


def order_keys(flow: Stream, first: csr_array) -> F64:
    """[orders, M] numbers in [0, 1] by which items can be ordered."""
    backwards, links = csr_array(first.T), exchange(flow)
    needs = [Dependencies(way.indptr.astype(np.int64), way.indices.astype(np.int32), np.zeros(way.nnz))
             for way in (backwards, first)]  # fmt: skip
    values = [np.arange(first.shape[0], dtype=np.float64), -depth_first(needs[0]), depth_first(needs[1]),
              levels(first), -levels(backwards)]  # fmt: skip
    values += [fiedler(links + 1e-6 * max(float(links.max()), 1e-30) * chain(first.shape[0]))] if links.nnz else []
    spread = [max(float(np.ptp(value)), 1e-30) for value in values]
    return np.stack([(value - value.min()) / wide for value, wide in zip(values, spread, strict=True)])


def topological(first: csr_array, key: F64) -> I64:
    """[M] an order in which `first` [M, M] holds: of the ready items the one with the smallest key, ties by number."""
    waiting = np.asarray(np.bincount(first.indices, minlength=first.shape[0]))
    ready = [(key[i], i) for i in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    order = []
    while ready:
        item = heapq.heappop(ready)[1]
        order.append(item)
        for j in first.indices[first.indptr[item] : first.indptr[item + 1]].tolist():
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (key[j], j))
    return np.array(order, np.int64)


def levels(first: csr_array) -> F64:
    """[M] the longest way, in items, from a start to each."""
    level = np.zeros(first.shape[0])
    for item in topological(first, np.zeros(len(level))):
        after = first.indices[first.indptr[item] : first.indptr[item + 1]]
        level[after] = np.maximum(level[after], level[item] + 1)
    return level


def split_order(flow: Stream, kinds: Kinds, order: I64, limit: float) -> Split:
    """The split of `order` [M], any permutation of items, into runs with the least maximal load, if that is below
    `limit`."""
    items, states = len(order), len(kinds.after)
    positions = np.unique(np.append(np.arange(0, items, -(-items // MOST_CUTS)), items))
    value = np.full((len(positions), states), np.inf)
    value[0, 0] = 0.0
    came = np.full((len(positions), states, 3), -1, np.int64)
    _fill(flow, kinds, order.astype(np.int64), positions, float(limit), window(flow), value, came)
    state = int(np.argmin(value[-1]))
    load, kind = float(value[-1, state]), list[int]()
    run, place = np.zeros(items, np.int64), len(positions) - 1
    while np.isfinite(load) and place > 0:
        earlier, before, used = came[place, state]
        run[order[positions[earlier] : positions[place]]] = len(kind)
        kind.append(int(used))
        place, state = int(earlier), int(before)
    return Split(load, np.maximum(len(kind) - 1 - run, 0), np.array(kind[::-1], np.int64))


class SlidingSet(NamedTuple):
    """A set of items that grows and shrinks by one at a time, and the load that it would be for a device."""

    inside: Any  # int64 [X] readers inside
    made: Any  # bool [X] its maker is inside
    weights: Any  # int64 [W] readers inside
    compute: Any  # float64 [C] seconds
    blocked: Any  # int64 [C]
    sums: Any  # float64 [2] seconds of transfers, bytes of weights


def window(flow: Stream) -> SlidingSet:
    """An empty one."""
    kinds, results = flow.time.shape[1], len(flow.maker)
    return SlidingSet(
        np.zeros(results, np.int64), np.zeros(results, np.bool_), np.zeros(len(flow.weight_bytes), np.int64),
        np.zeros(kinds), np.zeros(kinds, np.int64), np.zeros(2),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def shift(flow, window, item, sign):  # type: ignore[no-untyped-def]
    """The item joins the window (sign 1) or leaves it (-1)."""
    window.compute[:] += sign * flow.time[item]
    window.blocked[:] += sign * flow.blocked[item]
    joins = np.int64(sign > 0)
    for e in range(flow.made_ptr[item], flow.made_ptr[item + 1]):
        x = flow.made[e]
        arrives, leaves = np.int64(window.inside[x] > 0), np.int64(window.inside[x] < flow.readers[x])
        window.made[x] = sign > 0
        window.sums[0] += sign * flow.travel[x] * (leaves - arrives)
    for e in range(flow.read_ptr[item], flow.read_ptr[item + 1]):
        x = flow.read[e]
        inside = window.inside[x] + joins  # with the item
        if window.made[x]:
            window.sums[0] -= sign * flow.travel[x] * (inside == flow.readers[x])
        else:
            window.sums[0] += sign * flow.travel[x] * (inside == 1)
        window.inside[x] += sign
    for e in range(flow.weight_ptr[item], flow.weight_ptr[item + 1]):
        w = flow.weight[e]
        window.sums[1] += sign * flow.weight_bytes[w] * (window.weights[w] + joins == 1)
        window.weights[w] += sign


@njit(cache=True, nogil=True)
def judge(kinds, window, load):  # type: ignore[no-untyped-def]
    """The load of the window on each kind of device, inf where it does not fit, into `load` [C]; whether some kind may
    hold more: the least compute time of those, inf when none can."""
    least = np.inf
    for c in range(len(load)):
        load[c] = np.inf
        if window.blocked[c] == 0 and window.sums[1] <= kinds.capacity[c]:
            load[c] = window.compute[c] + (window.sums[0] if kinds.pays[c] else 0.0)
            least = min(least, window.compute[c])
    return least


@njit(cache=True, nogil=True)
def _fill(flow, kinds, order, positions, limit, window, value, came):  # type: ignore[no-untyped-def]
    """value[p, s]: the least maximal load of the items before positions[p] with the devices of state s."""
    states, load = len(kinds.after), np.empty(len(kinds.pays))
    lowest = np.full(len(positions), np.inf)  # over states
    lowest[0] = 0.0
    for p in range(1, len(positions)):
        at = positions[p]
        for q in range(p - 1, -1, -1):
            while at > positions[q]:
                at -= 1
                shift(flow, window, order[at], 1)
            least = judge(kinds, window, load)
            if least >= limit:
                break
            if lowest[q] >= limit or load.min() >= limit:
                continue
            for s in range(states):
                if value[q, s] >= limit:
                    continue
                for c in range(len(load)):
                    after = kinds.after[s, c]
                    both = max(value[q, s], load[c])
                    if after >= 0 and both < limit and both < value[p, after]:
                        value[p, after] = both
                        came[p, after, 0], came[p, after, 1], came[p, after, 2] = q, s, c
        lowest[p] = value[p].min()
        for i in range(positions[p] - 1, at - 1, -1):
            shift(flow, window, order[i], -1)


# ---- moves of runs


class LoadBalance(Optimizer):
    """yaml: conf/algo/load_balance.yaml. Every candidate is priced by the cost model, one evaluation each; without
    evaluations the answer is the contiguous split."""

    needs_roles = frozenset({Role.DEVICE})
    objectives = frozenset[Objective]({"max_load"})

    def __init__(self, *, name: str, orders: Whole, batch: Few, patience: Count, kick: Whole) -> None:
        self.name, self.orders, self.batch, self.patience, self.kick = name, orders, batch, patience, kick

    def solve(self, problem: AssignProblem) -> None:
        line = pipeline_of(SchedulingInstance(problem.graph, problem.task))
        here = contiguous(line, self.orders, problem.rng) if line.num_items else None
        if here is None:  # the default is the answer
            return
        search = _LoadSearch(problem, line)
        if not problem.open:
            problem.commit(search.decisions(here[None])[0])
            return
        cost = float(search.price(here[None])[0])
        best, best_cost, since = here, cost, 0
        while problem.open:
            moved = search.around(here, self.batch)
            found, even = search.price(moved), search.unevenness(moved)
            winner = int(np.lexsort((even, found))[0])
            if (found[winner], even[winner]) <= (cost, search.unevenness(here[None])[0]):
                here, cost = moved[winner], float(found[winner])
            since += len(moved)
            if cost < best_cost:
                best, best_cost, since = here, cost, 0
            if since >= self.patience and problem.open:
                here = search.kicked(best, self.kick)
                cost, since = float(search.price(here[None])[0]), 0


class _LoadSearch:
    """One problem: its prices, moves and loads of devices [B, M] of items."""

    def __init__(self, problem: AssignProblem, line: Pipeline) -> None:
        self.problem, self.line, self.devices = problem, line, len(line.kind)
        order = np.argsort(line.stream.read, kind="stable")
        reader = np.repeat(np.arange(line.num_items), np.diff(line.stream.read_ptr))
        self._readers = np.append(0, np.cumsum(line.stream.readers)).astype(np.int64), reader[order]

    def decisions(self, rows: I64) -> NDArray[np.int16]:
        """[B, N, H] the initial decision with items on these devices."""
        decision = np.repeat(self.problem.initial[None], len(rows), 0)
        decision[:, :, self.problem.task.column(Role.DEVICE)] = self.line.devices(rows)
        return decision

    def price(self, rows: I64) -> F64:
        """[B] scores, billed."""
        return scores(self.problem, self.decisions(rows))

    def loads(self, rows: I64) -> F64:
        """[B, D] seconds, as the pipeline counts them; inf where something cannot run."""
        load = np.zeros((len(rows), self.devices))
        _loads(self.line.stream, *self._readers, self.line.kind, self.line.kinds.pays, rows.astype(np.int64), load)
        return load

    def unevenness(self, rows: I64) -> F64:
        """[B] sums of powers of loads."""
        load = self.loads(rows)
        return np.asarray(((load / max(float(load.max()), 1e-30)) ** POWER).sum(1) * load.max() ** POWER)

    def around(self, here: I64, count: int) -> I64:
        """[count, M] the devices after one random move each; most begin at the fullest device."""
        fullest = int(np.argmax(self.loads(here[None])[0]))
        return np.stack([self._moved(here, fullest) for _ in range(min(count, max(1, self.problem.remaining)))])

    def kicked(self, here: I64, moves: int) -> I64:
        """[M] the devices after some random moves of any device."""
        for _ in range(moves):
            here = self._moved(here, int(self.problem.rng.integers(self.devices)))
        return here

    def _moved(self, here: I64, source: int) -> I64:
        rng, row = self.problem.rng, here.copy()
        if rng.random() < 0.15:
            source = int(here[rng.integers(len(here))])
        run = self._run(here, source)
        if len(run):
            target = self._target(here, run, source)
            if rng.random() < 0.25:
                row[self._run(here, target)] = source
            row[run] = target
        return row

    def _run(self, here: I64, source: int) -> I64:
        """Some consecutive items of a device, often at one end, mostly few."""
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


@njit(cache=True, nogil=True)
def _loads(flow, reader_ptr, reader, kind, pays, rows, load):  # type: ignore[no-untyped-def]
    for b in range(len(rows)):
        here = rows[b]
        for i in range(len(here)):
            d = here[i]
            load[b, d] += np.inf if flow.blocked[i, kind[d]] else flow.time[i, kind[d]]
        for x in range(len(flow.maker)):
            source = here[flow.maker[x]]
            met, sent = np.int64(1) << source, False
            for e in range(reader_ptr[x], reader_ptr[x + 1]):
                there = here[reader[e]]
                if not (met >> there) & 1:
                    met |= np.int64(1) << there
                    sent = True
                    load[b, there] += flow.travel[x] if pays[kind[there]] else 0.0
            load[b, source] += flow.travel[x] if sent and pays[kind[source]] else 0.0
