"""`motif_policy`: a graph network says of every op whether to store or to inline it, and how much that matters; its
answers are further starts of a motif scan, whose classes of alike ops come in the order of what it expects of them.

Ours, of no paper; GO's idea (one inductive network decides for all ops at once) with the signals of `taught_fusion`.

Shape legend: N ops of all graphs of a batch, G graphs, D width.
"""

from typing import Any

import torch
from torch import Tensor, nn

from graphopt.algos.fusion_columns import COLUMNS
from graphopt.algos.taught_fusion import MotifSearch, TaughtFusion, Teaching
from graphopt.encoders.encoder import Encoder
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import AssignTask
from graphopt.utils.ranges import Share


class FusionNetwork(nn.Module):
    """[N] log-odds of inlining, [N] log-odds of mattering."""

    def __init__(self, encoder: Encoder, dropout: float) -> None:
        super().__init__()
        width = encoder.width
        self.encoder, self.dropout = encoder, nn.Dropout(dropout)
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, 2))

    def forward(self, data: Any, columns: Tensor) -> tuple[Tensor, Tensor]:
        h_ND, g_GD = self.encoder(data, columns)
        both = torch.cat([h_ND, torch.repeat_interleave(g_GD, data.num_ops, 0)], 1)
        inline, matters = self.head(self.dropout(both)).unbind(1)
        return inline, matters


class MotifPolicy(TaughtFusion):
    """yaml: conf/algo/motif_policy.yaml. dropout: before the last layers."""

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Encoder, seed: int, dropout: Share,
                 teaching: Teaching, search: MotifSearch) -> None:  # fmt: skip
        network = FusionNetwork(encoder, dropout)
        super().__init__(name=name, task=task, cost=cost, seed=seed, network=network, teaching=teaching, search=search)

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        """Inputs per op beside the encoder's: `fusion_columns`."""
        return len(COLUMNS)
