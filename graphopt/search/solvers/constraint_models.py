"""The workload of exact solvers: the kernels of a problem, their allowed devices, and their dependencies; and the
makespan and the peak of memory as constraint models of it, for OR-Tools CP-SAT.

The models are relaxations of the event simulator: every run of a plan there is a solution of the model that costs no
more. So a bound on the model is a bound on every plan of this fusion state. That needs every number to be rounded down
(`Formulation.unit`): if a run starts a kernel at s and it takes t, then floor(s / u) + floor(t / u) <= floor((s + t) /
u), so the rounded run keeps all precedences and overlaps nowhere.

The makespan: kernels on devices, results on links.

- A kernel is an interval on one of its devices, on which intervals do not overlap; it starts after all that it reads
  is made and, from another device, has travelled.
- With `lanes`, and on machines with a lane per link and a transfer per destination, transfers are intervals on lanes;
  otherwise any number of results travel at a time, which is exact where lanes are unlimited.
- Left out: that a device never waits while one of its kernels is ready, and memory, but for where weights have room.

Where all devices are alike and nothing takes time to travel, kernels share D devices without being told on which.

The peak of memory, over the order of events. Time is counted in steps, as the simulator does: at each, first something
ends and then something starts. How many a kernel or a transfer takes is left to the solver, at least one. So every run
is a solution, and on one device, where the order is all there is, every solution is a run.

- A result is on its device from its kernel's first step until its last reader there and its last transfer have ended;
  a copy from the first step of its transfer until its last reader there has ended. Graph inputs are there from step 0
  wherever they are read, weights always; graph outputs stay.
- Left out: how long things take, that a lane carries one transfer at a time, that idle devices start ready kernels, and
  that one transfer may serve several devices.

Shape legend: N ops, K kernels, D devices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any, NamedTuple, TypeVar

import numpy as np

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, I64
from graphopt.core.machine import Machine
from graphopt.core.plan import Role
from graphopt.core.trace import Trace
from graphopt.costs.event_arrays import GRID
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.problems.assignment import AssignProblem

Check = Callable[[], None]
"""Called throughout long work; may raise to end it."""
T = TypeVar("T")
EVERY = 256  # items between two looks at the clock


def watched(items: Iterable[T], check: Check) -> Iterator[T]:
    """The items, with a check before every few hundred of them."""
    for i, item in enumerate(items):
        if not i % EVERY:
            check()
        yield item


class Tensor(NamedTuple):
    """A tensor that kernels make or read; views are looked through."""

    id: int  # in the graph
    size: int  # bytes
    maker: int  # kernel, or -1: a graph input or weight
    readers: tuple[int, ...]  # kernels, ascending
    weight: bool
    keep: bool  # a graph output: stays where it was made


@dataclass(frozen=True, eq=False)
class Workload:
    """The K kernels of the initial decision, in topological order. Times are whole numbers of `GRID` seconds."""

    machine: Machine
    op: I64  # [K] the op that each kernel computes
    ops: int  # N
    time: tuple[tuple[int, ...], ...]  # [K][D]
    options: tuple[tuple[int, ...], ...]  # [K] devices that the task lets each kernel run on
    tensors: tuple[Tensor, ...]
    latency: F64  # [D, D] seconds
    bandwidth: F64  # [D, D] bytes per second

    @property
    def devices(self) -> int:
        return self.machine.num_devices

    def transfer(self, tensor: Tensor, source: int, target: int) -> int:
        """How long a result travels; 0 to where it is."""
        if source == target:
            return 0
        seconds = self.latency[source, target] + tensor.size / self.bandwidth[source, target]
        return int(np.floor(seconds / GRID + 0.5))

    def handed_on(self) -> list[Tensor]:
        """Results that other kernels read."""
        return [tensor for tensor in self.tensors if tensor.maker >= 0 and tensor.readers]


def workload(problem: AssignProblem, check: Check) -> Workload:
    """The kernels of the initial decision's fusion state, on fixed devices where the task does not decide them."""
    check()
    graph, machine = problem.graph, problem.task.machine
    plan = problem.task.realise(graph, problem.initial[None])
    kernels = kernel_graph(graph, plan.inline[0], machine.devices)
    op = np.flatnonzero(kernels.is_kernel)
    number = np.full(graph.num_ops + 1, -1)
    number[op] = np.arange(len(op))
    check()
    reader = np.repeat(number[:-1], np.diff(kernels.in_ptr))  # ascending for every tensor, as ops are
    order = np.argsort(kernels.in_tensor, kind="stable")
    ends = np.searchsorted(kernels.in_tensor[order], np.arange(graph.num_tensors), side="right").tolist()
    read_by = reader[order].tolist()
    columns = (graph.tensor_bytes, number[graph.producer], graph.is_weight, kernels.keep)
    rows = zip(*(column.tolist() for column in columns), [0, *ends], ends)
    tensors = tuple(
        Tensor(t, int(size), maker, tuple(read_by[begin:end]), bool(weight), bool(keep))
        for t, (size, maker, weight, keep, begin, end) in enumerate(watched(rows, check))
        if maker >= 0 or begin < end
    )
    every = tuple(range(machine.num_devices))
    free = problem.task.decides(Role.DEVICE)
    options = tuple(every if free else (d,) for d in plan.device[0, op].tolist())
    time = tuple(tuple(round(seconds / GRID) for seconds in row) for row in watched(kernels.time[op].tolist(), check))
    links = machine.link_latency_DD, machine.link_bandwidth_DD
    return Workload(machine, op, graph.num_ops, time, options, tensors, *links)


