"""Segment-recurrent attention over ops in topological order (Transformer-XL without positional encoding).

Shape legend: N ops of all graphs of a batch, P segments, S ops per segment, D width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Segments:
    """How the ops of a batch of graphs are cut into segments; a segment never spans two graphs."""

    row: Tensor  # [N] position of each op among the P x S places
    filled: Tensor  # [P, S] bool
    before: Tensor  # [P] previous segment of the same graph, or the segment itself
    first: Tensor  # [P] bool: there is none

    @staticmethod
    def of(num_ops: Tensor, size: int) -> "Segments":
        """Cuts graphs of `num_ops` [B] ops into segments of at most `size`."""
        counts = (num_ops + size - 1) // size
        total = int(counts.sum())
        start = torch.cumsum(counts, 0) - counts
        offset = torch.arange(int(num_ops.sum()), device=num_ops.device)
        offset = offset - torch.repeat_interleave(torch.cumsum(num_ops, 0) - num_ops, num_ops)
        row = torch.repeat_interleave(start * size, num_ops) + offset
        filled = torch.zeros(total * size, dtype=torch.bool, device=num_ops.device)
        filled[row] = True
        first = torch.zeros(total, dtype=torch.bool, device=num_ops.device)
        first[start] = True
        before = torch.arange(total, device=num_ops.device) - (~first).long()
        return Segments(row, filled.view(total, size), before, first)


class SegmentAttention(nn.Module):
    """One layer: an op attends to its own segment and to the cached, gradient-free states of the one before.

    Caching layer inputs without gradient makes the recurrence exact for all segments at once: no loop over segments.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"attention width {width} is not a multiple of heads {heads}; choose e.g. heads=4")
        self.heads = heads
        self.norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x_ND: Tensor, segments: Segments) -> Tensor:
        x_ND = x_ND + self.out(self._attend(self.norm(x_ND), segments))
        out: Tensor = x_ND + self.feed(self.feed_norm(x_ND))
        return out

    def _attend(self, x_ND: Tensor, segments: Segments) -> Tensor:
        places, size = segments.filled.shape
        x_PSD = x_ND.new_zeros(places * size, x_ND.shape[1]).index_copy(0, segments.row, x_ND).view(places, size, -1)
        seen_PKD = torch.cat([x_PSD.detach()[segments.before], x_PSD], 1)
        allowed_PK = torch.cat([segments.filled[segments.before] & ~segments.first[:, None], segments.filled], 1)
        key, value = self.key_value(seen_PKD).chunk(2, -1)
        mixed = nn.functional.scaled_dot_product_attention(
            self._split(self.query(x_PSD)), self._split(key), self._split(value), attn_mask=allowed_PK[:, None, None]
        )
        return mixed.transpose(1, 2).reshape(places * size, -1)[segments.row]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)
