"""The makespan as a constraint model: kernels on devices, results on links.

A relaxation of the event simulator under every transfer rule (see `formulation`):

- A kernel is an interval on one of its devices, on which intervals do not overlap; it starts after all that it reads
  is made and, from another device, has travelled.
- With `lanes`, and on machines with a lane per link and a transfer per destination, transfers are intervals on lanes;
  otherwise any number of results travel at a time, which is exact where lanes are unlimited.
- Left out: that a device never waits while one of its kernels is ready, and memory, but for where weights have room.

Where all devices are alike and nothing takes time to travel, kernels share D devices without being told on which.
"""

from graphopt.core.trace import Trace
from graphopt.costs.event_arrays import GRID
from graphopt.search.solvers.workload import (
    Check,
    Formulation,
    Literal,
    Tensor,
    Variable,
    Workload,
    add_weights,
    equal_times,
    grain,
    new_model,
    placed,
    renamed,
    watched,
)

RESOLUTION = 1 << 24  # units in all the work there is, where times have no coarser common divisor


def makespan_model(work: Workload, known: Trace, *, feasible: bool, lanes: bool, check: Check) -> Formulation:
    """Minimises the makespan. `known`: the run of some plan; the search starts there, and with `feasible` no answer
    is to be worse. `check` is called throughout, and may raise to end it."""
    made = _Makespan(work, known, feasible, check)
    if made.place is None:
        made.share_devices()
    else:
        made.occupy_devices(made.place)
        made.travel(made.place, lanes and has_lanes(work))
        made.fit_weights(made.place)
    busy = [made.busy(k, 0) for k in watched(range(len(work.op)), check)]
    return Formulation(made.model, made.start, made.place, busy, made.makespan, made.unit * GRID)


