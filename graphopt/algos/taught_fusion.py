"""Policies of fusion that are taught by what long searches decide and by exact prices of flips, and whose answers start
a motif scan. What networks they have is theirs (`motif_policy`, `lookup_policy`).

- *Optima*: what a long search decided on each training graph (`optima`), as labels; an op weighs what flipping it there
  costs, `most` at most, so that what does not matter is not learned.
- *Prices*: a decision is drawn from the policy, and for every op the exact price of its other choice, given the rest of
  the decision, is the gradient of the expected logarithm of the price: no variance from the op's own draw, no baseline.
- *Worth*: a second output says how much an op matters at the optimum, which orders moves.

While learning, operators of some ops are hidden, as graphs of other libraries have other operators. Weights are
averaged over steps (Polyak), and it is these that answer. Nobody is taught by ops that are held out (`Graph.taught`).

Shape legend: N ops of all graphs of a batch.
"""

from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from graphopt.algos.fusion_columns import fusion_columns
from graphopt.algos.learner import Learner, answering
from graphopt.algos.optima import Optimum, flips_at, optimum
from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.operators import OPERATOR_ID
from graphopt.encoders.features import batch, graph_features
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.decisions import Decision
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.motif_scan import scan_motifs
from graphopt.search.fusion.rules_scan import price_rules
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import Between, Count, NotNegative, Positive, Share, Shift

LARGEST_CREDIT = 0.5  # of the logarithm of a price
MOST_ANSWERS = 100
WARM_UP = 0.1  # of the steps, until the learning rate is reached


@dataclass(frozen=True, kw_only=True)
class Teaching:
    """Signals and steps; conf/algo/motif_policy.yaml explains them."""

    evals: Count
    most: Positive
    optima: NotNegative
    prices: NotNegative
    worth: NotNegative
    alone: Share
    hidden: Share
    rate: NotNegative
    decay: NotNegative
    average: Share
    gradient_clip: NotNegative


@dataclass(frozen=True, kw_only=True)
class MotifSearch:
    """How `solve` spends a budget."""

    thresholds: list[Shift]
    depth: Annotated[int, Between(0, 16)]
    ordered: bool

    def __post_init__(self) -> None:
        if not 0 < len(self.thresholds) <= MOST_ANSWERS:
            raise ConfigError("algo.search.thresholds says from which log-odds ops are inlined; give 1 to "
                              f"{MOST_ANSWERS}, e.g. [1.0, 0.0]")  # fmt: skip


