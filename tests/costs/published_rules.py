"""The rules of the published placement simulator that `machine=sequential_send` follows, from their description: pure
Python, one event at a time, names as strings, times as floating-point microseconds. Slow and independent.

- Events are handled by time; at one time by kind (an arrival, a bus, a device), then by name: an arrival by the names
  of producer and reader, a bus or a device by the name of the device.
- An arrival takes one dependency away; the last one puts the reader into its device's queue. At time 0 the ops without
  inputs are there in the order in which the graph was given.
- Queues are first in, first out by the time from which an item may start, then by when it was put there.
- A device that is free takes an op; it is free again at its end, 5.7 us later where the op costs something. A result
  that other devices read is put into the device's bus queue when its op starts, for the time at which the op ends.
- A bus carries one result at a time, for bytes / 7600 us, to all other devices at once, and is free 25 us after that.
- The run time is that of the last event. The bytes of an op are on its device from its start to int(start) + int(cost)
  - 1 of the reader for which that is latest, at least for an instant; of what happens at one time allocations come
  first.
"""

from dataclasses import dataclass, field

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
