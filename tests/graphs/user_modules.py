"""Modules as users bring them, small: what Hugging Face's and timm's models do, and others."""

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass
class Output(OrderedDict[str, Any]):
    """As Hugging Face's `ModelOutput`: a data class and a dict, unknown to torch; what is None is no key."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    cache: Any = None

    def __post_init__(self) -> None:
        for field in fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)


class Cache:
    """A plain object with tensors inside, and a circle."""

    def __init__(self, *states: Tensor) -> None:
        self.states, self.itself = list(states), self


class LanguageModel(nn.Module):
    """Keyword arguments, optional ones, a loss where labels are given, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense, self.norm = nn.Embedding(20, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        cache: Cache | None = None,
        use_cache: bool = False,
    ) -> Output:
        if input_ids is None:
            raise ValueError("you have to specify input_ids")
        x = self.table(input_ids)
        if attention_mask is not None:
            mask = (1.0 - attention_mask[:, None, :].to(x.dtype)) * -1e4
            x = (x @ x.transpose(1, 2) + mask).softmax(-1) @ x
        if cache is not None:
            x = x + cache.states[0]
        x = self.norm(self.dense(x))
        logits = self.head(x)
        loss = None if labels is None else F.cross_entropy(logits.view(-1, 20), labels.view(-1))
        return Output(loss, logits, Cache(x, x * 2) if use_cache else None)


def windows(x: Tensor, side: int) -> Tensor:
    """(batch, height, width, channels) cut into squares."""
    b, h, w, c = x.shape
    return x.view(b, h // side, side, w // side, side, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, side**2, c)


def whole(parts: Tensor, side: int, height: int, width: int) -> Tensor:
    c = parts.shape[-1]
    x = parts.view(-1, height // side, width // side, side, side, c).permute(0, 1, 3, 2, 4, 5)
    return x.contiguous().view(-1, height, width, c)


class WindowAttention(nn.Module):
    """Attention within shifted windows with a relative position bias."""

    def __init__(self, width: int, side: int, shift: int) -> None:
        super().__init__()
        self.side, self.shift, self.norm = side, shift, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn((2 * side - 1) ** 2, 2))
        place = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = (place[:, :, None] - place[:, None]).permute(1, 2, 0).contiguous() + side - 1
        self.register_buffer("index", apart[..., 0] * (2 * side - 1) + apart[..., 1])

    def forward(self, x: Tensor) -> Tensor:
        _, height, width, c = x.shape
        parts = windows(torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2)), self.side)
        q, k, v = self.qkv(parts).reshape(-1, self.side**2, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.bias[self.index.view(-1)].view(self.side**2, self.side**2, 2).permute(2, 0, 1).contiguous()
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias[None]).transpose(1, 2).reshape(parts.shape)
        return torch.roll(whole(self.out(y), self.side, height, width), (self.shift, self.shift), (1, 2))


class Swin(nn.Module):
    """Patches, shifted windows, patch merging by strided slices. Its draws are written in place, as timm's are."""

    def __init__(self, keep: float = 1.0) -> None:
        super().__init__()
        self.keep, self.patches, self.norm = keep, nn.Conv2d(3, 8, 2, 2), nn.LayerNorm(8)
        self.first, self.second = WindowAttention(8, 4, 0), WindowAttention(8, 4, 2)
        self.mlp, self.merge = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.Linear(32, 5)

    def forward(self, image: Tensor) -> Tensor:
        x = self.norm(self.patches(image).permute(0, 2, 3, 1))
        for block in (self.first, self.second):
            x = x + block(x) * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(self.keep).div_(self.keep)
            b, h, w, c = x.shape
            x = x.reshape(b, -1, c)
            x = (x + self.mlp(x)).reshape(b, h, w, c)
        corners = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.merge(torch.cat(corners, -1)).mean((1, 2))


class Experts(nn.Module):
    """A mixture of experts; `routing` picks rows for each of them in one of the usual ways."""

    def __init__(self, routing: str) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.routing = getattr(self, routing)

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
        result = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            result = self.routing(x, result, weight, chosen == k, expert)
        return result

    def where(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        row, slot = torch.where(own)
        return result.index_add(0, row, expert(x[row]) * weight[row, slot, None])

    def mask(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        result[own.any(-1)] += expert(x[own.any(-1)])
        return result

    def item(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        return result + expert(x) if own.sum().item() else result

    def branch(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        return result + expert(x) if own.any() else result

    def unique(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        return result + expert(x[torch.unique(own.int())])

    def dense(self, x: Tensor, result: Tensor, weight: Tensor, own: Tensor, expert: nn.Module) -> Tensor:
        return result + expert(x) * (weight * own).sum(-1, keepdim=True)


class Fourier(nn.Module):
    """A convolution in frequencies, with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=16)


class Rotary(nn.Module):
    """Rotary embeddings by complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(8, 8)
        self.register_buffer("turns", torch.polar(torch.ones(6, 4), torch.arange(24.0).view(6, 4)))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(self.dense(x).view(2, 6, 4, 2))
        return torch.view_as_real(pairs * self.turns).flatten(2)


class ComplexDense(nn.Module):
    """All parts of complex arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 4, dtype=torch.complex64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.dense(x)
        return y, y.abs() + y.real * y.conj().imag + y.angle()


class Layers(nn.Module):
    """What keeps state or is wrapped: statistics updated in place, normalised weights, recomputation, a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.dense = nn.utils.parametrizations.weight_norm(nn.Linear(16, 6))
        self.scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.Tanh()))
        self.register_buffer("count", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(self.instance(self.norm(self.conv(x))), size=(2, 2), mode="bilinear")
        x = torch.utils.checkpoint.checkpoint(self.dense, x.flatten(1), use_reentrant=False)
        self.count.mul_(0.9).add_(x.detach().mean(0))
        return self.scripted(x) + torch.einsum("bi,bj->bij", x, self.count[None]).sum(1)
