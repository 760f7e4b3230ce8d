"""`modelled_scan`: motif scan and compound moves by a model of kernels that is no evaluation, then evaluations of what
the model expects most of. What a compiler does that has a cost model of its own, and then measures; the unlearned peer
of `kernel_model`."""

from dataclasses import replace
from typing import ClassVar, Literal

from graphopt.core.head import Role
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer, solve
from graphopt.search.fusion.compound_moves import CompoundMoves
from graphopt.search.fusion.modelled_walk import walk_by_model
from graphopt.search.fusion.motif_scan import MotifScan, scan_motifs
from graphopt.search.fusion.xla_priority import xla_models
from graphopt.utils.ranges import Count, Whole

LAUNCH = 1e-6  # s, what a kernel's start takes on machines that say nothing


class ModelledScan(Optimizer):
    """model: `xla_gpu`, XLA's GPU cost model of the machine's first device, or `roofline`, launch + max(arithmetic,
    memory) by its peaks and bandwidth. depth: of motif scan; modelled: plans that the model prices. On a machine that
    is priced by XLA's model (`a6000_xla`) that one is no model but the price itself."""

    needs_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})
    knows_roles: ClassVar[frozenset[Role]] = frozenset({Role.FUSION})  # other devices have no model

    def __init__(self, *, name: str, model: Literal["xla_gpu", "roofline"], depth: Whole, modelled: Count) -> None:
        self.name, self.model, self.depth, self.modelled = name, model, depth, modelled

    def solve(self, problem: AssignProblem) -> None:
        machine = problem.task.machine
        device = plain_roofline(machine.devices[0])
        if self.model == "xla_gpu":
            if not xla_models(device):
                raise ConfigError(f"algo={self.name} needs clock, cores and fpus_per_core of device {device.name!r}; "
                                  "choose algo.model=roofline, or a machine that has them, e.g. gpu2")  # fmt: skip
            device = replace(device, fusion_model="xla_gpu")
        search_by_model(problem, modelled_by(machine, device), depth=self.depth, modelled=self.modelled)


def plain_roofline(device: Device) -> Device:
    """A device by its data sheet: launch + max(arithmetic, memory), whatever else its own model corrects."""
    return Device(
        name=device.name, vector_flops=device.vector_flops, contraction_flops=device.contraction_flops,
        bandwidth=device.bandwidth, launch=device.launch or LAUNCH, spill_inputs=device.spill_inputs,
        clock=device.clock, cores=device.cores, fpus_per_core=device.fpus_per_core, l2_bytes=device.l2_bytes,
    )  # fmt: skip


def modelled_by(machine: Machine, device: Device) -> Machine:
    """A machine with another first device."""
    return replace(machine, devices=(device, *machine.devices[1:]))


def search_by_model(problem: AssignProblem, machine: Machine, *, depth: int, modelled: int) -> None:
    """Motif scan with so many prices of kernels as a simulator of `machine` has them, then as many compound moves, none
    of them billed; what they end with is the answer, or with a budget the start of a walk with evaluations."""
    model = Simulator(name="model", machine=machine, objective="runtime", threads=1)
    found, _ = solve(MotifScan(name="motif_scan", depth=depth), problem.graph, problem.task, model, evals=modelled)
    moves = CompoundMoves.around(problem, model, problem.task.canonical(problem.graph, found.best))
    answer = found.best if moves is None else moves.descend(modelled)
    if not problem.open:
        problem.commit(answer)
        return
    problem.cost(answer[None])
    if moves is None:
        scan_motifs(problem, depth)
    else:
        walk_by_model(problem, moves, depth)
