"""`Simulator`: the cost model that runs a plan in an event simulation on a machine described by numbers."""

from threading import local
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.core.fusible import fusible
from graphopt.core.graph import F64, Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace
from graphopt.core.utils.compiled import shared, writable
from graphopt.core.utils.marks import Workers
from graphopt.costs.event import simulate_rows
from graphopt.costs.event_arrays import Flow, LinkArrays, Log, Scratch, flow, link_arrays, scratch
from graphopt.costs.load import Loads, loads
from graphopt.costs.one_kernel.kernel_time import device_constants, kernel_graph, runtime_on_one_device, workspace
from graphopt.costs.ranked_event import ranked, simulate_ranked
from graphopt.problems.cost_model import CostModel, Flips, Objective, Prices, rows_per_thread

_FLOWS_PER_GRAPH = 4  # kernel graphs kept per graph: those of the few fusion states that searches repeat
_kept = local()
_Rows = NDArray[np.int64]  # ascending
_Number = TypeVar("_Number", np.int16, np.float64)
_Result = tuple[NDArray[np.float64], NDArray[np.int64]]  # makespan [B], peak bytes [B, D]


class Simulator(CostModel):
    """Prices plans by simulation (`graphopt.costs.event` states the rules).

    objective: `runtime` = makespan in seconds; `peak_memory` = bytes on the fullest device; `max_load` = seconds per
    sample of a pipeline (`graphopt.costs.load`), without simulation. A plan over a device's capacity costs inf under
    all. threads: how many share a batch; prices do not depend on it.
    """

    by_events = True
    provides = frozenset({"ends"})

    def __init__(self, *, name: str, machine: Machine, objective: Objective, threads: Workers) -> None:
        self.name, self.machine, self.objective, self.at_once = name, machine, objective, threads
        self._links, self._constants = link_arrays(machine), device_constants(machine.devices)
        self._capacity = np.array([device.capacity for device in machine.devices])
        self._pays = np.array([device.pays_transfers for device in machine.devices])
        self._needs_memory = objective == "peak_memory" or bool(np.isfinite(self._capacity).any())
        self._unit = machine.transfer.unit
        rule = machine.transfer
        adds_up = not self._needs_memory and rule.op_overhead == 0.0 and rule.clock == "grid"
        self._by_rank = ranked(self._links, machine.num_devices)
        self._sums_times = objective == "runtime" and adds_up  # on one device
        self._last_loads: tuple[Flow, Loads] | None = None  # the plan priced last, from which the next one may follow
        self._flows: WeakKeyDictionary[Graph, dict[bytes, Flow]] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        _check_devices(plans, self.machine)
        makespan, peak = np.empty(len(plans)), np.zeros((len(plans), self.machine.num_devices), np.int64)
        fusible(plans.graph)  # computed once, before the threads ask for it
        memory = self.objective == "peak_memory" or plans.graph.tensor_bytes.sum() > self._capacity.min()

        def price_rows(rows: _Rows) -> None:
            makespan[rows], peak[rows] = self._price_rows(plans, rows, memory)

        shared(self.at_once, price_rows, self._chunks(plans))
        return self._judged(makespan, peak)

    def price_and_ends(self, plan: Plans) -> tuple[Prices, F64] | None:
        if self.objective == "max_load":
            return None
        trace, ends = self.simulate(plan), np.zeros(plan.graph.num_ops)
        ends[trace.kernel_op] = trace.kernel_end
        return self._judged(np.array([trace.makespan]), trace.peak_bytes[None]), ends

    def peak_bytes(self, plan: Plans) -> NDArray[np.int64] | None:
        _check_devices(plan, self.machine)
        return self._price_rows(plan, np.zeros(1, np.int64), True)[1][0] if self._needs_memory else None

    def _judged(self, makespan: F64, peak: NDArray[np.int64]) -> Prices:
        """[B] prices of simulated runs: makespans [B], bytes [B, D]."""
        over = np.maximum(peak - self._capacity, 0.0)
        with np.errstate(divide="ignore"):  # of a device that holds nothing any excess is endless
            excess = np.divide(over, self._capacity, where=over > 0, out=np.zeros_like(over)).sum(1)
        cost = peak.max(1).astype(np.float64) if self.objective == "peak_memory" else makespan
        return Prices(np.where(excess > 0, np.inf, cost), excess)

    def flips(self, graph: Graph, inline: NDArray[np.bool_], limits: KernelLimits) -> Flips | None:
        """Exact delta pricing of fusion on device 0; None where memory over time matters, or times are measured."""
        if not self._sums_times or graph.measured:
            return None
        from graphopt.costs.one_kernel.flips import FusionFlips

        return FusionFlips(graph, inline, self.machine.devices[0], limits)

    def simulate(self, plan: Plans) -> Trace:
        """All that happens under one plan (a batch of one)."""
        _check_devices(plan, self.machine)
        made, devices = self._flow(plan.graph, plan.inline[0]), self.machine.num_devices
        items = len(made.is_kernel) + len(made.in_tensor)
        log, live = _log(items, 2 * items + 2, devices), self._links.tick == 0.0
        keys = np.zeros((0, 1, 1)) if plan.transfer is None else plan.transfer.astype(np.float64)
        makespan, peak = np.empty(1), np.zeros((1, devices), np.int64)
        device, priority = plan.device.astype(np.int16), plan.priority.astype(np.float64)
        work = scratch(made, self._links, live)
        self._run(made, plan.graph, work, device, priority, keys, live, True, makespan, peak, log)
        if not live:
            peak[0] = _tick_peaks(made, self._links, device[0], log.start, devices)
        for times in (makespan, log.start, log.end, log.time):
            times *= self._unit
        num_ops = len(made.is_kernel)
        kernel = np.flatnonzero(made.is_kernel)
        sent = num_ops + np.flatnonzero(log.step[num_ops:, 0] >= 0)
        producer = np.repeat(np.arange(num_ops), np.diff(made.out_ptr))
        tensor, target = np.divmod(log.step[sent, 2], 64)
        steps, placed = int(log.step[:, 1].max(initial=0)) + 1, plan.device[0]
        return Trace(
            makespan=float(makespan[0]), peak_bytes=peak[0], kernel_op=kernel.astype(np.int32),
            kernel_device=placed[kernel], kernel_start=log.start[kernel], kernel_end=log.end[kernel],
            kernel_step=log.step[kernel, :2], transfer_tensor=tensor.astype(np.int32),
            transfer_source=placed[producer[tensor - made.out_ptr[0]]],
            transfer_target=(target - 1).astype(np.int16), transfer_start=log.start[sent],
            transfer_end=log.end[sent], transfer_step=log.step[sent, :2], memory_time=log.time[:steps],
            memory_bytes=log.bytes[:steps],
        )  # fmt: skip

    def _price_rows(self, plans: Plans, rows: _Rows, memory: bool) -> _Result:
        """Prices of rows that share a fusion state; bytes are 0 where they are not asked for."""
        inline, first = writable(plans.inline[rows[0]]), plans.device[rows[0]]
        if self._sums_times and not plans.graph.measured and len(rows) == 1 and first.min() == first.max():
            constants, times = self._constants[int(first[0])], np.empty(plans.graph.num_ops)
            total = runtime_on_one_device(fusible(plans.graph), inline, constants, workspace(plans.graph), times)
            return np.array([total]), np.zeros((1, self.machine.num_devices), np.int64)
        made = self._flow(plans.graph, inline)
        if self.objective != "max_load":
            return self._simulate(made, plans, rows, memory)
        device, last = _take(plans.device, rows, np.int16), self._last_loads
        base = last[1] if last is not None and last[0] is made else None
        found = loads(made, self._links, self._pays, plans.graph.producer, device, base)
        self._last_loads = made, Loads(*(values[-1:].copy() for values in found))  # plans belong to the caller
        return found.seconds.max(1) * self._unit, found.weights

    def _simulate(self, made: Flow, plans: Plans, rows: _Rows, memory: bool) -> _Result:
        device, priority = _take(plans.device, rows, np.int16), _take(plans.priority, rows, np.float64)
        makespan, peak = np.empty(len(rows)), np.zeros((len(rows), self.machine.num_devices), np.int64)
        live = memory and self._links.tick == 0.0
        keys = None if plans.transfer is None else _take(plans.transfer, rows, np.float64)
        if self._by_rank:
            bytes_too = peak if memory else None
            if simulate_ranked(made, self._links, device, priority, keys, makespan, bytes_too) == len(rows):
                return makespan, peak
            peak[:] = 0
        keys = np.zeros((0, 1, 1)) if keys is None else keys
        kept = getattr(_kept, "scratch", None)  # a thread keeps it until another kernel graph is simulated
        if kept is None or kept[0] is not made or kept[1] is not self._links or kept[2] != live:
            kept = _kept.scratch = made, self._links, live, scratch(made, self._links, live)
        work: Scratch = kept[3]
        if not memory or live:
            self._run(made, plans.graph, work, device, priority, keys, live, False, makespan, peak, _log(0, 0, 0))
            return makespan * self._unit, peak
        for b in range(len(rows)):
            log, row = _log(len(made.is_kernel) + len(made.in_tensor), 0, 0), slice(b, b + 1)
            plan, price = (device[row], priority[row], keys[row]), (makespan[row], peak[row], log)
            self._run(made, plans.graph, work, *plan, False, False, *price)
            peak[b] = _tick_peaks(made, self._links, device[b], log.start, peak.shape[1])
        return makespan * self._unit, peak

    def _run(self, made: Flow, graph: Graph, *arguments: object) -> None:
        if not simulate_rows(made, self._links, *arguments):
            raise RuntimeError(f"the kernels of a plan for {graph.name!r} wait for each other")

    def _chunks(self, plans: Plans) -> list[_Rows]:
        """Rows of equal fusion state, cut so that every thread has work."""
        groups: dict[bytes, list[int]] = {}
        for b in range(len(plans)):
            groups.setdefault(plans.inline[b].tobytes(), []).append(b)
        size = rows_per_thread(plans.graph, len(plans), self.at_once)
        return [np.array(rows[i : i + size]) for rows in groups.values() for i in range(0, len(rows), size)]

    def _flow(self, graph: Graph, inline: NDArray[np.bool_]) -> Flow:
        kept = self._flows.setdefault(graph, {})
        key = inline.tobytes()
        made = kept.get(key)
        if made is None:
            made = flow(graph, kernel_graph(graph, inline, self.machine.devices), self.machine.transfer)
            if len(kept) >= _FLOWS_PER_GRAPH:
                kept.clear()
            kept[key] = made
        return made


