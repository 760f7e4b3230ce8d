"""The peak of memory as a constraint model over the order of events.

Time is counted in steps, as the simulator does: at each, first something ends and then something starts. How many a
kernel or a transfer takes is left to the solver, at least one. So every run is a solution (see `formulation`), and on
one device, where the order is all there is, every solution is a run.

- A result is on its device from its kernel's first step until its last reader there and its last transfer have ended;
  a copy from the first step of its transfer until its last reader there has ended. Graph inputs are there from step 0
  wherever they are read, weights always; graph outputs stay.
- Left out: how long things take, that a lane carries one transfer at a time, that idle devices start what is ready,
  and that one transfer may serve several devices.
"""

from dataclasses import dataclass

import numpy as np

from graphopt.core.trace import Trace
from graphopt.search.solvers.workload import (
    Check,
    Formulation,
    Literal,
    Tensor,
    Variable,
    Workload,
    add_weights,
    grain,
    new_model,
    placed,
    renamed,
    watched,
)

RESOLUTION = 1 << 40  # units in all the bytes there are, where sizes have no coarser common divisor


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
    """Whether all kernels run on the same device whatever is decided."""
    return len(set(work.options)) == 1 and len(work.options[0]) == 1


@dataclass(frozen=True, slots=True)
class _Copy:
    """The transfer of a result to a device and what it leaves there."""

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
        self.unit = grain([*sizes, most], RESOLUTION)
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
        """One kernel at a time on each device, after what it reads."""
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
                some = self._any([self.place[k][d] for k in readers])
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
        """What is on a device at any step, weights included, is at most the peak."""
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

    def _any(self, literals: list[Literal]) -> Literal:
        some = self.model.new_bool_var("")
        self.model.add_max_equality(some, literals)
        return some

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
