"""What exact solvers read: the kernels of a problem, where each may run, and what they hand to each other; and the
parts that constraint models of it share, for OR-Tools CP-SAT.

The models are relaxations of the event simulator: whatever it does under some plan is a solution of the model that
costs no more. So a bound on the model is a bound on every plan of this fusion state. That needs every number to be
rounded down (`Formulation.unit`): if a run starts a kernel at s and it takes t, then floor(s / u) + floor(t / u) <=
floor((s + t) / u), so the rounded run keeps all precedences and overlaps nowhere.

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
    """What whole numbers are divided by to sum to at most `most`: their greatest common divisor where that does, so
    that nothing is lost; else what it takes."""
    common = max(1, gcd(*values)) if values else 1
    total = sum(values)
    return common if total // common <= most else -(-total // most)


Literal = Any  # a Boolean variable of the solver
Variable = Any  # an integer variable or an affine expression of one


@dataclass(frozen=True, eq=False)
class Formulation:
    """A model and what its answer means."""

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
