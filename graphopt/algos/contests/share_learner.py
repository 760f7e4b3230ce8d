"""What learners share that value steps of a search: a small network says which share of a scale a step will gain, and
is taught by steps of searches on training graphs. The loss is the cross entropy of the share, by the root of the scale;
steps are drawn evenly from graphs.

Shape legend: R steps, F columns, H hidden units.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from graphopt.algos.learner import Learner
from graphopt.core.graph import F64, Graph
from graphopt.problems.cost_model import CostModel
from graphopt.utils.progress import Bar
from graphopt.utils.share_network import ShareNetwork

TINY = 1e-6  # of a scale: less is rounding
MOST_WEIGHT = 10.0  # of a step: the root of its scale


class ShareLearner(Learner):
    """columns: that the network reads; hidden: its units. Untrained it says that all steps gain the same share."""

    network_settings = frozenset({"hidden"})
    steps_of_graph: ClassVar[int] = 4096  # in a training step

    def __init__(self, *, name: str, task: Any, cost: CostModel, seed: int, columns: int, hidden: int,
                 rate: float) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.rate = rate
        last = nn.Linear(hidden, 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.network = nn.Sequential(nn.Linear(columns, hidden), nn.ReLU(), last)
        self._rows: dict[str, Tensor] = {}  # [R, F+2] of each training graph

    def configure_optimizers(self) -> Any:
        steps = max(2, int(self.trainer.estimated_stepping_batches))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @abstractmethod
    def solved(self, graph: Graph) -> F64:
        """[R, F+2] steps of a search that is as long on any machine: columns, scale, share of it that was gained."""

    def prepare_training(self, graphs: Sequence[Graph]) -> None:
        """What that takes is seconds, no evaluations."""
        with Bar("search training graphs", len(graphs)) as bar:
            for graph in graphs:
                self._rows[graph.hash] = torch.from_numpy(self.solved(graph).astype(np.float32))
                bar.step(graph.name)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        rows = [self._drawn(self._rows[graph.hash]) for graph in graphs]
        loss = self.loss(torch.cat(rows).to(self.device))
        self.log("losses/share", loss.detach())
        return loss

    def _drawn(self, rows: Tensor) -> Tensor:
        if not len(rows):
            return rows
        return rows[torch.from_numpy(self._random.integers(len(rows), size=self.steps_of_graph))]

    def loss(self, rows: Tensor) -> Tensor:
        """Of steps [R, F+2]; what could gain nothing does not count."""
        columns, scale, share = rows[:, :-2], rows[:, -2], rows[:, -1]
        weight = torch.where(scale > TINY, scale.clamp(0.0, MOST_WEIGHT**2).sqrt(), 0.0)
        losses = nn.functional.binary_cross_entropy_with_logits(self.network(columns)[:, 0], share, reduction="none")
        loss: Tensor = (losses * weight).sum() / weight.sum().clamp(min=1e-9)
        return loss

    def as_numbers(self) -> ShareNetwork:
        """The network for compiled code."""
        first, bias, second, last = (part.detach().cpu().double().numpy() for part in self.network.parameters())
        return ShareNetwork(np.ascontiguousarray(first.T), bias, second[0].copy(), float(last[0]))
