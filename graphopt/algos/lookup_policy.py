"""`lookup_policy`: what `motif_policy` does, by a table instead of a network: one entry for each operator, whether a
contraction reads the op, how many ops read it, and what the two rules say. The peer that shows what a network adds.

Shape legend: N ops.
"""

from typing import Any

import torch
from torch import Tensor, nn

from graphopt.algos.fusion_columns import COLUMNS
from graphopt.algos.taught_fusion import MotifSearch, TaughtFusion, Teaching
from graphopt.core.operators import OPERATORS
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask

FLAGS = tuple(COLUMNS.index(name) for name in ("read_by_contraction", "inline_all", "xla_priority"))
READERS = COLUMNS.index("readers")
FAN_OUT = (0.25, 0.75, 0.9)  # of `readers`: none, one, two, more


class FusionTable(nn.Module):
    """Log-odds of inlining and of mattering of every combination, learned like any other weights."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Embedding(len(OPERATORS) * (len(FAN_OUT) + 1) * 2 ** len(FLAGS), 2)
        nn.init.zeros_(self.entry.weight)

    def forward(self, data: Any, columns: Tensor) -> tuple[Tensor, Tensor]:
        inline, matters = self.entry(self.key(data.kind, columns)).unbind(1)
        return inline, matters

    def key(self, kind: Tensor, columns: Tensor) -> Tensor:
        """[N]"""
        found = kind * (len(FAN_OUT) + 1)
        found = found + torch.bucketize(columns[:, READERS].contiguous(), torch.tensor(FAN_OUT, device=columns.device))
        for flag in FLAGS:
            found = found * 2 + (columns[:, flag] > 0.5).long()
        return found


class LookupPolicy(TaughtFusion):
    """yaml: conf/algo/lookup_policy.yaml."""

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, seed: int, teaching: Teaching,
                 search: MotifSearch) -> None:  # fmt: skip
        network = FusionTable()
        super().__init__(name=name, task=task, cost=cost, seed=seed, network=network, teaching=teaching, search=search)
