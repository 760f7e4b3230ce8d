"""Learned performance models: of kernels (`kernel_model`), and of whole runs on several devices (`run_model`).

After Kaufman, Phothilimthana, Zhou, Mendis, Roy, Sabne, Burrows, "A Learned Performance Model for Tensor Processing
Units" (MLSys 2021). It has kernels, a loss on their times, and an autotuner of fusion. That asks the model first, which
costs no evaluation, and spends the budget on the model's best.

The paper                                  | Here
a graph network over the ops of a kernel   | sums over its ops, two hidden layers (`learned_kernel`)
predicts the time                          | predicts a correction of a plain roofline
simulated annealing on the model           | motif scan on the model
kernels of programs and their fusions      | of the default, rules and random changes of these, timed by the cost model
kernels on one device                      | `run_model`: also runs on several devices, by the event simulation
the model stays as it was trained          | its last layer is fitted to the prices of the budget (`LastLayer`)

Links and rules are known exactly to `run_model` where prices are the simulator's, which on hardware they are not
(docs/papers.md). One network serves every task and number of devices.

Shape legend: N ops, R kernels, F columns, K keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, Graph
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Decision, Role
from graphopt.core.utils.marks import Count, NotNegative, Positive, Whole
from graphopt.core.utils.terminal import Bar
from graphopt.costs.one_kernel.kernel_time import kernel_table
from graphopt.costs.one_kernel.learned_kernel import COLUMNS, HIDDEN, SCALE, as_numbers, from_numbers
from graphopt.costs.simulator import Simulator
from graphopt.learn.learner import Learner, inference
from graphopt.problems.assignment import AssignProblem, AssignTask, Pricing
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.keys import Keys
from graphopt.problems.tasks.fusion import Fusion
from graphopt.problems.tasks.placement import DeviceTask
from graphopt.search.fusion.modelled_scan import modelled_by, plain_roofline, search_by_model
from graphopt.search.fusion.xla_priority import xla_choice, xla_models
from graphopt.search.walks.joint_search import JointSearch

USUAL = KernelLimits(64, 16, 8)  # of the fusions that teach, for tasks without caps


@dataclass(frozen=True)
class Kernels:
    """Of one graph's plans. columns: [R, F]. logs: [R] logarithm of the time over the plain roofline's. weight: [R]
    share of its plan's time."""

    columns: Tensor
    logs: Tensor
    weight: Tensor


class KernelModel(Learner):
    """yaml: conf/algo/kernel_model.yaml.

    fit: whether the last layer learns from the prices of a budget as well. Untrained, all that it knows is a plain
    roofline and these prices.
    """

    needs_roles = frozenset({Role.FUSION})
    knows_roles = frozenset({Role.FUSION})
    applies_train_mask = True
    objectives = frozenset[Objective]({"runtime"})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, plans: Count, rate: NotNegative,
                 depth: Whole, modelled: Count, fit: bool) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.plans, self.rate, self.depth, self.modelled, self.fit = plans, rate, depth, modelled, fit
        self.timed = task  # whose plans are timed
        correction = nn.Linear(HIDDEN, 1)
        nn.init.zeros_(correction.weight)  # a plain roofline before training
        nn.init.zeros_(correction.bias)
        hidden = [nn.Linear(len(COLUMNS), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()]
        self.network = nn.Sequential(*hidden, correction)
        self._kernels: dict[str, Kernels] = {}

    def configure_optimizers(self) -> Any:
        steps = max(2, int(self.trainer.estimated_stepping_batches))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.rate, total_steps=steps + 1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # ---- learning

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """Times the kernels of some plans of every training graph: an evaluation each."""
        before = self.train_evals
        with Bar("time kernels", len(graphs)) as bar:
            for graph in graphs:
                self._kernels[graph.hash] = self._timed(graph)
                bar.step(graph.name)
        if self.train_steps:
            self.train_evals = before

    def _timed(self, graph: Graph) -> Kernels:
        """Kernels of some plans, each once."""
        draw = np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)])
        table = np.unique(np.concatenate([self._kernels_of(graph, one) for one in self._drawn(graph, draw)]), axis=0)
        columns, logs, weight = np.split(table.astype(np.float32), [len(COLUMNS), len(COLUMNS) + 1], 1)
        return Kernels(torch.from_numpy(columns), torch.from_numpy(logs[:, 0]), torch.from_numpy(weight[:, 0]))

    def _drawn(self, graph: Graph, draw: np.random.Generator) -> list[Decision]:
        """The default, all inlined, XLA's choice if it has one; then these with some of the ops decided otherwise."""
        free = self.timed.mask(graph)[:, 0]
        starts = [self.timed.initial(graph)[:, 0] > 0, free]
        if xla_models(self._sheet):
            starts.append(xla_choice(graph, self.timed)[0])
        drawn = []
        for i in range(self.plans):
            flipped = draw.random(graph.num_ops) < (draw.choice((0.05, 0.2, 0.5)) if i >= len(starts) else 0.0)
            decision = self.timed.initial(graph)
            decision[free, 0] = (starts[i % len(starts)] ^ flipped)[free]
            drawn.append(self.timed.canonical(graph, decision))
        return drawn

    def _kernels_of(self, graph: Graph, decision: Decision) -> F64:
        """[R, F + 2] columns, logarithm of the time over the roofline's, share of the plan's time."""
        plan = self.timed.realise(graph, decision[None])
        found = self.pricing(graph).ends(plan)
        if found is None:
            raise ConfigError("algo=kernel_model learns from times of kernels; choose cost=simulator")
        root, x = kernel_table(graph, plan.inline[0], self._sheet)
        seconds = durations(found[1])[root]
        logs = np.log(seconds / self._sheet.launch) - x[:, 0] / SCALE
        return np.concatenate([x, logs[:, None], (seconds / seconds.sum())[:, None]], 1)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        parts = [self._kernels[graph.hash] for graph in graphs]
        columns = torch.cat([part.columns for part in parts]).to(self.device)
        logs = torch.cat([part.logs for part in parts]).to(self.device)
        weight = torch.cat([part.weight + 0.1 / max(1, len(part.weight)) for part in parts]).to(self.device)
        error = (self.network(columns)[:, 0] - logs) ** 2
        loss: Tensor = (error * weight).sum() / weight.sum().clamp(min=1e-9)
        self.log("losses/kernels", loss.detach())
        return loss

    # ---- answering

    def solve(self, problem: AssignProblem) -> None:
        fitted = LastLayer(problem, self.machine) if self.fit else None
        search_by_model(problem, self.machine, depth=self.depth, modelled=self.modelled, fitted=fitted)

    @property
    def machine(self) -> Machine:
        """The task's machine, with the learned model as its first device."""
        return modelled_by(self.task.machine, self._learned)

    @property
    def _learned(self) -> Device:
        weights = [part.detach().cpu().numpy() for part in self.network.parameters()]
        return replace(self._sheet, fusion_model="learned", numbers=as_numbers(weights))

    @property
    def _sheet(self) -> Device:
        """The first device as its data sheet has it."""
        return plain_roofline(self.task.machine.devices[0])


