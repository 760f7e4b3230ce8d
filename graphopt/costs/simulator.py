"""`Simulator`: the cost model that runs a plan in an event simulation on a machine described by numbers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from graphopt.costs.base import CostModel, Flips, Objective, Prices
from graphopt.costs.event import Flow, Log, flow, simulate_rows, wires
from graphopt.costs.kernel_time import device_constants, kernel_graph, runtime_on_one_device, workspace
from graphopt.graph import Graph
from graphopt.kernels import Limits, fusible
from graphopt.machine import Machine
from graphopt.plan import Plans
from graphopt.trace import Trace

_FLOWS_PER_GRAPH = 4  # kernel graphs kept per graph: those of the few fusion states that searches repeat
_OPS_PER_CHUNK = 4000  # fewer op evaluations than this are not worth a thread
_Rows = NDArray[np.int64]
_Result = tuple[NDArray[np.float64], NDArray[np.int64]]  # makespan [B], peak bytes [B, D]


class Simulator(CostModel):
    """Prices plans by simulation (`graphopt.costs.event` states the rules).

    objective: `runtime` = makespan in seconds; `peak_memory` = bytes on the fullest device. A plan over a device's
    capacity costs inf under both. threads: how many share a batch; prices do not depend on it.
    """

    def __init__(self, *, name: str, machine: Machine, objective: Objective, threads: int) -> None:
        self.name, self.machine, self.objective, self.threads = name, machine, objective, threads
        self._wires = wires(machine)
        self._capacity = np.array([device.capacity for device in machine.devices])
        self._needs_memory = objective == "peak_memory" or bool(np.isfinite(self._capacity).any())
        self._sums_times = not self._needs_memory and machine.transfer.op_overhead == 0.0  # on one device
        self._flows: WeakKeyDictionary[Graph, dict[bytes, Flow]] = WeakKeyDictionary()

    def price(self, plans: Plans) -> Prices:
        makespan, peak = np.empty(len(plans)), np.zeros((len(plans), self.machine.num_devices), np.int64)
        fusible(plans.graph)  # computed once, before the threads ask for it

        def price_rows(rows: _Rows) -> None:
            makespan[rows], peak[rows] = self._price_rows(plans, rows)

        self._share(price_rows, self._chunks(plans))
        over = np.maximum(peak - self._capacity, 0.0)
        excess = (over / np.where(np.isfinite(self._capacity), self._capacity, 1.0)).sum(1)
        cost = makespan if self.objective == "runtime" else peak.max(1).astype(np.float64)
        return Prices(np.where(excess > 0, np.inf, cost), excess)

    def flips(self, graph: Graph, inline: NDArray[np.bool_], limits: Limits) -> Flips | None:
        """Exact delta pricing of fusion on device 0; None where memory over time matters."""
        if not self._sums_times:
            return None
        from graphopt.costs.flips import FusionFlips

        return FusionFlips(graph, inline, self.machine.devices[0], limits)

    def simulate(self, plan: Plans) -> Trace:
        """All that happens under one plan (a batch of one)."""
        made = self._flow(plan.graph, plan.inline[0])
        items = len(made.is_kernel) + len(made.in_tensor)
        log = _log(items, 2 * items + 2, self.machine.num_devices)
        makespan, peak = self._simulate(made, plan, np.zeros(1, np.int64), log, True)
        return _trace(float(makespan[0]), peak[0], made, plan.device[0], log)

    def _price_rows(self, plans: Plans, rows: _Rows) -> _Result:
        """Prices of rows that share a fusion state."""
        inline, device = plans.inline[rows[0]], plans.device[rows]
        if self._sums_times and len(rows) == 1 and device.min() == device.max():
            d = int(device[0, 0])
            constants = device_constants(self.machine.devices[d : d + 1])[0]
            times = np.empty(plans.graph.num_ops)
            total = runtime_on_one_device(fusible(plans.graph), inline, constants, workspace(plans.graph), times)
            return np.array([total]), np.zeros((1, self.machine.num_devices), np.int64)
        made = self._flow(plans.graph, inline)
        ticks = self._needs_memory and self._wires.tick > 0.0
        log = _log(len(made.is_kernel) + len(made.in_tensor) if ticks else 0, 0, 0)
        return self._simulate(made, plans, rows, log, False)

    def _simulate(self, made: Flow, plans: Plans, rows: _Rows, log: Log, trace: bool) -> _Result:
        device, priority = np.ascontiguousarray(plans.device[rows]), np.ascontiguousarray(plans.priority[rows])
        keys = np.zeros((0, 0, 0)) if plans.transfer is None else np.ascontiguousarray(plans.transfer[rows])
        makespan, peak = np.empty(len(rows)), np.zeros((len(rows), self.machine.num_devices), np.int64)
        memory = self._needs_memory or trace
        if not simulate_rows(made, self._wires, device, priority, keys, memory, trace, makespan, peak, log):
            raise RuntimeError(f"the kernels of a plan for {plans.graph.name!r} wait for each other")
        return makespan, peak

    def _chunks(self, plans: Plans) -> list[_Rows]:
        """Rows of equal fusion state, cut so that every thread has work."""
        groups: dict[bytes, list[int]] = {}
        for b in range(len(plans)):
            groups.setdefault(plans.inline[b].tobytes(), []).append(b)
        size = max(-(-len(plans) // self.threads), -(-_OPS_PER_CHUNK // plans.graph.num_ops))
        return [np.array(rows[i : i + size]) for rows in groups.values() for i in range(0, len(rows), size)]

    def _flow(self, graph: Graph, inline: NDArray[np.bool_]) -> Flow:
        kept = self._flows.setdefault(graph, {})
        key = inline.tobytes()
        made = kept.get(key)
        if made is None:
            made = flow(graph, kernel_graph(graph, inline, self.machine.devices))
            if len(kept) >= _FLOWS_PER_GRAPH:
                kept.clear()
            kept[key] = made
        return made

    def _share(self, call: Callable[[_Rows], None], chunks: list[_Rows]) -> None:
        """Calls for every chunk, on threads where that pays."""
        if self.threads == 1 or len(chunks) == 1:
            for rows in chunks:
                call(rows)
        else:
            list(_pool(self.threads).map(call, chunks))


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "simulator")


def _log(items: int, steps: int, devices: int) -> Log:
    return Log(np.zeros(items), np.zeros(items), np.full((items if steps else 0, 3), -1, np.int64), np.zeros(steps),
               np.zeros((steps, devices), np.int64))  # fmt: skip


def _trace(makespan: float, peak: NDArray[np.int64], made: Flow, device: NDArray[np.int16], log: Log) -> Trace:
    num_ops = len(made.is_kernel)
    kernel = np.flatnonzero(made.is_kernel)
    sent = num_ops + np.flatnonzero(log.step[num_ops:, 0] >= 0)
    producer = np.repeat(np.arange(num_ops), np.diff(made.out_ptr))
    tensor, target = np.divmod(log.step[sent, 2], 64)
    steps = int(log.step[:, 1].max(initial=0)) + 1
    return Trace(
        makespan=makespan, peak_bytes=peak, kernel_op=kernel.astype(np.int32), kernel_device=device[kernel],
        kernel_start=log.start[kernel], kernel_end=log.end[kernel], kernel_step=log.step[kernel, :2],
        transfer_tensor=tensor.astype(np.int32), transfer_source=device[producer[tensor - made.out_ptr[0]]],
        transfer_target=(target - 1).astype(np.int16), transfer_start=log.start[sent], transfer_end=log.end[sent],
        transfer_step=log.step[sent, :2], memory_time=log.time[:steps], memory_bytes=log.bytes[:steps],
    )  # fmt: skip
