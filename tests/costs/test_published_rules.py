"""`machine=sequential_send` against a program of the published rules, and against a third-party simulator."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from cells import option, simulator
from check_data import check_data

from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from tests.trace_oracle import check_trace

# --- The rules of the published placement simulator that `machine=sequential_send` follows, from their description:
# pure Python, one event at a time, names as strings, times as floating-point microseconds. Slow and independent. -
# Events are handled by time; at one time by kind (an arrival, a bus, a device), then by name: an arrival by the names
# of producer and reader, a bus or a device by the name of the device. - An arrival takes one dependency away; the
# last one puts the reader into its device's queue. At time 0 the ops without inputs are there in the order in which
# the graph was given. - Queues are first in, first out by the time from which an item may start, then by when it was
# put there. - A device that is free takes an op; it is free again at its end, 5.7 us later where the op costs
# something. A result that other devices read is put into the device's bus queue when its op starts, for the time at
# which the op ends. - A bus carries one result at a time, for bytes / 7600 us, to all other devices at once, and is
# free 25 us after that. - The run time is that of the last event. The bytes of an op are on its device from its start
# to int(start) + int(cost) - 1 of the reader for which that is latest, at least for an instant; of what happens at
# one time allocations come first.

ARRIVAL, BUS, DEVICE = 0, 1, 2
AFTER_OP, AFTER_TRANSFER, SPEED = 5.7, 25, 7600


@dataclass
class Case:
    """A graph and a placement, ops in the order in which they were given."""

    names: list[str]
    cost: list[float]  # us
    size: list[int]  # bytes
    reads: list[list[int]]
    place: list[int]
    devices: list[str]


@dataclass
class _Server:
    """A device or a bus: what waits, and whether an event for it is under way."""

    waiting: list[tuple[float, int, int]] = field(default_factory=list)  # (from when, number, op)
    called: bool = False


def run(case: Case) -> tuple[float, list[int]]:
    """(run time in us, peak bytes of every device)."""
    ops, number = range(len(case.names)), iter(range(10**9))
    readers: list[list[int]] = [[m for m in ops if n in case.reads[m]] for n in ops]
    missing = [set(reads) for reads in case.reads]
    servers = {(kind, d): _Server() for kind in (BUS, DEVICE) for d in range(len(case.devices))}
    events: list[tuple[float, int, tuple[str, ...], tuple[int, ...]]] = []
    start: dict[int, float] = {}

    def put(kind: int, device: int, op: int, since: float) -> None:
        server = servers[kind, device]
        server.waiting.append((since, next(number), op))
        if not server.called:
            server.called = True
            events.append((since, kind, (case.devices[device],), (device,)))

    def arrive(op: int, reader: int, time: float) -> None:
        events.append((time, ARRIVAL, (case.names[op], case.names[reader]), (op, reader)))

    for n in ops:
        if not case.reads[n]:
            put(DEVICE, case.place[n], n, 0.0)
    last = 0.0
    while events:
        event = min(events)
        events.remove(event)
        now, kind, name, who = event
        last = max(last, now)
        if kind == ARRIVAL:
            op, reader = who
            missing[reader].discard(op)
            if not missing[reader]:
                put(DEVICE, case.place[reader], reader, now)
            continue
        server = servers[kind, who[0]]
        if not server.waiting:
            server.called = False
            continue
        first = min(server.waiting)
        if first[0] > now:
            events.append((first[0], kind, name, who))
            continue
        server.waiting.remove(first)
        op = first[2]
        elsewhere = [m for m in readers[op] if case.place[m] != case.place[op]]
        if kind == BUS:
            there = now + case.size[op] / SPEED
            for reader in elsewhere:
                arrive(op, reader, there)
            events.append((there + AFTER_TRANSFER, BUS, name, who))
            continue
        start[op], end = now, now + case.cost[op]
        events.append((end + (AFTER_OP if case.cost[op] else 0), DEVICE, name, who))
        for reader in readers[op]:
            if case.place[reader] == case.place[op]:
                arrive(op, reader, end)
        if elsewhere:
            put(BUS, case.place[op], op, end)
    return last, [_peak(case, readers, start, d) for d in range(len(case.devices))]


def _peak(case: Case, readers: list[list[int]], start: dict[int, float], device: int) -> int:
    changes = []
    for n in range(len(case.names)):
        if case.place[n] == device:
            ends = [int(start[m]) + int(case.cost[m]) - 1 for m in readers[n]]
            changes += [(start[n], 0, case.size[n]), (max([start[n], *ends]), 1, -case.size[n])]
    now = peak = 0
    for _, _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak


# --- `machine=sequential_send` against an independent program of the published rules, and that against its figures.


def preset(devices: int) -> Machine:
    node = registry.option("machine", "sequential_send")
    node["devices"]["device"]["count"] = devices
    machine: Machine = option("machine", "sequential_send", devices=node["devices"])
    return machine


def ours(case: Case, machine: Machine) -> tuple[float, list[int], list[str]]:
    """(run time in us, peak bytes, what the independent check finds wrong) of our simulator."""
    b = GraphBuilder("case")
    results = [b.tensor((1,), num_bytes=size) for size in case.size]
    for n, reads in enumerate(case.reads):
        b.op("opaque", [results[m] for m in reads], [results[n]], flops=case.cost[n] * 1e-6, name=case.names[n])
    graph = b.build()
    given = [case.names.index(name) for name in graph.op_names]
    device = np.array(case.place, np.int16)[given][None]
    plan = Plans(graph, device, np.zeros(device.shape), np.zeros(device.shape, bool))
    trace = simulator(machine).simulate(plan)
    assert simulator(machine, "peak_memory").price(plan).cost[0] == trace.peak_bytes.max()
    assert simulator(machine).price(plan).cost[0] == trace.makespan
    return trace.makespan * 1e6, trace.peak_bytes.tolist(), check_trace(trace, plan, machine)


def random_case(seed: int) -> Case:
    """A graph of up to 40 ops on up to 12 devices: equal times, ops and results of nothing, many readers, names whose
    order as strings is not that of the graph, ops given in an order that is not topological."""
    rng = np.random.default_rng(seed)
    ops, devices = int(rng.integers(2, 41)), int(rng.integers(1, 13))
    costs = [[0, 10], [0, 0, 1, 2, 3], [0, 5, 100, 1000], [7], [0]][int(rng.integers(5))]
    sizes = [[0, 7600], [0], [0, 76_000, 190_000], [1, 1000, 12_345, 10**6], [7600]][int(rng.integers(5))]
    width = int(rng.choice([2, 5, 40]))
    reads = []
    for n in range(ops):
        count = min(n, int(rng.choice([0, 1, 1, 2, 3])))
        reads.append(sorted(rng.choice(np.arange(max(0, n - width), n), min(count, n, width), replace=False).tolist()))
    shuffle = rng.permutation(ops) if rng.random() < 0.5 else np.arange(ops)
    given = np.argsort(shuffle)  # op n of the construction is given as the shuffle[n]-th
    names = [f"op{i}" for i in (rng.permutation(ops) if rng.random() < 0.5 else range(ops))]
    return Case(
        names=[names[n] for n in given],
        cost=[int(rng.choice(costs)) for _ in given],
        size=[int(rng.choice(sizes)) for _ in given],
        reads=[[int(shuffle[m]) for m in reads[n]] for n in given],
        place=rng.integers(0, devices, ops).tolist(),
        devices=[device.name for device in preset(devices).devices],
    )


@pytest.mark.parametrize("part", range(3))
def test_run_times_and_peaks_are_those_of_the_published_rules(part: int) -> None:
    for seed in range(150 * part, 150 * part + 150):
        case = random_case(seed)
        time, peak = run(case)
        found, bytes_found, wrong = ours(case, preset(len(case.devices)))
        assert found == pytest.approx(time, rel=1e-12), seed
        assert bytes_found == peak, seed
        assert wrong == [], seed


def test_the_rules_and_the_simulator_give_the_published_figures() -> None:
    """An independent published simulator's run times and peak bytes, of all placements."""
    graph = json.loads((check_data("simulator") / "gnmt_training_layer.graph.json").read_text())
    oracle = json.loads((check_data("simulator") / "sequential_send_oracle.json").read_text())[0]
    for known in oracle["runs"]:
        case = Case(graph["names"], graph["cost_us"], graph["out_bytes"], graph["inputs"], known["placement"],
                    ["device0", "device1"])  # fmt: skip
        time, peak = run(case)
        assert time == pytest.approx(known["run_time_us"], rel=1e-12)
        found, bytes_found, wrong = ours(case, preset(2))
        assert found == pytest.approx(known["run_time_us"], rel=1e-6)
        assert peak == bytes_found == known["peak_bytes"] and wrong == []
