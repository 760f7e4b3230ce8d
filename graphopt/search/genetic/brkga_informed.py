"""`brkga_informed`: BRKGA that draws its first population and its mutants around a heuristic's plan, without learning.

What REGAL learns (Beta distributions for device affinities and priorities) is set by hand here: affinities by a
spectral partition that balances time, priorities by a list heuristic.

Shape legend: K keys, N ops, D devices.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from graphopt.core.graph import F64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.brkga import F32, Evolution, evolve, priced_by
from graphopt.search.genetic.proposals import beta_keys, beta_parameters
from graphopt.search.heuristics.encoding import ranks
from graphopt.search.heuristics.rules import (
    Device,
    Order,
    SchedulingInstance,
    order_bottom_level,
    order_memory_greedy,
    order_reverse_bottom_level,
    place_spectral,
)
from graphopt.utils.ranges import Positive, Share

ORDERS: dict[str, Order] = {
    "bottom_level": order_bottom_level,
    "reverse_bottom_level": order_reverse_bottom_level,
    "memory_greedy": order_memory_greedy,
}


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Beta distributions around a heuristic. A concentration is alpha + beta: 2 around a mean of 0.5 is uniform."""

    placement: Share  # mean of the affinity to an op's device; 1 - placement to the others
    placement_concentration: Positive
    order: Literal["bottom_level", "reverse_bottom_level", "memory_greedy"]
    priorities: Share  # means of priorities run from 0.5 - priorities / 2 to 0.5 + priorities / 2
    priority_concentration: Positive


class BrkgaInformed(Optimizer):
    """yaml: conf/algo/brkga_informed.yaml, with one proposal per objective; `max_load` takes that of `runtime`."""

    def __init__(self, *, name: str, evolution: Evolution, runtime: Proposal, peak_memory: Proposal) -> None:
        self.name, self.evolution, self.runtime, self.peak_memory = name, evolution, runtime, peak_memory

    def solve(self, problem: AssignProblem) -> None:
        if problem.open and problem.task.key_count(problem.graph):
            proposal = self.peak_memory if problem.objective == "peak_memory" else self.runtime
            sampler = beta_keys(*parameters(problem, proposal))
            evolve(priced_by(problem), sampler, problem.rng, self.evolution)


def parameters(problem: AssignProblem, proposal: Proposal) -> tuple[F32, F32]:
    """(alpha [K], beta [K]) of the proposal; choices other than devices and orders stay uniform."""
    instance = SchedulingInstance(problem.graph, problem.task)
    device = place_spectral(instance, "time")
    return _around(problem, device, ORDERS[proposal.order](instance, device), proposal)


def _around(problem: AssignProblem, device: Device, urgency: F64, proposal: Proposal) -> tuple[F32, F32]:
    layout = problem.layout
    mean, concentration = np.full(len(layout), 0.5), np.full(len(layout), 2.0)
    affinity = layout.role == KeyRole.AFFINITY
    own = device[layout.op[affinity]] == layout.device[affinity]
    mean[affinity] = np.where(own, proposal.placement, 1.0 - proposal.placement)
    concentration[affinity] = proposal.placement_concentration
    ordered = (layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER)
    mean[ordered] = 0.5 + proposal.priorities * (ranks(urgency)[layout.op[ordered]] - 0.5)
    concentration[ordered] = proposal.priority_concentration
    return beta_parameters(mean, concentration)