class TaughtFusion(Learner):
    """network: (features of a batch of graphs, columns [N, X]) -> log-odds of inlining [N], of mattering [N]."""

    needs_roles = frozenset({Role.FUSION})
    knows_roles = frozenset({Role.FUSION})
    training_only = ("network.",)
    heeds_held_out = True

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, network: nn.Module,
                 teaching: Teaching, search: MotifSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.network = network
        self.averaged = AveragedModel(self.network, avg_fn=self._average)
        self.teaching, self.search = teaching, search
        self.automatic_optimization = False
        self._inputs: dict[str, tuple[Any, Tensor]] = {}
        self._optima: dict[str, Optimum] = {}

    def configure_optimizers(self) -> Any:
        rate, steps = self.teaching.rate, max(2, int(self.trainer.estimated_stepping_batches))
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=rate, weight_decay=self.teaching.decay)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps + 1, pct_start=WARM_UP)
        return {"optimizer": optimizer, "lr_scheduler": schedule}

    def _average(self, averaged: Tensor, now: Tensor, steps: Tensor | int) -> Tensor:
        """Over few steps at first."""
        keep = min(self.teaching.average, float((1 + steps) / (10 + steps)))
        return keep * averaged + (1.0 - keep) * now

    # ---- learning

    def gather(self, graphs: list[Graph]) -> None:  # type: ignore[override]
        """Searches for the optimum of every training graph, or reads it. What that took is training cost."""
        with Bar("optima", len(graphs)) as bar:
            for graph in graphs:
                found = self._optima[graph.hash] = optimum(graph, self.task, self.cost, self.teaching.evals)
                self.train_evals += found.evals if self.train_steps == 0 else 0
                bar.step(graph.name)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> None:
        data, columns = self._observe(graphs)
        inline, matters = self.network(self._hidden(data), columns)
        sizes = [graph.num_ops for graph in graphs]
        parts = zip(graphs, inline.split(sizes), matters.split(sizes), strict=True)
        optima, prices, worth, weight = (torch.stack(sums).sum() for sums in zip(*(self._taught(*p) for p in parts)))
        priced = float(self.train_steps >= self.teaching.alone * self.trainer.estimated_stepping_batches)
        loss = (self.teaching.optima * optima + self.teaching.worth * worth) / weight.clamp(min=1e-6)
        loss = loss + priced * self.teaching.prices * prices / len(graphs)
        self._step(loss)
        self.log_dict({"losses/optima": (optima / weight.clamp(min=1e-6)).detach(), "losses/prices": prices.detach()})

    def _step(self, loss: Tensor) -> None:
        optimizer, schedule = self.optimizers(), self.lr_schedulers()
        assert not isinstance(optimizer, list)
        optimizer.zero_grad()
        self.manual_backward(loss)
        nn.utils.clip_grad_norm_(self.network.parameters(), self.teaching.gradient_clip)
        optimizer.step()
        schedule.step()  # type: ignore[union-attr,call-arg]
        self.averaged.update_parameters(self.network)

    def _hidden(self, data: Any) -> Any:
        """With some operators hidden."""
        given = copy(data)
        drawn = torch.from_numpy(self._random.random(len(data.kind))).to(data.kind.device)
        given.kind = torch.where(drawn < self.teaching.hidden, OPERATOR_ID["opaque"], data.kind)
        return given

    def _taught(self, graph: Graph, inline: Tensor, matters: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One graph's (loss at its optimum, expected price, loss of worth, weight of its ops)."""
        best, free = self._optima[graph.hash], np.flatnonzero(self.task.mask(graph)[:, 0] & graph.taught)
        rows = torch.from_numpy(free).to(inline.device)
        inline, matters = inline[rows], matters[rows]
        label, weight, credit = (torch.as_tensor(part[free], dtype=inline.dtype, device=inline.device) for part in
                                 (best.inline, self._weight(best), self._credit(graph, rows, inline)))  # fmt: skip
        entropy = nn.functional.binary_cross_entropy_with_logits
        optima = (entropy(inline, label, reduction="none") * weight).sum()
        worth = entropy(matters, weight, reduction="sum")
        return optima, (torch.sigmoid(inline) * credit).sum(), worth, weight.sum()

    def _weight(self, best: Optimum) -> F64:
        """[N] in [0, 1]"""
        return np.clip(best.worse, 0.0, self.teaching.most) / self.teaching.most

    def _credit(self, graph: Graph, rows: Tensor, inline: Tensor) -> F64:
        """[N] logarithm of the price with an op inlined over that with it stored, the rest as drawn: the policy's
        draw where ops are taught, the optimum elsewhere."""
        drawn = self._optima[graph.hash].inline.copy()
        chance = torch.sigmoid(inline.detach()).cpu().numpy()
        drawn[rows.cpu().numpy()] = self._random.random(len(chance)) < chance
        flips, ops = flips_at(self.pricing(graph), drawn), rows.cpu().numpy()
        now = flips.decision[ops, 0] > 0
        change = np.log(flips.price(ops) / flips.cost)
        credit = np.zeros(graph.num_ops)
        kept = now == drawn[ops]  # what was refused teaches nothing
        credit[ops] = np.where(kept, np.where(now, -change, change), 0.0)
        return np.clip(credit, -LARGEST_CREDIT, LARGEST_CREDIT)

    # ---- answering

    def _observe(self, graphs: list[Graph]) -> tuple[Any, Tensor]:
        parts = [self._parts(graph) for graph in graphs]
        return batch([data for data, _ in parts]).to(self.device), torch.cat([c for _, c in parts]).to(self.device)

    def _parts(self, graph: Graph) -> tuple[Any, Tensor]:
        if graph.hash not in self._inputs:
            columns = torch.from_numpy(fusion_columns(graph, self.task))
            self._inputs[graph.hash] = graph_features(graph, self.task.machine), columns
        return self._inputs[graph.hash]

    def solve(self, problem: AssignProblem) -> None:
        with answering(problem.graph):
            inline, matters = self.averaged.eval()(*self._observe([problem.graph]))
        answers = self._answers(problem, inline.cpu().numpy())
        if not problem.open:
            problem.commit(answers[0])
            return
        price_rules(problem)
        if problem.open:
            problem.cost(np.stack(answers[: problem.remaining]))
        gain = (2.0 * torch.sigmoid(inline) - 1.0) * torch.sigmoid(matters)
        scan_motifs(problem, self.search.depth, gain.double().cpu().numpy() if self.search.ordered else None)

    def _answers(self, problem: AssignProblem, inline: Any) -> list[Decision]:
        """One of each threshold of the log-odds."""
        most = problem.task.heads[0].count - 1
        free = problem.task.mask(problem.graph)[:, 0]
        answers = []
        for threshold in self.search.thresholds:
            decision = problem.initial.copy()
            decision[free, 0] = np.where(inline[free] > threshold, most, 0)
            answers.append(decision)
        return answers