def _take(values: NDArray[Any], rows: _Rows, kind: type[_Number]) -> NDArray[_Number]:
    """The rows as C-contiguous numbers of one kind; no copy where they are that and follow each other."""
    first, last = int(rows[0]), int(rows[-1])
    taken = values[first : last + 1] if last - first == len(rows) - 1 else values[rows]
    return writable(np.ascontiguousarray(taken, kind))


def _log(items: int, steps: int, devices: int) -> Log:
    return Log(np.zeros(items), np.zeros(items), np.full((items if steps else 0, 3), -1, np.int64), np.zeros(steps),
               np.zeros((steps, devices), np.int64))  # fmt: skip


def _check_devices(plans: Plans, machine: Machine) -> None:
    """The compiled loop does not check bounds."""
    if plans.device.size and not 0 <= plans.device.min() <= plans.device.max() < machine.num_devices:
        raise ValueError(f"a plan for {plans.graph.name!r} names a device that machine {machine.name!r} lacks")


def _tick_peaks(
    made: Flow, links: LinkArrays, device: NDArray[np.int16], start: F64, devices: int
) -> NDArray[np.int64]:
    """[D] peak bytes when a result is freed at floor(start) + floor(time) - 1 ticks of its last reader.

    Times are in units of the clock. On the grid a tolerance of a thousandth of a tick keeps whole numbers of ticks
    whole. Graph inputs and weights stay to the end.
    """
    tick, slack = links.tick, 1e-3 if links.on_grid else 0.0
    num_ops, first = len(made.is_kernel), int(made.out_ptr[0])
    seconds = made.time[np.arange(num_ops), made.column[device]]
    ends = (np.floor(start[:num_ops] / tick + slack) + np.floor(seconds / tick + slack) - 1.0) * tick
    tensor_of_edge = np.repeat(np.arange(len(made.keep)), np.diff(made.reader_ptr))
    maker = np.repeat(np.arange(num_ops), np.diff(made.out_ptr))
    begun = start[maker]
    freed = np.append(np.full(first, -np.inf), begun)
    np.maximum.at(freed, tensor_of_edge, ends[made.reader])
    freed[made.keep] = np.inf
    stored = np.flatnonzero(made.is_kernel[maker])
    time = np.concatenate([begun[stored], freed[first + stored]])
    size = made.tensor_bytes[first + stored]
    held = {(int(t), int(d)) for t, d in zip(tensor_of_edge, device[made.reader]) if t < first}
    peaks = np.zeros(devices, np.int64)
    order = np.argsort(time, kind="stable")  # at equal times starts come first
    for d in range(devices):
        here = device[maker[stored]] == d
        change = np.concatenate([np.where(here, size, 0), np.where(here, -size, 0)])[order]
        base = sum(int(made.tensor_bytes[t]) for t, where in held if where == d)
        peaks[d] = base + max(0, int(np.cumsum(change).max(initial=0)))
    return peaks
