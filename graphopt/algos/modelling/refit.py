"""A model of kernels fitted to the graph that is being solved, inside the budget.

Who has a profiler knows how long every kernel of a run took, not only the run: one evaluation of a plan on one device
teaches all of its kernels. Plans are the fusion that was found, and that fusion with some ops decided otherwise.

Shape legend: K keys, N ops, R kernels, F columns.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import nn

from graphopt.algos.modelling.kernel_model import Kernels, distinct, error_of, timed
from graphopt.algos.placing.op_groups import learning_inside
from graphopt.core.graph import F64
from graphopt.core.machine import Device
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.search.genetic.evolution import F32
from graphopt.search.heuristics.starts import encode
from graphopt.utils.ranges import Between, NotNegative, Share

CHANGED = (0.05, 0.2, 0.5)  # shares of the ops that a plan decides otherwise


@dataclass(frozen=True, kw_only=True)
class KernelTuning:
    """Updates on the graph that is being solved, billed."""

    steps: Annotated[int, Between(0, 1000)]  # 0: none
    share: Share  # of the budget that plans may take whose kernels are timed
    rate: NotNegative


def refitted(network: nn.Module, problem: AssignProblem, keys: F32, sheet: Device, said: KernelTuning) -> bool:
    """Trains the network on kernels of plans near keys [K]; whether there were any."""
    kernels = profiled(problem, keys, sheet, int(said.share * problem.evals_cap))
    if kernels is None:
        return False
    optimizer = torch.optim.Adam(network.parameters(), lr=said.rate)
    with learning_inside(problem), torch.enable_grad():
        for _ in range(said.steps):
            optimizer.zero_grad()
            error_of(network, kernels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return True


def profiled(problem: AssignProblem, keys: F32, sheet: Device, most: int) -> Kernels | None:
    """Kernels of at most so many plans, an evaluation each; None where plans do not run on the first device alone."""
    parts: list[F64] = []
    for each in _near(problem, keys):
        plan = problem.task.realise_keys(problem.graph, each[None])
        if len(parts) == most or not problem.remaining or plan.device.any():
            break
        cost, ends = problem.cost_and_ends(each)
        if not np.isfinite(cost):
            break
        parts.append(timed(problem.graph, plan.inline[0], ends, sheet))
    return distinct(parts) if parts else None


def _near(problem: AssignProblem, keys: F32) -> Iterator[F32]:
    """On the first device: the fusion of keys [K], and as long as anybody asks others near it, if fusion is decided."""
    layout, ops = problem.layout, problem.graph.num_ops
    fused = np.flatnonzero((layout.role == KeyRole.CHOICE) & problem.task.mask(problem.graph)[layout.op, layout.head])
    alone = encode(problem, np.zeros(ops, np.int64), -np.arange(ops, dtype=np.float64))
    alone[fused] = keys[fused]
    yield alone
    while len(fused):
        changed, places = alone.copy(), fused[problem.rng.random(len(fused)) < problem.rng.choice(CHANGED)]
        changed[places] = 1.0 - changed[places]
        yield changed