def grain(values: Sequence[int], most: int) -> int:
    """A divisor of whole numbers, after which they sum to at most `most`: their greatest common divisor where that is
    enough, so that nothing is lost; else as large as needed."""
    common = max(1, gcd(*values)) if values else 1
    total = sum(values)
    return common if total // common <= most else -(-total // most)


Literal = Any  # a Boolean variable of the solver
Variable = Any  # an integer variable or an affine expression of one


@dataclass(frozen=True, eq=False)
class Formulation:
    """A model and the meaning of its answer."""

    model: Any
    start: list[Variable]  # [K] the earlier the more urgent
    place: list[dict[int, Literal]] | None  # [K] device -> whether it runs there; None: any idle device will do
    busy: list[int]  # [K] how long a kernel keeps its device, in units of `start`, where any device will do
    objective: Variable
    unit: float  # seconds or bytes per unit of the objective; numbers of the model are rounded down to it


def start_early(formulation: Formulation, best: int) -> None:
    """Asks for a schedule that is as good as the best, and starts everything as early as it can."""
    model = formulation.model
    model.clear_hints()
    model.clear_objective()
    model.add(formulation.objective <= best)
    model.minimize(sum(formulation.start))


def new_model() -> Any:
    """An empty model. Raises ConfigError without OR-Tools."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise ConfigError("exact solvers need OR-Tools: pip install -e .[solvers]") from error
    return cp_model.CpModel()


def placed(model: Any, work: Workload, check: Check) -> list[dict[int, Literal]]:
    """Whether each kernel runs on each device that it may run on. Interchangeable devices are numbered by the first
    kernel that may be on them: kernel k is on one of the first k + 1."""
    alike, place = interchangeable(work), []
    for k, options in enumerate(watched(work.options, check)):
        first = options[: k + 1] if alike and len(options) > 1 else options
        literals = {d: model.new_bool_var("") for d in first} if len(first) > 1 else {first[0]: model.new_constant(1)}
        if len(first) > 1:
            model.add_exactly_one(literals.values())
        place.append(literals)
    return place


def interchangeable(work: Workload) -> bool:
    """Whether a permutation of the devices changes nothing."""
    d = work.devices
    links = {(float(work.latency[i, j]), float(work.bandwidth[i, j])) for i in range(d) for j in range(d) if i != j}
    same_room = len({device.capacity for device in work.machine.devices}) == 1
    return d > 1 and len(links) == 1 and same_room and all(len(o) == d for o in work.options) and equal_times(work)


def equal_times(work: Workload) -> bool:
    return all(len(set(row)) == 1 for row in work.time)


def renamed(work: Workload, device: list[int]) -> Mapping[int, int]:
    """Device -> its number in `placed`: by first use where devices are interchangeable, else its own."""
    if not interchangeable(work):
        return {d: d for d in range(work.devices)}
    used = list(dict.fromkeys(device))
    return {d: i for i, d in enumerate(used + [d for d in range(work.devices) if d not in used])}


def add_weights(model: Any, work: Workload, place: list[dict[int, Literal]], unit: int,
                check: Check) -> list[tuple[Variable, int]]:  # fmt: skip
    """[D] (weights on a device, the most they can be), in `unit` bytes: a weight is wherever one of its readers is."""
    sums: list[tuple[Variable, int]] = []
    for d in range(work.devices):
        parts = []
        for tensor in watched((t for t in work.tensors if t.weight), check):
            readers = [place[k][d] for k in tensor.readers if d in place[k]]
            if readers and tensor.size >= unit:
                here = model.new_bool_var("")
                model.add_max_equality(here, readers)
                parts.append((here, tensor.size // unit))
        sums.append((sum(here * size for here, size in parts), sum(size for _, size in parts)))
    return sums


TIME_RESOLUTION = 1 << 24  # units in all the work there is, where times have no coarser common divisor


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
        self.unit = grain([max(row) for row in work.time] + [at_most] + _travels(work), TIME_RESOLUTION)
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


BYTE_RESOLUTION = 1 << 40  # units in all the bytes there are, where sizes have no coarser common divisor


def memory_model(work: Workload, known: Trace, *, feasible: bool, check: Check) -> Formulation:
    """Minimises the bytes on the fullest device. `known`: the run of some plan; the search starts there, and with
    `feasible` no answer is to be worse. `check` is called throughout, and may raise to end it."""
    made = _Memory(work, known, feasible, check)
    made.take_turns()
    for tensor in (t for t in work.tensors if not t.weight and t.size >= made.unit):
        check()
        made.hold(tensor)
    check()
    made.fill_devices()
    once = [1] * len(made.start)
    return Formulation(made.model, made.start, made.place, once, made.peak, made.unit)


def least_memory(work: Workload) -> int:
    """Bytes that no plan goes below: the largest kernel with all that it reads and makes; all weights spread evenly;
    on one device all weights and the largest kernel."""
    weights = sum(t.size for t in work.tensors if t.weight)
    alone = one_device(work)
    touched = [0] * len(work.op)
    for t in work.tensors:
        if not (alone and t.weight):
            for k in {t.maker, *t.readers} - {-1}:
                touched[k] += t.size
    return weights + max(touched) if alone else max(max(touched), -(-weights // work.devices))


def one_device(work: Workload) -> bool:
    """Whether all kernels run on the same device under every plan."""
    return len(set(work.options)) == 1 and len(work.options[0]) == 1


@dataclass(frozen=True, slots=True)
class _Copy:
    """The transfer of a result to a device, and the copy there."""

    there: Literal  # whether it takes place
    sent: Variable  # step at which it starts
    arrived: Variable


class _Memory:
    """The model while it is made."""

    def __init__(self, work: Workload, known: Trace, feasible: bool, check: Check) -> None:
        self.work, self.model, self.alone, self.check = work, new_model(), one_device(work), check
        sizes = [t.size for t in work.tensors]
        at_end = work.machine.transfer.free == "end"  # else the simulator counts less than this model
        least, feasible = least_memory(work) if at_end else 0, feasible and at_end
        most = int(known.peak_bytes.max()) if feasible else sum(sizes)
        self.unit = grain([*sizes, most], BYTE_RESOLUTION)
        self.peak = self.model.new_int_var(least // self.unit, most // self.unit, "peak")
        self.model.minimize(self.peak)
        copies = 0 if self.alone else sum(min(work.devices - 1, len(t.readers)) for t in work.handed_on())
        self.steps = len(work.op) + copies  # each ends something
        self.place = placed(self.model, work, check)
        self.start = [self._step() for _ in watched(work.op, check)]
        self.end = [start + 1 if self.alone else self._step() for start in watched(self.start, check)]
        self.spans: list[list[Variable]] = [[] for _ in range(work.devices)]
        self.demands: list[list[Variable]] = [[] for _ in range(work.devices)]
        self._hint(known, feasible)

    def take_turns(self) -> None:
        """One kernel at a time on each device, after its inputs."""
        turns: list[list[Variable]] = [[] for _ in range(self.work.devices)]
        for k, start in enumerate(watched(self.start, self.check)):
            for d, here in self.place[k].items():
                turns[d].append(self._span(start, self.end[k], here))
        for spans in turns:
            self.model.add_no_overlap(spans)
        for tensor in watched(self.work.handed_on(), self.check):
            for reader in tensor.readers:
                self.model.add(self.start[reader] >= self.end[tensor.maker])

    def hold(self, tensor: Tensor) -> None:
        """Where a tensor is, and how long."""
        copies = self._copies(tensor)
        for d in range(self.work.devices):
            readers = [k for k in tensor.readers if d in self.place[k]]
            if tensor.maker < 0 and readers:
                some = self.model.new_bool_var("")
                self.model.add_max_equality(some, [self.place[k][d] for k in readers])
                self._occupy(d, tensor, some, 0, self._last(tensor, d, readers))
            elif tensor.maker >= 0 and d in self.place[tensor.maker]:
                here, last = self.place[tensor.maker][d], self._last(tensor, d, readers)
                self.model.add(last >= self.end[tensor.maker]).only_enforce_if(here)
                for target in copies.keys() - {d}:
                    self.model.add(last >= copies[target].arrived).only_enforce_if([here, copies[target].there])
                self._occupy(d, tensor, here, self.start[tensor.maker], last)
        for target, copy in copies.items():
            readers = [k for k in tensor.readers if target in self.place[k]]
            last = self._step()
            for k in readers:
                self.model.add(last >= self.end[k]).only_enforce_if(self.place[k][target])
            self._occupy(target, tensor, copy.there, copy.sent, last)

    def fill_devices(self) -> None:
        """The bytes on a device at any step, weights included, are at most the peak."""
        for d, (held, most) in enumerate(add_weights(self.model, self.work, self.place, self.unit, self.check)):
            weights = self.model.new_int_var(0, most, "")
            self.model.add(weights == held)
            self.model.add(weights <= self.peak)
            if self.spans[d]:
                always = self.model.new_fixed_size_interval_var(0, self.steps, "")
                self.model.add_cumulative([*self.spans[d], always], [*self.demands[d], weights], self.peak)

    def _copies(self, tensor: Tensor) -> dict[int, _Copy]:
        """Device -> the transfer of a result to it, where its maker may be elsewhere and a reader there."""
        found: dict[int, _Copy] = {}
        makers = self.place[tensor.maker] if tensor.maker >= 0 else {}
        for target in range(self.work.devices):
            readers = [k for k in tensor.readers if target in self.place[k]]
            if not readers or not makers.keys() - {target}:
                continue
            there, sent, arrived = self.model.new_bool_var(""), self._step(), self._step()
            elsewhere = [makers[target]] if target in makers else []
            self.model.add(sent >= self.end[tensor.maker])
            self.model.add(arrived >= sent + 1)
            for k in readers:
                here = self.place[k][target]
                self.model.add_bool_or([there, here.negated(), *elsewhere])
                self.model.add(self.start[k] >= arrived).only_enforce_if([there, here])
            for literal in elsewhere:
                self.model.add_implication(there, literal.negated())
            if (tensor.id, target) in self.seen:
                self.model.add_hint(sent, self.seen[tensor.id, target][0])
                self.model.add_hint(arrived, self.seen[tensor.id, target][1])
            self.model.add_hint(there, (tensor.id, target) in self.seen)
            found[target] = _Copy(there, sent, arrived)
        return found

    def _last(self, tensor: Tensor, d: int, readers: list[int]) -> Variable:
        """The step at which the readers on a device are done, or the last of all."""
        if tensor.keep:
            return self.steps
        if self.alone:
            ends = [self.end[k] for k in tensor.readers] or [self.end[tensor.maker]]
            if len(ends) == 1:
                return ends[0]
        last = self._step()
        for k in readers:
            self.model.add(last >= self.end[k]).only_enforce_if(self.place[k][d])
        return last

    def _occupy(self, d: int, tensor: Tensor, here: Literal, start: Variable, end: Variable) -> None:
        self.spans[d].append(self._span(start, end, here))
        self.demands[d].append(tensor.size // self.unit)

    def _span(self, start: Variable, end: Variable, here: Literal) -> Variable:
        size = self.model.new_int_var(0, self.steps, "")
        return self.model.new_optional_interval_var(start, size, end, here, "")

    def _step(self) -> Variable:
        return self.model.new_int_var(0, self.steps, "")

    def _hint(self, known: Trace, feasible: bool) -> None:
        """The known run, counting only the steps at which a kernel or a transfer ends."""
        ends = np.unique(np.concatenate([known.kernel_step[:, 1], known.transfer_step[:, 1]]))
        devices = known.kernel_device.tolist()
        name = renamed(self.work, devices)
        for k, (first, last) in enumerate(_among(ends, known.kernel_step)):
            self.model.add_hint(self.start[k], first)
            if not self.alone:
                self.model.add_hint(self.end[k], last)
            for d, literal in self.place[k].items() if len(self.place[k]) > 1 else ():
                self.model.add_hint(literal, d == name[devices[k]])
        if feasible:
            self.model.add_hint(self.peak, int(known.peak_bytes.max()) // self.unit)
        transfers = zip(known.transfer_tensor.tolist(), known.transfer_target.tolist())
        steps = _among(ends, known.transfer_step)
        self.seen = {(t, name.get(d, d)): step for (t, d), step in zip(transfers, steps)}


def _among(ends: np.ndarray, steps: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of items, counted in the distinct steps `ends` at which items end."""
    first, last = np.searchsorted(ends, steps[:, 0], "right"), np.searchsorted(ends, steps[:, 1]) + 1
    return list(zip(first.tolist(), last.tolist()))
