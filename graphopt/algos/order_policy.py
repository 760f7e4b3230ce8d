"""`order_policy`: orders for least peak memory at once, by list scheduling with a few learned scores.

A member is a weighted sum of what a ready op would do to memory and of where it stands (`scored_order`); members
complement each other: each is trained, in turn, to lower the peaks that the others leave. An answer prices one order
per member, and a few of members that are drawn around them; the best is taken: no search.

Training is an evolution strategy with a diagonal Gaussian (cross-entropy method): the next mean and deviations are
those of the elite of a population. What it lowers is the mean over graphs of log (least peak of the members and of the
graph's own order / that of its own order).

Ours, of no paper. Shape legend: M members, F features, P population.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.learner import Learner
from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.live_storage import LiveStorage, peaks
from graphopt.errors import Unsolved
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask
from graphopt.search.heuristics.compiler_orders import keys_of, storage_of
from graphopt.search.heuristics.scored_order import FEATURES, scored_order
from graphopt.utils.ranges import Few, NotNegative, Positive, Whole

FIRST = {"made": -1.0, "freed": 1.0, "rise": -5.0, "fits": 0.3, "place": -0.3}
"""Where the search for a member begins: little memory first, then the order of the graph."""
LEAST_SPREAD = 0.02


@dataclass(frozen=True, kw_only=True)
class CrossEntropy:
    """population: weights tried per step. elite: of them that the next are drawn around. spread: first deviation. turn:
    steps for one member before the next one's turn."""

    population: Few
    elite: Few
    spread: Positive
    turn: Whole


class OrderPolicy(Learner):
    """yaml: conf/algo/order_policy.yaml. samples, noise: further orders of an answer, and by how much, relatively,
    their weights differ from a member's (standard deviation)."""

    needs_roles = frozenset({Role.PRIORITY})
    knows_roles = frozenset({Role.PRIORITY})
    network_settings = frozenset({"members"})
    spread_MF: Tensor
    done: Tensor  # steps

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, members: Few, samples: Whole,
                 noise: NotNegative, evolution: CrossEntropy) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.samples, self.noise, self.evolution = samples, noise, evolution
        first = torch.tensor([FIRST.get(feature, 0.0) for feature in FEATURES])
        self.weights_MF = nn.Parameter(first.repeat(members, 1), requires_grad=False)
        self.register_buffer("spread_MF", torch.full((members, len(FEATURES)), evolution.spread))
        self.register_buffer("done", torch.zeros((), dtype=torch.int64))
        self.automatic_optimization = False

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Never stepped: Lightning wants one."""
        return torch.optim.SGD([self.weights_MF], lr=0.0)

    def solve(self, problem: AssignProblem) -> None:
        table = storage_of(problem)
        members = self._members()
        near = members[np.arange(self.samples) % len(members)]
        drawn = near + (self.noise * np.abs(near) + LEAST_SPREAD) * problem.rng.standard_normal(near.shape)
        orders = [scored_order(table, weights) for weights in (*members, *drawn)]
        keys = np.stack([keys_of(problem, order) for order in orders])
        problem.commit_keys(keys[0])
        if problem.open:
            problem.cost_keys(keys)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        """One generation of the member whose turn it is."""
        member = int(self.done) // self.evolution.turn % len(self.weights_MF)
        mean, spread = (values[member].double().numpy() for values in (self.weights_MF, self.spread_MF))
        drawn = mean + spread * self._random.standard_normal((self.evolution.population, len(mean)))
        drawn[0] = mean
        loss = np.mean([self._losses(graph, drawn, member) for graph in graphs], 0)
        elite = drawn[np.argsort(loss)[: self.evolution.elite]]
        self.weights_MF[member] = torch.from_numpy(elite.mean(0))
        self.spread_MF[member] = torch.from_numpy(np.maximum(elite.std(0), LEAST_SPREAD))
        self.done += 1
        self.log_dict({"reward": -float(loss.min()), "losses/mean": float(loss[0])})
        self._finished_step()

    def _finished_step(self) -> None:
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.step()  # counts the step

    def _losses(self, graph: Graph, drawn_PF: F64, member: int) -> F64:
        """[P] log of the least peak over the default's, with each draw in the place of a member."""
        table = self.cost.storage(graph)
        if table is None:
            raise Unsolved("order_policy learns from what ops allocate; take cost=live_bytes")
        own = float(peaks(table, table.ordered[None])[0])
        others = [weights for i, weights in enumerate(self._members()) if i != member and self._trained(i)]
        self._count(len(others) + len(drawn_PF))
        least = min([own, *(_peak(table, weights) for weights in others)])
        return np.log([min(least, _peak(table, weights)) / own for weights in drawn_PF])

    def _trained(self, member: int) -> bool:
        """Whether it has had a turn."""
        return bool(int(self.done) // self.evolution.turn > member)

    def _members(self) -> F64:
        return self.weights_MF.detach().double().cpu().numpy()


def _peak(table: LiveStorage, weights: F64) -> float:
    return float(peaks(table, scored_order(table, weights)[None])[0])