PRIOR = 0.5  # standard deviation of the last layer's weights around those of training
MISFIT = 0.03  # of a kernel's time: the model's own error, independent from kernel to kernel
STEPS = 3  # of Gauss-Newton in each fit
FURTHEST = 1.0  # that a weight moves in each


class PriceDifference(NamedTuple):
    """Kernels that one of two plans has and the other has not, and by how much the prices differ. hidden: [R, H + 1]
    what the last layer reads, and 1. roofline: [R] logarithm of the plain roofline over a launch. sign: [R] 1 or -1."""

    hidden: F64
    roofline: F64
    sign: F64
    seconds: float


class LastLayer:
    """The network's last layer, fitted to the prices of one graph's plans by Bayesian linear regression.

    A price is a sum of kernel times, and kernels that two plans share cancel in the difference of their prices. So each
    evaluation teaches the difference to the best one before it. After Snoek et al., "Scalable Bayesian Optimization
    Using Deep Neural Networks" (ICML 2015), who fit the last layer to the values of their search as well.
    """

    def __init__(self, problem: AssignProblem, machine: Machine) -> None:
        self._problem, self._machine, self._device = problem, machine, machine.devices[0]
        self._first, self._bias, self._second, self._bias_2, out, bias = from_numbers(self._device.numbers)
        self._trained = np.append(out, bias)
        self._weights, self._seen = self._trained, list[PriceDifference]()
        default = problem.task.canonical(problem.graph, problem.task.initial(problem.graph))
        self._best, self._cost = self._kernels(default), problem.initial_cost

    def _kernels(self, decision: Decision) -> F64:
        """[N, F] the columns of each op's kernel, 0 where there is none."""
        graph = self._problem.graph
        inline = self._problem.task.realise(graph, decision[None]).inline[0]
        columns = np.zeros((graph.num_ops, len(COLUMNS)))
        columns[~inline] = kernel_table(graph, inline, self._device, all_kernels=True)[1]
        return columns

    def saw(self, decision: Decision, cost: float) -> None:
        """A decision, legal, has this price."""
        kernels, seconds = self._kernels(decision), cost - self._cost
        differ = (kernels != self._best).any(1)
        x, sign = np.concatenate([kernels[differ], self._best[differ]]), np.repeat([1.0, -1.0], differ.sum())
        x, sign = x[x.any(1)], sign[x.any(1)]
        if len(x) and np.isfinite(seconds):
            hidden = np.maximum(0.0, np.maximum(0.0, x @ self._first.T + self._bias) @ self._second.T + self._bias_2)
            read = np.concatenate([hidden, np.ones((len(x), 1))], 1)
            self._seen.append(PriceDifference(read, x[:, 0] / SCALE, sign, seconds))
        if seconds < 0:
            self._best, self._cost = kernels, cost

    def machine(self) -> Machine:
        """The machine with the fitted model as its first device."""
        prior = np.eye(len(self._trained)) / PRIOR**2
        for _ in range(STEPS if self._seen else 0):
            precision, right = prior.copy(), prior @ self._trained
            for seen in self._seen:
                seconds = self._device.launch * np.exp(
                    np.clip(seen.roofline + seen.hidden @ self._weights, -20.0, 20.0)
                )
                slope = (seen.sign * seconds) @ seen.hidden
                variance = MISFIT**2 * (seconds**2).sum()
                rest = seen.seconds - seen.sign @ seconds + slope @ self._weights
                precision += np.outer(slope, slope) / variance
                right += slope * rest / variance
            step = np.linalg.solve(precision, right) - self._weights
            self._weights = self._weights + step.clip(-FURTHEST, FURTHEST)
        layers = (self._first, self._bias, self._second, self._bias_2, self._weights[:-1], self._weights[-1:])
        return modelled_by(self._machine, replace(self._device, numbers=as_numbers(list(layers))))


