"""Constraint models of a workload, as the solver of `algo=cpsat` takes them. Imports OR-Tools: only on use.

Both models are relaxations of the event simulator: whatever it does under some plan is a solution of the model that
costs no more. So a bound on the model is a bound on every plan of this fusion state. That needs every number to be
rounded down (`Formulation.unit`): if a run starts a kernel at s and it takes t, then floor(s / u) + floor(t / u) <=
floor((s + t) / u), so the rounded run keeps all precedences and overlaps nowhere.

Shape legend: K kernels, D devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.errors import ConfigError
from graphopt.search.solvers.workload import Check, Workload, watched

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
