"""`Trace`: the events of one simulated run, and its file for Chrome's tracing page and Perfetto."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.operators import OPERATORS
from graphopt.core.utils.whole import whole_file


@dataclass(frozen=True, eq=False)
class Trace:
    """One simulated run. K kernels and X transfers in order of op id and of creation, S steps, D devices.

    A step is one position in the order of all events; ends are processed before starts. Several steps share a time
    where kernels take none.
    """

    makespan: float  # seconds until everything is idle
    peak_bytes: NDArray[np.int64]  # [D]
    kernel_op: NDArray[np.int32]  # [K] the stored op of each kernel
    kernel_device: NDArray[np.int16]  # [K]
    kernel_start: NDArray[np.float64]  # [K] seconds
    kernel_end: NDArray[np.float64]  # [K]
    kernel_step: NDArray[np.int64]  # [K, 2] steps of start and end
    transfer_tensor: NDArray[np.int32]  # [X]
    transfer_source: NDArray[np.int16]  # [X]
    transfer_target: NDArray[np.int16]  # [X] destination device, -1 for all readers' (multicast)
    transfer_start: NDArray[np.float64]  # [X]
    transfer_end: NDArray[np.float64]  # [X]
    transfer_step: NDArray[np.int64]  # [X, 2]
    memory_time: NDArray[np.float64]  # [S] seconds of each step
    memory_bytes: NDArray[np.int64]  # [S, D] bytes after it; zeros where the machine frees by ticks


def write_trace(path: Path, trace: Trace, graph: Graph, machine: Machine) -> None:
    """Writes the Chrome trace event format: a row per device and per lane in use, a counter of bytes per device."""
    events = (
        _names(trace, machine) + _kernels(trace, graph) + _transfers(trace, graph, machine) + _memory(trace, machine)
    )
    with whole_file(path) as file:
        file.write(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}).encode())


def slots(trace: Trace) -> NDArray[np.int64]:
    """[X] which of the transfers that share source and destination at a time a transfer is: 0 where lanes carry one."""
    ends: dict[tuple[int, int], list[float]] = {}
    slot = np.zeros(len(trace.transfer_tensor), np.int64)
    for i in np.lexsort((trace.transfer_step[:, 0], trace.transfer_start)).tolist():
        busy = ends.setdefault((int(trace.transfer_source[i]), int(trace.transfer_target[i])), [])
        start, end = float(trace.transfer_start[i]), float(trace.transfer_end[i])
        slot[i] = next((s for s, until in enumerate(busy) if until <= start), len(busy))
        busy[slot[i] : slot[i] + 1] = [end]
    return slot


def _lane(source: int, target: int, slot: int, machine: Machine) -> int:
    """Row number of a lane: rows 0 .. D-1 are the devices."""
    d = machine.num_devices
    row = d + source if target < 0 or machine.transfer.lane == "source" else 2 * d + source * d + target
    return row + slot * (2 * d + d * d)


def _names(trace: Trace, machine: Machine) -> list[dict[str, object]]:
    names = [device.name for device in machine.devices]
    rows = {i: f"{i} {name}" for i, name in enumerate(names)}
    lanes = zip(trace.transfer_source.tolist(), trace.transfer_target.tolist(), slots(trace).tolist())
    for source, target, slot in lanes:
        one = target >= 0 and machine.transfer.lane != "source"
        rows[_lane(source, target, slot, machine)] = f"{source} -> {target}" if one else f"{source} -> bus"
    return [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": row, "args": {"name": name}} for row, name in rows.items()
    ]


def _span(name: str, category: str, row: int, start: float, end: float, **details: object) -> dict[str, object]:
    microseconds = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"ph": "X", "name": name, "cat": category, "pid": 0, "tid": row, "args": details} | microseconds


def _kernels(trace: Trace, graph: Graph) -> list[dict[str, object]]:
    rows = zip(
        trace.kernel_op.tolist(), trace.kernel_device.tolist(), trace.kernel_start.tolist(), trace.kernel_end.tolist()
    )
    return [_span(graph.op_names[op], OPERATORS[graph.kind[op]].name, device, start, end, op=op)
            for op, device, start, end in rows]  # fmt: skip


def _transfers(trace: Trace, graph: Graph, machine: Machine) -> list[dict[str, object]]:
    out, slot = [], slots(trace).tolist()
    for i, tensor in enumerate(trace.transfer_tensor.tolist()):
        name = f"{graph.op_names[graph.producer[tensor]]} ({graph.tensor_bytes[tensor]} B)"
        row = _lane(int(trace.transfer_source[i]), int(trace.transfer_target[i]), slot[i], machine)
        start, end = float(trace.transfer_start[i]), float(trace.transfer_end[i])
        out.append(_span(name, "transfer", row, start, end, tensor=tensor))
    return out


def _memory(trace: Trace, machine: Machine) -> list[dict[str, object]]:
    """A sample after every step that changed a device's memory."""
    out: list[dict[str, object]] = []
    for d in range(machine.num_devices):
        changed = np.flatnonzero(np.diff(trace.memory_bytes[:, d], prepend=-1))
        name = f"bytes on {d} {machine.devices[d].name}"
        samples = zip((trace.memory_time[changed] * 1e6).tolist(), trace.memory_bytes[changed, d].tolist())
        out += [{"ph": "C", "name": name, "pid": 0, "ts": at, "args": {"bytes": size}} for at, size in samples]
    return out