class RunModel(KernelModel):
    """yaml: conf/algo/run_model.yaml.

    modelled: simulated runs for each search. caution: transfers take so many times as long as the machine says.
    Untrained it is the same search by a plain roofline. Validation: 1 over the
    factor, in geometric mean, by which times of kernels are taken too long or too short.
    """

    needs_roles: ClassVar[frozenset[Role]] = frozenset()
    needs_one_of: ClassVar[frozenset[Role]] = JointSearch.needs_one_of
    knows_roles: ClassVar[frozenset[Role]] = JointSearch.knows_roles
    metric: ClassVar[str] = "kernels"
    objectives = frozenset[Objective]({"runtime", "peak_memory"})  # of a run, of which when kernels end is a part
    any_purpose: ClassVar[bool] = True

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, plans: Count, rate: NotNegative,
                 modelled: Count, caution: Positive, search: JointSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed, plans=plans, rate=rate, depth=search.depth,
                         modelled=modelled, fit=False)  # fmt: skip
        self.search, self.caution = search, caution
        if not isinstance(task, Fusion):
            limits = task.fusion_limits if isinstance(task, DeviceTask) else USUAL
            self.timed = Fusion(name="fusion", machine=task.machine, decision="binary", levels=2, numerics=None,
                                device="cpu", **limits._asdict())  # fmt: skip

    def made_for(self) -> dict[str, Any]:
        """Any task and number of devices."""
        return {}

    def pricing(self, graph: Graph) -> Pricing:
        if graph.hash not in self._pricings:
            self._pricings[graph.hash] = Pricing(graph, self.timed, self.cost, self._count)
        return self._pricings[graph.hash]

    def validation_values(self, graph: Graph) -> list[float]:
        kernels = self._timed(graph)
        with inference(graph):
            error = (self.network(kernels.columns.to(self.device))[:, 0].cpu() - kernels.logs).abs()
        return [-float((error * kernels.weight).sum() / kernels.weight.sum().clamp(min=1e-9))]

    def solve(self, problem: AssignProblem) -> None:
        """The best keys of a search among simulated runs; a budget goes on from there."""
        model = Simulator(name="model", machine=self.machine, objective=self.cost.objective, threads=1)
        keys = self.search.searched(
            _Simulated(problem.graph, problem.task, model, evals=self.modelled, seed=self.val_seed)
        )
        if problem.open:
            self.search.go_on_from(problem, keys)
        else:
            problem.commit_keys(keys)

    @property
    def machine(self) -> Machine:
        """The task's machine, with the learned model of its first device for every device like it."""
        known: Machine = self.task.machine
        first, learned = _unnamed(known.devices[0]), self._learned
        devices = (learned if _unnamed(device) == first else plain_roofline(device) for device in known.devices)
        return replace(
            known,
            devices=tuple(replace(a, name=b.name, capacity=b.capacity) for a, b in zip(devices, known.devices)),
            link_bandwidth=tuple(map(tuple, (known.link_bandwidth_DD / self.caution).tolist())),
            link_latency=tuple(map(tuple, (known.link_latency_DD * self.caution).tolist())),
        )


class _Simulated(AssignProblem):
    """Nobody asks how many of its decisions were different."""

    def _key_digests(self, keys: Keys) -> list[int]:
        return []


def _unnamed(device: Device) -> Device:
    return replace(device, name="", capacity=0.0)


def durations(ends: F64) -> NDArray[np.float64]:
    """[N] how long each kernel took, of kernels that ran one after another and ended at `ends` [N] (0: no kernel)."""
    order = np.argsort(ends, kind="stable")
    seconds = np.zeros(len(ends))
    seconds[order] = np.diff(ends[order], prepend=0.0)
    return seconds
