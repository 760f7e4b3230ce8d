"""`run_model`: learns how long kernels take, simulates whole runs by that, searches placement, order and fusion among
the simulated runs, which are no evaluations, and spends the budget on what it finds there.

`kernel_model` (after Kaufman et al., MLSys 2021) carried over to several devices: kernels take what the network says,
results travel as the machine says that its links do, everything runs by the rules of the event simulation. The search
is `joint_search` of whatever the task decides. Where prices are the simulator's, only the kernels are a guess: links
and rules are known exactly, which on hardware they are not (docs/placement.md).

One network for every task and number of devices: it is taught by kernels of fusions on one device.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from graphopt.algos.learner import answering
from graphopt.algos.modelling.kernel_model import KernelModel
from graphopt.algos.modelling.refit import KernelTuning, refitted
from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.keys import Keys
from graphopt.problems.pricing import Pricing
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.modelled_scan import plain_roofline
from graphopt.search.genetic.evolution import F32
from graphopt.search.walks.joint_search import JointSearch
from graphopt.tasks.fusion import Fusion
from graphopt.tasks.joint import Joint
from graphopt.tasks.placement import Placement
from graphopt.tasks.scheduling import Scheduling
from graphopt.utils.ranges import Count, NotNegative, Positive

USUAL = KernelLimits(64, 16, 8)  # of the fusions that teach, for tasks without caps


class RunModel(KernelModel):
    """yaml: conf/algo/run_model.yaml.

    modelled: simulated runs for each search. caution: transfers take so many times as long as the machine says.
    tuning: with steps, the weights are fitted to the graph at hand, and the simulated search is made again; they are as
    before afterwards.
    Untrained it is the same search by a plain roofline. Validation says how well times of kernels are known: 1 over the
    factor, in geometric mean, by which they are taken too long or too short.
    """

    needs_roles: ClassVar[frozenset[Role]] = frozenset()
    needs_one_of: ClassVar[frozenset[Role]] = JointSearch.needs_one_of
    knows_roles: ClassVar[frozenset[Role]] = JointSearch.knows_roles
    measure: ClassVar[str] = "kernels"
    objectives = frozenset[Objective]({"runtime", "peak_memory"})  # of a run, of which when kernels end is a part
    any_purpose: ClassVar[bool] = True

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, plans: Count, rate: NotNegative,
                 modelled: Count, caution: Positive, tuning: KernelTuning, search: JointSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed, plans=plans, rate=rate, depth=search.depth,
                         modelled=modelled)  # fmt: skip
        self.search, self.caution, self.tuning = search, caution, tuning
        if not isinstance(task, Fusion):
            limits = task.fusion_limits if isinstance(task, Placement | Scheduling | Joint) else USUAL
            self.timed = Fusion(
                name="fusion",
                machine=task.machine,
                decision="binary",
                levels=2,
                numerics=None,
                **limits._asdict(),
            )

    def made_for(self) -> dict[str, Any]:
        """Any task and number of devices."""
        return {}

    def pricing(self, graph: Graph) -> Pricing:
        if graph.hash not in self._pricings:
            self._pricings[graph.hash] = Pricing(graph, self.timed, self.cost, self._count)
        return self._pricings[graph.hash]

    def says(self, graph: Graph) -> list[float]:
        kernels = self._timed(graph, np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)]))
        with answering(graph):
            error = (self.network(kernels.columns.to(self.device))[:, 0].cpu() - kernels.logs).abs()
        return [-float((error * kernels.weight).sum() / kernels.weight.sum().clamp(min=1e-9))]

    def solve(self, problem: AssignProblem) -> None:
        keys = self._simulated(problem)
        if not problem.open:
            problem.commit_keys(keys)
            return
        known = [keys]
        if self.tuning.steps:
            trained, self.network = self.network, deepcopy(self.network)
            try:
                if refitted(self.network, problem, keys, self._sheet, self.tuning) and problem.open:
                    known.append(self._simulated(problem))
            finally:
                self.network = trained
        self.search.go_on_from(problem, *known)

    def _simulated(self, problem: AssignProblem) -> F32:
        """The best keys [K] of a search among simulated runs."""
        model = Simulator(name="model", machine=self.machine, objective=self.cost.objective, threads=1)
        simulated = _Simulated(problem.graph, problem.task, model, evals=self.modelled, seed=self.val_seed)
        return self.search.searched(simulated)

    @property
    def machine(self) -> Machine:
        """The task's machine, with what was learned of its first device as every device like it."""
        learned = super().machine.devices[0]
        known: Machine = self.task.machine
        first = _unnamed(known.devices[0])
        devices = (learned if _unnamed(device) == first else plain_roofline(device) for device in known.devices)
        return replace(
            known,
            devices=tuple(replace(a, name=b.name, capacity=b.capacity) for a, b in zip(devices, known.devices)),
            link_bandwidth=_rows(known.link_bandwidth_DD / self.caution),
            link_latency=_rows(known.link_latency_DD * self.caution),
        )


class _Simulated(AssignProblem):
    """Nobody asks how many of its decisions were different."""

    def _key_digests(self, keys: Keys) -> list[int]:
        return []


def _rows(matrix: F64) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in matrix.tolist())


def _unnamed(device: Device) -> Device:
    return replace(device, name="", capacity=0.0)
