"""`kernel_model`: learns how long a kernel takes from what lowering says about it, then searches by that model, which
costs no evaluation, and spends the budget on what the model finds best.

After Kaufman, Phothilimthana, Zhou, Mendis, Roy, Sabne, Burrows, "A Learned Performance Model for Tensor Processing
Units" (MLSys 2021): kernels, a loss on their times, an autotuner of fusion that asks the model first and the hardware
for what is best. Our choices: sums over a kernel instead of a network over its ops
(`graphopt.costs.one_kernel.learned_kernel`), a correction of a plain roofline, motif scan as the search, the plans that
are drawn to learn on.

Shape legend: N ops, R kernels, F columns.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from graphopt.algos.learner import Learner
from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.machine import Device, Machine
from graphopt.costs.one_kernel.kernel_time import kernel_table
from graphopt.costs.one_kernel.learned_kernel import COLUMNS, HIDDEN, SCALE, as_numbers
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.decisions import Decision
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.modelled_scan import modelled_by, plain_roofline, search_by_model
from graphopt.search.fusion.xla_priority import xla_choice, xla_models
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import Count, NotNegative, Whole


@dataclass(frozen=True)
class Kernels:
    """Of one graph's plans. columns: [R, F]. logs: [R] logarithm of the time over the plain roofline's. weight: [R]
    share of its plan's time."""

    columns: Tensor
    logs: Tensor
    weight: Tensor


class KernelModel(Learner):
    """yaml: conf/algo/kernel_model.yaml."""

    needs_roles = frozenset({Role.FUSION})
    knows_roles = frozenset({Role.FUSION})
    heeds_held_out = True
    objectives = frozenset[Objective]({"runtime"})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, plans: Count, rate: NotNegative,
                 depth: Whole, modelled: Count) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.plans, self.rate, self.depth, self.modelled = plans, rate, depth, modelled
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

    def gather(self, graphs: list[Graph]) -> None:  # type: ignore[override]
        """Times the kernels of some plans of every training graph: an evaluation each."""
        before = self.train_evals
        with Bar("time kernels", len(graphs)) as bar:
            for graph in graphs:
                draw = np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)])
                self._kernels[graph.hash] = self._timed(graph, draw)
                bar.step(graph.name)
        if self.train_steps:
            self.train_evals = before

    def _timed(self, graph: Graph, draw: np.random.Generator) -> Kernels:
        return distinct([self._kernels_of(graph, decision) for decision in self._drawn(graph, draw)])

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
        return timed(graph, plan.inline[0], found[1], self._sheet)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        parts = [self._kernels[graph.hash] for graph in graphs]
        columns = torch.cat([part.columns for part in parts]).to(self.device)
        logs = torch.cat([part.logs for part in parts]).to(self.device)
        weight = torch.cat([part.weight + 0.1 / max(1, len(part.weight)) for part in parts]).to(self.device)
        loss = error_of(self.network, Kernels(columns, logs, weight))
        self.log("losses/kernels", loss.detach())
        return loss

    # ---- answering

    def solve(self, problem: AssignProblem) -> None:
        search_by_model(problem, self.machine, depth=self.depth, modelled=self.modelled)

    @property
    def machine(self) -> Machine:
        """The task's machine, with what was learned as its first device."""
        weights = [part.detach().cpu().numpy() for part in self.network.parameters()]
        device = replace(self._sheet, fusion_model="learned", numbers=as_numbers(weights))
        return modelled_by(self.task.machine, device)

    @property
    def _sheet(self) -> Device:
        """The first device as its data sheet has it."""
        return plain_roofline(self.task.machine.devices[0])


def timed(graph: Graph, inline: NDArray[np.bool_], ends: F64, sheet: Device) -> F64:
    """[R, F + 2] of the kernels of one plan that ran on one device and ended at `ends` [N]: columns, logarithm of the
    time over the roofline's, share of the plan's time. inline: [N] flags."""
    root, x = kernel_table(graph, inline, sheet)
    seconds = durations(ends)
    seconds, total = seconds[root], seconds.sum()
    logs = np.log(seconds / sheet.launch) - x[:, 0] / SCALE
    return np.concatenate([x, logs[:, None], (seconds / total)[:, None]], 1)


def distinct(parts: list[F64]) -> Kernels:
    """Of several plans' kernels [R, F + 2], each once."""
    table = np.unique(np.concatenate(parts), axis=0)
    columns, logs, weight = np.split(table.astype(np.float32), [len(COLUMNS), len(COLUMNS) + 1], 1)
    return Kernels(torch.from_numpy(columns), torch.from_numpy(logs[:, 0]), torch.from_numpy(weight[:, 0]))


def error_of(network: nn.Module, kernels: Kernels) -> Tensor:
    """Mean square error of predicted logarithms, by weight."""
    error = (network(kernels.columns)[:, 0] - kernels.logs) ** 2
    mean: Tensor = (error * kernels.weight).sum() / kernels.weight.sum().clamp(min=1e-9)
    return mean


def durations(ends: F64) -> NDArray[np.float64]:
    """[N] how long each kernel took, of kernels that ran one after another and ended at `ends` [N] (0: no kernel)."""
    order = np.argsort(ends, kind="stable")
    seconds = np.zeros(len(ends))
    seconds[order] = np.diff(ends[order], prepend=0.0)
    return seconds
