"""Blocks that several architectures share. Shape legend: B batch, S sequence, D width, H heads, C channels."""

# mypy: disable-error-code="no-any-return, no-untyped-call"

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    """Convolution, batch norm, and an activation if one is given; padding keeps the size at stride 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int] = 1, stride: int = 1, groups: int = 1,
                 activation: type[nn.Module] | None = nn.ReLU) -> None:  # fmt: skip
        size = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (size[0] // 2, size[1] // 2)
        layers: list[nn.Module] = [nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=False)]
        layers.append(nn.BatchNorm2d(outputs))
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)


class LSTMCell(nn.Module):
    """One step of a long short-term memory: (x [B, I], (h, c) [B, D]) -> (h, c). Gates by two matrix products."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.from_input, self.from_state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        gate_in, gate_forget, update, gate_out = (self.from_input(x) + self.from_state(h)).chunk(4, -1)
        c = torch.sigmoid(gate_forget) * c + torch.sigmoid(gate_in) * torch.tanh(update)
        return torch.sigmoid(gate_out) * torch.tanh(c), c


class MLP(nn.Sequential):
    """Linear layers of the given widths with ReLU between, and a layer norm at the end if asked."""

    def __init__(self, widths: Sequence[int], *, norm: bool = False) -> None:
        layers: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(pairwise(widths)):
            layers += [nn.ReLU()] * (i > 0) + [nn.Linear(inputs, outputs)]
        super().__init__(*layers, *([nn.LayerNorm(widths[-1])] if norm else []))


class Attention(nn.Module):
    """Multi-head attention of queries [B, S, D] over a memory [B, M, D]; the mask is added to the scores."""

    def __init__(self, width: int, heads: int, *, bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        weights = (scores if mask is None else scores + mask).softmax(-1)
        return self.join(weights @ v)

    def split(self, x: Tensor) -> Tensor:
        """[B, S, D] -> [B, H, S, D / H]"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def join(self, x: Tensor) -> Tensor:
        return self.out(x.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with GELU or ReLU between."""

    def __init__(self, width: int, inner: int, *, gelu: bool = True) -> None:
        super().__init__()
        self.up, self.down, self.gelu = nn.Linear(width, inner), nn.Linear(inner, width), gelu

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        return self.down(F.gelu(inner) if self.gelu else F.relu(inner))


def causal_mask(queries: int, keys: int) -> Tensor:
    """[Q, K] 0 where a query may look (keys end where queries end), -inf elsewhere."""
    ahead = torch.arange(keys) - (keys - queries) > torch.arange(queries)[:, None]
    return torch.zeros(queries, keys).masked_fill(ahead, float("-inf"))
