"""Ten small networks whose result is a loss, of ten families, without random numbers."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MODELS: dict[str, Callable[[], tuple[nn.Module, list[Tensor]]]] = {}


class Loss(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.inner(x).square().mean()
        return loss


def model(*shape: int) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Enters a class under its name, with an input of a shape."""

    def enter(made: type[nn.Module]) -> type[nn.Module]:
        def build() -> tuple[nn.Module, list[Tensor]]:
            torch.manual_seed(0)
            return Loss(made()), [torch.randn(shape)]

        MODELS[made.__name__] = build
        return made

    return enter


def mlp(width: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


def normed(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(given, made, 3, padding=1), nn.GroupNorm(4, made), nn.SiLU())


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        sum: Tensor = x + self.inner(x)
        return sum


@model(4, 3, 32, 32)
class UNet(nn.Module):
    def __init__(self, c: int = 16) -> None:
        super().__init__()
        self.first, self.down, self.up = normed(3, c), normed(c, 2 * c), normed(3 * c, c)
        self.last = nn.Conv2d(c, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = self.first(x)
        b = F.interpolate(self.down(F.avg_pool2d(a, 2)), scale_factor=2)
        out: Tensor = torch.tanh(self.last(self.up(torch.cat((b, a), 1)))) + x
        return out


@model(2, 3, 12, 12)
class ResNet(nn.Sequential):
    def __init__(self, c: int = 8) -> None:
        block = lambda: Residual(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(),  # noqa: E731
                                 nn.Conv2d(c, c, 3, padding=1), nn.GroupNorm(2, c))  # fmt: skip
        super().__init__(nn.Conv2d(3, c, 3, 2, padding=1), block(), nn.ReLU(), block(), nn.AvgPool2d(2))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        mixed: Tensor = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, w))
        return mixed


@model(2, 3, 16, 16)
class ViT(nn.Module):
    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, w, 4, 4)
        self.blocks = nn.Sequential(Residual(nn.LayerNorm(w), Attention(w)), Residual(nn.LayerNorm(w), mlp(w, 2 * w)))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1)
        return out


@model(2, 12)
class Bert(nn.Module):
    """Its input is turned into tokens by rank."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(12, w), nn.Parameter(torch.randn(12, w))
        self.attention, self.mlp = Residual(Attention(w)), Residual(mlp(w, 2 * w))
        self.norms = nn.ModuleList(nn.LayerNorm(w) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norms[0](self.attention(self.tokens(x.argsort(1)) + self.places))
        h = self.norms[1](self.mlp(h))
        return F.log_softmax(h @ self.tokens.weight.T, -1)


class Gated(nn.Module):
    def __init__(self, c: int, dilation: int) -> None:
        super().__init__()
        self.dilation, self.both, self.out = dilation, nn.Conv1d(c, 2 * c, 2, dilation=dilation), nn.Conv1d(c, c, 1)
        self.norm = nn.GroupNorm(2, c)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.both(F.pad(x, (self.dilation, 0))).chunk(2, 1)
        sum: Tensor = x + self.norm(self.out(torch.tanh(a) * torch.sigmoid(b)))
        return sum


@model(2, 1, 32)
class WaveNet(nn.Sequential):
    def __init__(self, c: int = 8) -> None:
        super().__init__(nn.Conv1d(1, c, 1), Gated(c, 1), Gated(c, 2), Gated(c, 4), nn.ReLU(), nn.Conv1d(c, 4, 1))


@model(2, 3, 16, 16)
class Depthwise(nn.Sequential):
    def __init__(self, c: int = 16) -> None:
        block = lambda: Residual(nn.Conv2d(c, c, 3, padding=1, groups=c), nn.GroupNorm(4, c), nn.Hardswish(),  # noqa: E731
                                 nn.Conv2d(c, c, 1), nn.GroupNorm(4, c))  # fmt: skip
        super().__init__(nn.Conv2d(3, c, 3, 2, padding=1), block(), block(), nn.AdaptiveAvgPool2d(1))


@model(3, 5, 8)
class GRU(nn.Module):
    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.given, self.state = nn.Linear(w, 3 * w), nn.Linear(w, 3 * w)

    def forward(self, x: Tensor) -> Tensor:
        h = x[:, 0] * 0
        for step in self.given(x).unbind(1):
            (r, z, n), (hr, hz, hn) = step.chunk(3, 1), self.state(h).chunk(3, 1)
            gate = torch.sigmoid(z + hz)
            h = (1 - gate) * torch.tanh(n + torch.sigmoid(r + hr) * hn) + gate * h
        return h


@model(2, 9, 8)
class Mixer(nn.Module):
    def __init__(self, n: int = 9, w: int = 8) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(w) for _ in range(4))
        self.tokens, self.channels = (nn.ModuleList(mlp(k, 2 * k) for _ in range(2)) for k in (n, w))

    def forward(self, x: Tensor) -> Tensor:
        for i in range(2):
            x = x + self.tokens[i](self.norms[2 * i](x).transpose(1, 2)).transpose(1, 2)
            x = x + self.channels[i](self.norms[2 * i + 1](x))
        return x


@model(12, 8)
class MoE(nn.Module):
    """The best two of four experts, each on all rows."""

    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(w, 4), nn.ModuleList(mlp(w, 2 * w) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.gate(x).softmax(-1).topk(2)
        every = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = every.gather(1, which.unsqueeze(-1).expand(-1, -1, x.shape[1]))
        out: Tensor = x + (chosen * (best / best.sum(-1, keepdim=True)).unsqueeze(-1)).sum(1)
        return out


@model(10, 8)
class GraphNetwork(nn.Module):
    def __init__(self, w: int = 8) -> None:
        super().__init__()
        self.edges, self.nodes = (nn.ModuleList(nn.Linear(2 * w, w) for _ in range(2)) for _ in range(2))
        self.register_buffer("ends", torch.randint(0, 10, (2, 24)))

    def forward(self, x: Tensor) -> Tensor:
        for edge, node in zip(self.edges, self.nodes, strict=True):
            sent = F.silu(edge(torch.cat((x[self.ends[0]], x[self.ends[1]]), 1)))  # type: ignore[index]
            x = x + torch.tanh(node(torch.cat((x, torch.zeros_like(x).index_add(0, self.ends[1], sent)), 1)))  # type: ignore[arg-type]
        return x
