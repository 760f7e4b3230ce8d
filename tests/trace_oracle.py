"""An independent oracle: did a simulated run keep the rules? Plain Python; shares no code with the simulator.

It returns sentences that say what is wrong; an empty list means valid. It is not fast.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from graphopt.core.machine import Machine
from graphopt.core.oracles import bases, kernels
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace

_GRID = 2.0**-39  # seconds: twice the grid to which simulated durations are rounded


def check_trace(trace: Trace, plan: Plans, machine: Machine) -> list[str]:
    """What is wrong with a simulated run of a plan (a batch of one) on a machine."""
    run = _Run(trace, plan, machine)
    wrong = run.kernels_once()
    wrong = wrong or run.transfers_sent()
    return wrong or [*run.queues(), *run.memory()]


@dataclass(frozen=True)
class _Item:
    """Something that a device or a lane did: when it could start, when it did, and its place in the queue."""

    what: str
    start_step: int
    end_step: int
    start: float
    free: float  # when the resource was free again
    ready_step: int
    ready: float
    order: tuple[float | str, ...]  # smallest first


class _Run:
    """The trace, by op and by tensor, beside the kernels that the plan asks for."""

    def __init__(self, trace: Trace, plan: Plans, machine: Machine) -> None:
        self.trace, self.graph, self.machine, self.plan = trace, plan.graph, machine, plan
        self.rule, self.found = machine.transfer, kernels(plan.graph, plan.inline[0].tolist())
        self.device = plan.device[0].tolist()
        self.row = {op: i for i, op in enumerate(trace.kernel_op.tolist())}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for root, (_, reads) in self.found.items():
            for tensor in reads:
                self.readers[tensor].append(root)
        self.sent: dict[tuple[int, int], int] = {}  # (tensor, destination) -> transfer
        for i, tensor in enumerate(trace.transfer_tensor.tolist()):
            for there in self._targets(i):
                self.sent.setdefault((tensor, there), i)

    def _targets(self, transfer: int) -> list[int]:
        tensor, target = int(self.trace.transfer_tensor[transfer]), int(self.trace.transfer_target[transfer])
        everywhere = {self.device[r] for r in self.readers[tensor]} - {self.device[self.graph.producer[tensor]]}
        return [target] if target >= 0 else sorted(everywhere)

    def kernels_once(self) -> list[str]:
        wrong = []
        if sorted(self.trace.kernel_op.tolist()) != list(self.found):
            wrong.append("the kernels that ran are not those of the plan, once each")
        if any(self.device[op] != d for op, d in zip(self.trace.kernel_op.tolist(), self.trace.kernel_device.tolist())):
            wrong.append("a kernel ran on another device than planned")
        return wrong

    def queues(self) -> list[str]:
        """Devices and lanes do one thing at a time, never wait for nothing, and take the most urgent item first."""
        wrong, last = [], 0.0
        for who, items in [*self._device_items().items(), *self._lane_items().items()]:
            items.sort(key=lambda item: item.start_step)
            free, free_step = 0.0, 0
            for position, item in enumerate(items):
                if item.start < free - _GRID or item.start_step < free_step:
                    wrong.append(f"{who} does two things at {item.start} s")
                if abs(item.start - max(free, item.ready)) > _GRID:
                    wrong.append(f"{item.what} waits although {who} is idle, or starts too early")
                for other in items[position + 1 :]:
                    if other.ready_step <= item.start_step and other.order < item.order:
                        wrong.append(f"{item.what} starts before {other.what} on {who}")
                free, free_step = item.free, item.end_step
                last = max(last, free)
        if abs(last - self.trace.makespan) > _GRID:
            wrong.append(f"the makespan is {self.trace.makespan}, the last thing ends at {last} s")
        return wrong

    def _device_items(self) -> dict[str, list[_Item]]:
        t, out = self.trace, defaultdict(list)
        for root, i in self.row.items():
            ready_step, ready = self._ready(root)
            busy = float(t.kernel_end[i]) + (self.rule.op_overhead if t.kernel_end[i] > t.kernel_start[i] else 0.0)
            urgency = ready_step if self.rule.op_order == "fifo" else -float(self.plan.priority[0, root])
            names = (self._last_maker(root, ready_step), self.graph.op_names[root]) if ready_step else ()
            tie = (*names, root) if self.rule.ties == "name" else (root,)
            out[f"device {self.device[root]}"].append(_Item(
                self.graph.op_names[root], int(t.kernel_step[i, 0]), int(t.kernel_step[i, 1]), float(t.kernel_start[i]),
                busy, ready_step, ready, (urgency, *tie),
            ))  # fmt: skip
        return out

    def _lane_items(self) -> dict[str, list[_Item]]:
        t, out, keys = self.trace, defaultdict(list), self.plan.transfer
        for i, tensor in enumerate(t.transfer_tensor.tolist()):
            maker, target = int(self.graph.producer[tensor]), int(t.transfer_target[i])
            made = self.row[maker]
            there = target if target >= 0 else self._first_reader_device(tensor)
            urgency = -float(self.plan.priority[0, maker]) if keys is None else -float(keys[0, tensor, there])
            ready_step, ready = int(t.kernel_step[made, 1]), float(t.kernel_end[made])
            lane = f"lane {self.device[maker]}" + (f" -> {there}" if self.rule.lane == "link" else "")
            lane += f" of its own, {i}" if self.rule.lane == "unlimited" else ""
            out[lane].append(_Item(
                f"tensor {tensor}", int(t.transfer_step[i, 0]), int(t.transfer_step[i, 1]), float(t.transfer_start[i]),
                float(t.transfer_end[i]) + self.rule.lane_overhead, ready_step, ready,
                (ready_step if self.rule.order == "fifo" else urgency, tensor, target),
            ))  # fmt: skip
        return out

    def _first_reader_device(self, tensor: int) -> int:
        here = self.device[self.graph.producer[tensor]]
        return int(next(self.device[r] for r in sorted(self.readers[tensor]) if self.device[r] != here))

    def transfers_sent(self) -> list[str]:
        """Each result exactly once to each device that needs it, after it was made, for as long as the link takes."""
        t, wrong, count = self.trace, [], 0
        bandwidth, latency = self.machine.link_bandwidth_DD, self.machine.link_latency_DD
        for i, tensor in enumerate(t.transfer_tensor.tolist()):
            maker, targets = int(self.graph.producer[tensor]), self._targets(i)
            count += len(targets)
            here = self.device[maker]
            size = int(self.graph.tensor_bytes[tensor])
            seconds = max(latency[here, d] + size / bandwidth[here, d] for d in targets)
            if t.transfer_source[i] != here or here in targets:
                wrong.append(f"tensor {tensor} is sent from device {t.transfer_source[i]} to {targets}")
            if (
                t.transfer_start[i] < t.kernel_end[self.row[maker]]
                or t.transfer_step[i, 0] < t.kernel_step[self.row[maker], 1]
            ):
                wrong.append(f"tensor {tensor} is sent before it is made")
            if abs(t.transfer_end[i] - t.transfer_start[i] - seconds) > _GRID:
                wrong.append(
                    f"sending tensor {tensor} takes {t.transfer_end[i] - t.transfer_start[i]}, not {seconds} s"
                )
        needed = {(tensor, self.device[r]) for tensor, rs in self.readers.items() if self.graph.producer[tensor] >= 0
                  for r in rs if self.device[r] != self.device[self.graph.producer[tensor]]}  # fmt: skip
        if needed != set(self.sent) or count != len(needed):
            wrong.append("what was sent is not what other devices read, once each")
        return wrong

    def _ready(self, root: int) -> tuple[int, float]:
        """(step, seconds) at which all inputs of a kernel were there."""
        t, latest = self.trace, (0, 0.0)
        for tensor in self.found[root][1]:
            maker = int(self.graph.producer[tensor])
            if maker >= 0 and self.device[maker] == self.device[root]:
                i = self.row[maker]
                latest = max(latest, (int(t.kernel_step[i, 1]), float(t.kernel_end[i])))
            elif maker >= 0:
                i = self.sent[tensor, self.device[root]]
                latest = max(latest, (int(t.transfer_step[i, 1]), float(t.transfer_end[i])))
        return latest

    def _last_maker(self, root: int, step: int) -> str:
        """The last name of the ops whose results arrived at a step for a kernel."""
        t, makers = self.trace, []
        for tensor in self.found[root][1]:
            maker = int(self.graph.producer[tensor])
            if maker >= 0:
                here = self.device[maker] == self.device[root]
                sent = 0 if here else self.sent[tensor, self.device[root]]
                arrived = t.kernel_step[self.row[maker], 1] if here else t.transfer_step[sent, 1]
                makers += [self.graph.op_names[maker]] if arrived == step else []
        return max(makers)

    def memory(self) -> list[str]:
        """The memory curve and the peaks, recomputed from who needs what from when to when."""
        if self.rule.free == "tick_before":
            least, most = (np.array(self._tick_peaks(slack)) for slack in self._slack())
            fits = (least <= self.trace.peak_bytes).all() and (self.trace.peak_bytes <= most).all()
            return [] if fits else [f"peaks are {least} to {most}, not {self.trace.peak_bytes}"]
        steps, devices = len(self.trace.memory_time), self.machine.num_devices
        change = np.zeros((steps + 1, devices), np.int64)
        for tensor, there, first, last in self._residences():
            change[first, there] += int(self.graph.tensor_bytes[tensor])
            change[last if last < math.inf else steps, there] -= int(self.graph.tensor_bytes[tensor])
        curve = np.cumsum(change, 0)[:steps]
        wrong = []
        if (curve < 0).any() or (self.trace.memory_bytes < 0).any():
            wrong.append("memory is negative")
        if not np.array_equal(curve, self.trace.memory_bytes):
            wrong.append("the memory curve is not the sum of what is resident")
        if not np.array_equal(curve.max(0), self.trace.peak_bytes):
            wrong.append(f"peaks are {curve.max(0)}, not {self.trace.peak_bytes}")
        return wrong

    def _residences(self) -> list[tuple[int, int, int, int]]:
        """(tensor, device, first step, step after the last) of every copy; the last copy of all ends at the end."""
        t, graph, out, forever = self.trace, self.graph, [], len(self.trace.memory_time)
        base = bases(graph)
        kept = {base[i] for i in np.flatnonzero(graph.is_output).tolist()}
        ends: dict[tuple[int, int], int] = defaultdict(int)  # last reader of each copy
        for tensor, readers in self.readers.items():
            for root in readers:
                place = (tensor, self.device[root])
                ends[place] = max(ends[place], int(t.kernel_step[self.row[root], 1]))
        for tensor in range(graph.num_tensors):
            maker = int(graph.producer[tensor])
            if maker < 0:
                stays = bool(graph.is_weight[tensor]) or tensor in kept
                out += [(tensor, d, 0, forever if stays else last) for (i, d), last in ends.items() if i == tensor]
            elif maker in self.row:
                here, made = self.device[maker], t.kernel_step[self.row[maker]]
                sends = [i for (what, _), i in self.sent.items() if what == tensor]
                last = max([int(made[1]), ends[tensor, here], *(int(t.transfer_step[i, 1]) for i in sends)])
                out.append((tensor, here, int(made[0]), forever if tensor in kept else last))
        out += [(tensor, d, int(t.transfer_step[i, 0]), ends[tensor, d]) for (tensor, d), i in self.sent.items()]
        return out

    def _slack(self) -> tuple[float, float]:
        """How far below a whole tick counts as whole: on the grid a thousandth; of times in floating-point ticks, which
        a trace has in seconds, the last bit is not known, so either may be."""
        return (1e-3, 1e-3) if self.rule.clock == "grid" else (-1e-6, 1e-6)

    def _tick_peaks(self, slack: float) -> list[int]:
        """Under `tick_before`: allocations first at equal times, copies not counted."""
        t, tick, changes = self.trace, self.rule.tick, []
        now = [0] * self.machine.num_devices
        for tensor, readers in self.readers.items():
            if self.graph.producer[tensor] < 0:
                for d in {self.device[r] for r in readers}:
                    now[d] += int(self.graph.tensor_bytes[tensor])
        kept = {bases(self.graph)[i] for i in np.flatnonzero(self.graph.is_output).tolist()}
        for root, i in self.row.items():
            for tensor in self.graph.results(root):
                freed, size = float(t.kernel_start[i]), int(self.graph.tensor_bytes[tensor])
                for reader in self.readers[tensor]:
                    j = self.row[reader]
                    start, cost = t.kernel_start[j] / tick, (t.kernel_end[j] - t.kernel_start[j]) / tick
                    freed = max(freed, (math.floor(start + slack) + math.floor(cost + slack) - 1) * tick)
                changes.append((float(t.kernel_start[i]), 0, self.device[root], size))
                changes.append((math.inf if tensor in kept else freed, 1, self.device[root], -size))
        peak = list(now)
        for _, _, d, size in sorted(changes):
            now[d] += size
            peak[d] = max(peak[d], now[d])
        return peak
