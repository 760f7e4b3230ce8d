"""`brkga`: random keys, evolved. Distributions that REGAL learns are uniform here, or set by hand.

Shape legend: K keys.
"""

from typing import Literal, NamedTuple

import numpy as np

from graphopt.core.utils.marks import Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.evolution import (
    F32,
    Evolution,
    beta_keys,
    beta_parameters,
    evolve,
    priced_by,
    uniform_keys,
)
from graphopt.search.heuristics.rules import (
    Order,
    SchedulingInstance,
    order_bottom_level,
    order_reverse_bottom_level,
    place_spectral,
)
from graphopt.search.heuristics.starts import heuristic_keys, ranks
from graphopt.search.walks.key_moves import RegalLocal


class Proposal(NamedTuple):
    """Beta distributions around a heuristic. A concentration is alpha + beta: 2 around a mean of 0.5 is uniform."""

    placement: float  # mean of the affinity to an op's device; 1 - placement to the others
    placement_concentration: float
    order: Order
    priorities: float  # means of priorities run from 0.5 - priorities / 2 to 0.5 + priorities / 2
    priority_concentration: float


RUN_TIME = Proposal(0.8, 4.0, order_bottom_level, 0.6, 4.0)  # `max_load` too
PEAK_MEMORY = Proposal(0.7, 4.0, order_reverse_bottom_level, 0.6, 3.0)


class Brkga(Optimizer):
    """start: the distribution of the first population and the mutants. `random`: uniformly. `heuristic`: the same, but
    the first population holds the plans of all heuristics. `informed`: around a spectral partition that balances time
    and a list order, without learning. local_evals: of the budget, for the local search; then its best keys are in the
    first population."""

    def __init__(self, *, name: str, start: Literal["random", "heuristic", "informed"], local: RegalLocal,
                 local_evals: Whole, evolution: Evolution) -> None:  # fmt: skip
        self.name, self.start, self.evolution = name, start, evolution
        self.local, self.local_evals = local, local_evals

    def solve(self, problem: AssignProblem) -> None:
        keys = problem.task.key_count(problem.graph)
        if not keys or not problem.open:
            return
        seeds = self.local.best_after(problem, self.local_evals)
        if seeds is None and self.start == "heuristic":
            seeds = heuristic_keys(problem)
        sampler = uniform_keys(keys)
        if self.start == "informed":
            sampler = beta_keys(*around(problem, PEAK_MEMORY if problem.objective == "peak_memory" else RUN_TIME))
        evolve(priced_by(problem), sampler, problem.rng, self.evolution, seeds=seeds)


def around(problem: AssignProblem, proposal: Proposal) -> tuple[F32, F32]:
    """(alpha [K], beta [K]) around the heuristics' plan; choices other than devices and orders stay uniform."""
    instance, layout = SchedulingInstance(problem.graph, problem.task), problem.layout
    device = place_spectral(instance, "time")
    urgency = proposal.order(instance, device)
    mean, concentration = np.full(len(layout), 0.5), np.full(len(layout), 2.0)
    affinity = layout.role == KeyRole.AFFINITY
    own = device[layout.op[affinity]] == layout.device[affinity]
    mean[affinity] = np.where(own, proposal.placement, 1.0 - proposal.placement)
    concentration[affinity] = proposal.placement_concentration
    ordered = (layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER)
    mean[ordered] = 0.5 + proposal.priorities * (ranks(urgency)[layout.op[ordered]] - 0.5)
    concentration[ordered] = proposal.priority_concentration
    return beta_parameters(mean, concentration)