def least_makespan(work: Workload) -> int:
    """No run is shorter: the longest path with every kernel where it is fastest, and all work spread evenly."""
    fastest = [min(work.time[k][d] for d in work.options[k]) for k in range(len(work.op))]
    level = fastest.copy()
    makers: list[list[int]] = [[] for _ in work.op]
    for tensor in work.handed_on():
        for reader in tensor.readers:
            makers[reader].append(tensor.maker)
    for k, before in enumerate(makers):  # in topological order
        level[k] += max((level[maker] for maker in before), default=0)
    return max(*level, -(-sum(fastest) // work.devices))


def anywhere(work: Workload) -> bool:
    """Whether all devices are alike, every kernel may run on all of them, and nothing takes time to travel."""
    d = work.devices
    pairs = [(i, j) for i in range(d) for j in range(d) if i != j]
    return (
        equal_times(work)
        and all(len(options) == d for options in work.options)
        and not any(work.transfer(tensor, i, j) for tensor in work.handed_on() for i, j in pairs)
        and min(device.capacity for device in work.machine.devices) == float("inf")
    )


def has_lanes(work: Workload) -> bool:
    """Whether the machine's transfers can be intervals on lanes of the model."""
    return work.machine.transfer.lane == "link" and not work.machine.transfer.multicast


class _Makespan:
    """The model while it is made. Constraints that every machine has are there from the start."""

    def __init__(self, work: Workload, known: Trace, feasible: bool, check: Check) -> None:
        self.work, self.model, self.check = work, new_model(), check
        rule = work.machine.transfer
        self.overhead = round(rule.op_overhead / GRID), round(rule.lane_overhead / GRID)
        at_most = round(known.makespan / GRID) if feasible else _all_in_a_row(work)
        check()
        self.unit = grain([max(row) for row in work.time] + [at_most] + _travels(work), RESOLUTION)
        check()
        self.horizon = at_most // self.unit
        self.makespan = self.model.new_int_var(least_makespan(work) // self.unit, self.horizon, "makespan")
        self.start = [self.model.new_int_var(0, self.horizon, "") for _ in watched(work.op, check)]
        self.place = None if anywhere(work) else placed(self.model, work, check)
        self.end = [self._end(k) for k in watched(range(len(self.start)), check)]
        for tensor in work.handed_on():
            self.check()
            for reader in tensor.readers:
                self.model.add(self.start[reader] >= self.end[tensor.maker])
        self.model.minimize(self.makespan)
        self._hint(known, feasible)

    def busy(self, k: int, d: int) -> int:
        """How long a kernel keeps its device."""
        time = self.work.time[k][d]
        return (time + self.overhead[0] * (time > 0)) // self.unit

    def share_devices(self) -> None:
        """Any D kernels at a time."""
        durations = [self.busy(k, 0) for k in range(len(self.start))]
        both = watched(zip(self.start, durations), self.check)
        spans = [self.model.new_fixed_size_interval_var(s, n, "") for s, n in both]
        self.model.add_cumulative(spans, [1] * len(spans), self.work.devices)
        self.model.add(self.work.devices * self.makespan >= sum(durations))
        for start, duration in watched(zip(self.start, durations), self.check):
            self.model.add(self.makespan >= start + duration)

    def occupy_devices(self, place: list[dict[int, Literal]]) -> None:
        """One kernel at a time on each device; its whole load fits into the makespan."""
        for d in range(self.work.devices):
            self.check()
            here = [(k, place[k][d], self.busy(k, d)) for k in range(len(place)) if d in place[k]]
            spans = [self.model.new_optional_fixed_size_interval_var(self.start[k], n, x, "")
                     for k, x, n in watched(here, self.check)]  # fmt: skip
            self.model.add_no_overlap(spans)
            self.model.add(self.makespan >= sum(x * n for _, x, n in here))
            for k, x, n in here:
                self.check()
                self.model.add(self.makespan >= self.start[k] + n).only_enforce_if(x)

    def travel(self, place: list[dict[int, Literal]], lanes: bool) -> None:
        """Results reach other devices later than their own."""
        lane: dict[tuple[int, int], list[Variable]] = {}
        for tensor in self.work.handed_on():
            self.check()
            sources = place[tensor.maker]
            for target in range(self.work.devices):
                readers = [k for k in tensor.readers if target in place[k]]
                delay = {d: self.work.transfer(tensor, d, target) // self.unit for d in sources if d != target}
                if not readers or not any(delay.values()):
                    continue
                if lanes:
                    self._on_lanes(tensor, target, readers, delay, place, lane)
                else:
                    self._after_delay(tensor, target, readers, delay, place)
        for spans in lane.values():
            self.model.add_no_overlap(spans)

    def fit_weights(self, place: list[dict[int, Literal]]) -> None:
        """No device holds more weights than it has room for."""
        capacities = [device.capacity for device in self.work.machine.devices]
        if min(capacities) == float("inf"):
            return
        unit = grain([t.size for t in self.work.tensors if t.weight], 1 << 40)
        for capacity, (held, most) in zip(capacities, add_weights(self.model, self.work, place, unit, self.check)):
            if most * unit > capacity:
                self.model.add(held <= int(capacity // unit))

    def _end(self, k: int) -> Variable:
        """When the results of a kernel are there."""
        times = [t // self.unit for t in self.work.time[k]]
        if self.place is None or len({times[d] for d in self.place[k]}) == 1:
            return self.start[k] + times[self.work.options[k][0]]
        end = self.model.new_int_var(0, self.horizon, "")
        self.model.add(end == self.start[k] + sum(x * times[d] for d, x in self.place[k].items()))
        return end

    def _after_delay(self, tensor: Tensor, target: int, readers: list[int], delay: dict[int, int],
                     place: list[dict[int, Literal]]) -> None:  # fmt: skip
        """Without lanes: the delay of the link, or of the fastest link where the maker is merely elsewhere."""
        made, makers = self.end[tensor.maker], place[tensor.maker]
        least = min(delay.values())
        elsewhere = [makers[target].negated()] if target in makers else []
        for reader in readers:
            here = place[reader][target]
            self.model.add(self.start[reader] >= made + least).only_enforce_if([here, *elsewhere])
            for source in (d for d in delay if delay[d] > least):
                self.model.add(self.start[reader] >= made + delay[source]).only_enforce_if([here, makers[source]])

    def _on_lanes(self, tensor: Tensor, target: int, readers: list[int], delay: dict[int, int],
                  place: list[dict[int, Literal]], lane: dict[tuple[int, int], list[Variable]]) -> None:  # fmt: skip
        """One transfer to the target, if any reader is there, on the lane from where the maker is."""
        sent = self.model.new_int_var(0, self.horizon, "")
        if (tensor.id, target) in self.sent:
            self.model.add_hint(sent, self.sent[tensor.id, target])
        self.model.add(sent >= self.end[tensor.maker])
        for source, units in delay.items():
            travels, there = self.model.new_bool_var(""), place[tensor.maker][source]
            self.model.add_implication(travels, there)
            for reader in readers:
                here = place[reader][target]
                self.model.add_bool_or([travels, there.negated(), here.negated()])
                self.model.add(self.start[reader] >= sent + units).only_enforce_if([travels, here])
            busy = (self.work.transfer(tensor, source, target) + self.overhead[1]) // self.unit
            span = self.model.new_optional_fixed_size_interval_var(sent, busy, travels, "")
            lane.setdefault((source, target), []).append(span)

    def _hint(self, known: Trace, feasible: bool) -> None:
        """The known run, rounded down: a solution of the model."""
        devices = known.kernel_device.tolist()
        name = renamed(self.work, devices)
        for k, start in enumerate(watched(self.start, self.check)):
            self.model.add_hint(start, round(float(known.kernel_start[k]) / GRID) // self.unit)
            if self.place is not None and len(self.place[k]) > 1:
                for d, literal in self.place[k].items():
                    self.model.add_hint(literal, d == name[devices[k]])
        if feasible:
            self.model.add_hint(self.makespan, self.horizon)
        times = [round(t / GRID) // self.unit for t in known.transfer_start.tolist()]
        arrivals = zip(known.transfer_tensor.tolist(), known.transfer_target.tolist())
        self.sent = {(tensor, name.get(target, target)): t for (tensor, target), t in zip(arrivals, times)}


def _travels(work: Workload) -> list[int]:
    """Every time that some result may take."""
    d = work.devices
    return sorted({work.transfer(t, i, j) for t in work.handed_on() for i in range(d) for j in range(d) if i != j})


def _all_in_a_row(work: Workload) -> int:
    """As long as everything takes that may happen, one after the other: no run is longer, since something always
    happens until the end."""
    rule = work.machine.transfer
    overheads = round(rule.op_overhead / GRID), round(rule.lane_overhead / GRID)
    d = range(work.devices)
    sent = [max(work.transfer(t, i, j) for i in d for j in d) + overheads[1] for t in work.handed_on()]
    return sum(max(row) + overheads[0] for row in work.time) + sum(sent) * (work.devices - 1)
