"""`sharding_policy`: `sharding_search` in which a small network says which region to solve next. It reads how the node
tables, edge tables and memory prices of candidates stand to the bound, in columns without units
(`graphopt.sharding.region_choice`), so that what other instances taught it holds for a new one.

Ours, of no paper. That a learned policy chooses neighbourhoods is after Song, Lanka, Yue and Dilkina, "A General Large
Neighborhood Search Framework for Solving Integer Linear Programs" (NeurIPS 2020): theirs predicts a partition of the
variables, ours values regions that were grown. It is taught by regions that searches on training instances have solved,
drawn evenly: the loss is the cross entropy of the share of the gap that each has gained.

Shape legend: R regions, F columns, H hidden units.
"""

from dataclasses import dataclass, replace
from itertools import count
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.learner import Learner
from graphopt.core.graph import F64, Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask
from graphopt.search.sharding.sharding_search import ShardingSearch
from graphopt.sharding.hunt import Hunt
from graphopt.sharding.instance import tables_of
from graphopt.sharding.reducing import reduced
from graphopt.sharding.region_choice import COLUMNS, TINY, ShareNetwork
from graphopt.tasks.sharding_task import Sharding
from graphopt.utils.progress import Bar
from graphopt.utils.ranges import Between, Count, NotNegative, Share

MOST_WEIGHT = 10.0  # of a region: the root of its gap in mean gaps of a variable
REGIONS = 4096  # of a training step


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """looks: length of the search on each training instance, in looks at its clock (64 regions, or a step of prices,
    between two); regions: of each that are kept, at most; unpriced: share of them solved as if memory had no price."""

    looks: Count
    regions: Count
    unpriced: Share


class ShardingPolicy(Learner):
    """yaml: conf/algo/sharding_policy.yaml. hidden: units of the network."""

    accepts = (Sharding,)
    network_settings = frozenset({"hidden"})

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int,
                 hidden: Annotated[int, Between(1, 256)], rate: NotNegative, lessons: Lessons,
                 search: ShardingSearch) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.rate, self.lessons, self.search = rate, lessons, search
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)  # before training, gaps alone count
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(nn.Linear(len(COLUMNS), hidden), nn.ReLU(), last)
        self._regions: dict[str, Tensor] = {}  # [R, F+2] of each training instance

    def configure_optimizers(self) -> Any:
        steps = max(2, int(self.trainer.estimated_stepping_batches))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    # ---- learning

    def gather(self, graphs: list[Graph]) -> None:  # type: ignore[override]
        """Solves regions of every training instance, drawn evenly. What that takes is seconds, no evaluations."""
        with Bar("solve regions", len(graphs)) as bar:
            for graph in graphs:
                self._regions[graph.hash] = torch.from_numpy(self._solved(graph).astype(np.float32))
                bar.step(graph.name)

    def _solved(self, graph: Graph) -> F64:
        """[R, F+2] of a search that is as long on any machine."""
        tables, looks = tables_of(graph), count()
        settings = replace(self.search.hunt, candidates=1, unpriced=self.lessons.unpriced)
        hunt = Hunt(reduced(tables), tables, self.search.ascents, settings,
                    np.random.default_rng([self.val_seed, int(graph.hash[:8], 16)]),
                    lambda: next(looks) / self.lessons.looks, samples=self.lessons.regions)  # fmt: skip
        hunt.start(self.task.initial(graph)[:, 0].astype(np.int64))
        hunt.run(1, lambda: None)
        return hunt.samples

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        rows = [self._drawn(self._regions[graph.hash]) for graph in graphs]
        loss = self._loss(torch.cat(rows).to(self.device))
        self.log("losses/share", loss.detach())
        return loss

    def _drawn(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return rows
        return rows[torch.from_numpy(self._random.integers(len(rows), size=REGIONS))]

    def _loss(self, rows: Tensor) -> Tensor:
        """Cross entropy of the share of the gap that was gained; what could gain nothing does not count."""
        columns, gap, share = rows[:, : len(COLUMNS)], rows[:, -2], rows[:, -1]
        weight = torch.where(gap > TINY, gap.clamp(0.0, MOST_WEIGHT**2).sqrt(), 0.0)
        losses = nn.functional.binary_cross_entropy_with_logits(self.network(columns)[:, 0], share, reduction="none")
        loss: Tensor = (losses * weight).sum() / weight.sum().clamp(min=1e-9)
        return loss

    # ---- answering

    def solve(self, problem: AssignProblem) -> None:
        self.search.run(problem, self.as_numbers())

    def as_numbers(self) -> ShareNetwork:
        """The network for compiled code."""
        first, bias, second, last = (part.detach().cpu().double().numpy() for part in self.network.parameters())
        return ShareNetwork(np.ascontiguousarray(first.T), bias, second[0].copy(), float(last[0]))
