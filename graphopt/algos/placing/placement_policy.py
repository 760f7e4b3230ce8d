"""`placement_policy`: of the placements that heuristics propose, a network says which is the fastest, without a price;
those that it expects most of are priced first, and a local search goes on from the best.

Ours, of no paper. HEFT is one placement for each factor by which it overrates transfers, since it knows nothing of
queues on links; which factor is right depends on the graph, and no single one beats one device by much. The network
reads the graph as GO's does (an inductive encoder) and, of each candidate, shares that can be known without a price
(`candidates`). All candidates of the training graphs are priced once, so what is minimised is exact: the logarithm of
the price that the policy's choice has on average, plus the error of predicted logarithms of prices, which orders the
rest. One network serves any number of devices.

Shape legend: N ops of all graphs of a batch, G graphs, C candidates, D width.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.learner import Learner, answering
from graphopt.algos.placing.candidates import KNOWN, NAMES, Candidates, candidates
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.encoders.encoder import Encoder
from graphopt.encoders.features import batch, graph_features
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decisions
from graphopt.problems.optimizer import solve
from graphopt.problems.task import AssignTask
from graphopt.search.heuristics.encoding import encode
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.regal_local import RegalLocal
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import Few, NotNegative, Positive, Share

INFEASIBLE = 3.0  # logarithm of a price that does not exist, over the default's
WORST = 3.0  # larger logarithms teach no more than this one


@dataclass(frozen=True, kw_only=True)
class ChoiceTeaching:
    """conf/algo/placement_policy.yaml explains them."""

    error: NotNegative
    rate: NotNegative
    decay: NotNegative
    gradient_clip: NotNegative


class ChoiceNetwork(nn.Module):
    """[G, C] expected logarithms of prices over the default's, from graphs and what is known of candidates."""

    def __init__(self, encoder: Encoder, dropout: float) -> None:
        super().__init__()
        width = encoder.width
        self.encoder, self.dropout = encoder, nn.Dropout(dropout)
        self.rule = nn.Embedding(len(NAMES), width)
        self.known = nn.Linear(2 * len(KNOWN), width)
        self.out = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, data: Any, known_GCK: Tensor) -> Tensor:
        _, g_GD = self.encoder(data)
        best = known_GCK - known_GCK.amin(1, keepdim=True)
        own_GCD = self.known(torch.cat([known_GCK, best], -1)) + self.rule.weight
        both = torch.cat([own_GCD, self.dropout(g_GD)[:, None].expand_as(own_GCD)], -1)
        expected: Tensor = self.out(both)[..., 0]
        return expected - expected[:, :1]  # of the default, the first, it is known


class PlacementPolicy(Learner):
    """yaml: conf/algo/placement_policy.yaml. sharpness: of the softmax over expected logarithms that training chooses
    by. priced: at most so many candidates before the local search."""

    needs_roles = frozenset({Role.DEVICE})
    knows_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int, dropout: Share,
                 sharpness: Positive, teaching: ChoiceTeaching, priced: Few, local: RegalLocal) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.network, self.teaching, self.sharpness = ChoiceNetwork(encoder, dropout), teaching, sharpness
        self.priced, self.local = priced, local
        self.automatic_optimization = False
        self._prices: dict[str, Tensor] = {}
        self._known: dict[str, tuple[Any, Tensor]] = {}

    def made_for(self) -> dict[str, Any]:
        """Any number of devices."""
        return {"candidates": list(NAMES)}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.teaching.rate, weight_decay=self.teaching.decay)

    # ---- learning

    def gather(self, graphs: Sequence[Graph]) -> None:
        """Prices all candidates of every training graph; that is training cost."""
        with Bar("candidates", len(graphs)) as bar:
            for graph in graphs:
                found = candidates(SchedulingInstance(graph, self.task))
                pricing = self.pricing(graph)
                before = self.train_evals
                price_C = pricing.decisions(self._decisions(graph, found)).cost / pricing.initial_cost
                self.train_evals = before + (len(price_C) if self.train_steps == 0 else 0)
                logs = np.minimum(np.log(np.where(np.isfinite(price_C), price_C, np.exp(INFEASIBLE))), WORST)
                self._prices[graph.hash] = torch.from_numpy(logs.astype(np.float32))
                self._known[graph.hash] = self._observed(graph, found)
                bar.step(graph.name)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        data, known = zip(*(self._known[graph.hash] for graph in graphs))
        price_GC = torch.stack([self._prices[graph.hash] for graph in graphs]).to(self.device)
        expected_GC = self.network(batch(data).to(self.device), torch.stack(known).to(self.device))
        choice = (torch.softmax(-self.sharpness * expected_GC, 1) * price_GC).sum(1).mean()
        error = nn.functional.smooth_l1_loss(expected_GC, price_GC, beta=0.1)
        optimizer = self.optimizers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(choice + self.teaching.error * error)
        nn.utils.clip_grad_norm_(self.parameters(), self.teaching.gradient_clip)
        optimizer.step()
        self.log("reward", -choice.detach(), prog_bar=True)
        self.log_dict({"losses/choice": choice.detach(), "losses/error": error.detach()})

    def says(self, graph: Graph) -> list[float]:
        """What the answer without evaluations gains; what it costs is one price."""
        problem, _ = solve(self, graph, self.task, self.cost, evals=0, seed=self.val_seed)
        self.train_evals += 1
        before, after = problem.initial_cost, problem.best_cost
        return [math.log(before / after)] if math.isfinite(before) and math.isfinite(after) and after > 0 else []

    # ---- answering

    def _decisions(self, graph: Graph, found: Candidates) -> Decisions:
        initial = self.task.initial(graph)
        decisions = np.repeat(initial[None], len(found.device), 0)
        decisions[:, :, self.task.column(Role.DEVICE)] = found.device
        return np.where(self.task.mask(graph), decisions, initial)

    def _observed(self, graph: Graph, found: Candidates) -> tuple[Any, Tensor]:
        return graph_features(graph, self.task.machine), torch.from_numpy(found.known.astype(np.float32))

    def solve(self, problem: AssignProblem) -> None:
        instance, column = SchedulingInstance(problem.graph, problem.task), problem.task.column(Role.DEVICE)
        found = candidates(instance)
        data, known = self._observed(problem.graph, found)
        with answering(problem.graph):
            expected_GC = self.network(batch([data]).to(self.device), known[None].to(self.device))
        order = np.argsort(expected_GC[0].cpu().numpy(), kind="stable")
        decisions = self._decisions(problem.graph, found)
        if not problem.open:
            problem.commit(decisions[order[0]])
            return
        order = _distinct(decisions, order, problem.initial)[: self.priced]
        if len(order):
            problem.cost(decisions[order])
        keys = encode(problem, problem.best[:, column], np.zeros(problem.graph.num_ops))
        for _ in self.local.bests_from(problem, keys, problem.best_cost):
            if not problem.open:
                return


def _distinct(decisions: Decisions, order: np.ndarray, initial: np.ndarray) -> np.ndarray:
    """The order without repetitions and without the default, whose price is known."""
    seen, kept = {initial.tobytes()}, []
    for place in order.tolist():
        if decisions[place].tobytes() not in seen:
            seen.add(decisions[place].tobytes())
            kept.append(place)
    return np.array(kept, np.int64)
