"""Programs that take some ten to some hundred microseconds on a large GPU: optimisers, losses and blocks, written
after their papers' formulas. Nothing was designed on them.

`python benchmarks/gpu_programs.py FOLDER [--device cpu]` captures what torch.compile makes of them into program files,
which any machine can read. On a machine with a GPU then

    python run.py experiment=hardware_gpu dataset.path=FOLDER
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphopt.core.utils.registry import option
from graphopt.graphs.readers.pytorch.program_file import unpacked_program
from graphopt.run.config.construct import construct

Program = tuple[Any, list[Tensor]]
PROGRAMS: dict[str, Callable[[], Program]] = {}
SHAPES = [(1024, 1024), (1024,), (4096, 256), (128, 64, 3, 3)] * 3


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def random(*shape: int, learned: bool = False) -> Tensor:
    return torch.randn(*shape).requires_grad_(learned)


@program
def adan() -> Program:
    """Xie et al. 2022, with decoupled decay."""
    parts = [torch.rand(*shape) * 0.1 + 0.01 for _ in range(6) for shape in SHAPES]

    def step(t: Tensor, *flat: Tensor) -> Tensor:
        groups = [flat[i * len(SHAPES) : (i + 1) * len(SHAPES)] for i in range(6)]
        for p, g, before, m, v, n in zip(*groups):
            change = g - before
            m.mul_(0.98).add_(g, alpha=0.02)
            v.mul_(0.92).add_(change, alpha=0.08)
            n.mul_(0.99).add_((g + 0.92 * change) ** 2, alpha=0.01)
            root = (n / (1 - 0.99**t)).sqrt() + 1e-8
            p.copy_((p - 1e-3 * (m / (1 - 0.98**t) + 0.92 * v / (1 - 0.92**t)) / root) / (1 + 1e-5))
            before.copy_(g)
        return t + 1

    return step, [torch.tensor(7.0), *parts]


@program
def clipped_adamw() -> Program:
    """AdamW after the norm of all gradients is clipped."""
    parts = [torch.rand(*shape) * 0.1 + 0.01 for _ in range(4) for shape in SHAPES]

    def step(t: Tensor, *flat: Tensor) -> Tensor:
        groups = [flat[i * len(SHAPES) : (i + 1) * len(SHAPES)] for i in range(4)]
        norm = sum(((g * g).sum() for g in groups[1]), start=torch.zeros_like(t)).sqrt()
        scale = (1.0 / (norm + 1e-6)).clamp(max=1.0)
        for p, g, m, v in zip(*groups):
            h = g * scale
            m.mul_(0.9).add_(h, alpha=0.1)
            v.mul_(0.999).add_(h * h, alpha=0.001)
            p.mul_(1 - 1e-5).sub_(1e-3 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8))
        return t + 1

    return step, [torch.tensor(7.0), *parts]


@program
def soft_capped_loss() -> Program:
    """Cross-entropy of capped scores, smoothed, with the z-loss of PaLM."""

    def loss(x: Tensor, target: Tensor) -> Tensor:
        scores = 30.0 * torch.tanh(x.float() / 30.0)
        z = torch.logsumexp(scores, -1)
        right = scores.gather(-1, target[:, None])[:, 0]
        return (z - 0.9 * right - 0.1 * scores.mean(-1) + 1e-4 * z * z).mean()

    return loss, [torch.randn(4096, 8192).bfloat16().requires_grad_(), torch.randint(8192, (4096,))]


@program
def focal_dice() -> Program:
    """Focal and Dice loss of a segmentation."""

    def loss(x: Tensor, mask: Tensor) -> Tensor:
        p = torch.sigmoid(x)
        cross = F.binary_cross_entropy_with_logits(x, mask, reduction="none")
        focal = ((0.25 * mask + 0.75 * (1 - mask)) * (p * (1 - mask) + (1 - p) * mask) ** 2 * cross).mean()
        both = (p * mask).sum((2, 3))
        return focal + (1 - (2 * both + 1) / (p.sum((2, 3)) + mask.sum((2, 3)) + 1)).mean()

    return loss, [random(16, 8, 256, 256, learned=True), (torch.rand(16, 8, 256, 256) > 0.7).float()]


@program
def rotary_norm() -> Program:
    """RMSNorm of queries and keys, rotary embedding, a gate."""

    def normal(x: Tensor, scale: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * scale

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def block(q: Tensor, k: Tensor, a: Tensor, b: Tensor, angle: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = torch.cos(angle), torch.sin(angle)
        return (rotated(normal(q, a), cos, sin) * torch.sigmoid(gate), rotated(normal(k, b), cos, sin))

    return block, [random(4, 16, 1024, 128, learned=True), random(4, 16, 1024, 128, learned=True),
                   random(128, learned=True), random(128, learned=True), random(1024, 64),
                   random(4, 16, 1024, 1, learned=True)]  # fmt: skip


@program
def film_block() -> Program:
    """Group norm, a modulation by features, SiLU, a residual, and statistics of the result."""

    def block(x: Tensor, scale: Tensor, shift: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        y = F.silu(F.group_norm(x, 32) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]) + residual
        return y, y.var((2, 3))

    return block, [random(8, 256, 64, 64, learned=True), random(8, 256, learned=True), random(8, 256, learned=True),
                   random(8, 256, 64, 64)]  # fmt: skip


@program
def biased_attention() -> Program:
    """Attention from its parts, with biases by distance and a temperature for each head."""

    def attend(q: Tensor, k: Tensor, v: Tensor, slope: Tensor, heat: Tensor) -> Tensor:
        n = q.shape[2]
        place = torch.arange(n, device=q.device)
        bias = -slope[:, None, None] * (place[:, None] - place[None, :]).abs()
        scores = (q @ k.transpose(-1, -2)).float() * heat[:, None, None] + bias
        scores = scores.masked_fill(place[None, :] > place[:, None], float("-inf"))
        return scores.softmax(-1).to(q.dtype) @ v

    half = [torch.randn(4, 8, 1024, 64).bfloat16().requires_grad_() for _ in range(3)]
    return attend, [*half, torch.rand(8), torch.rand(8).requires_grad_()]


@program
def edge_messages() -> Program:
    """Messages along edges, gated by distance, averaged at their ends."""

    def layer(x: Tensor, place: Tensor, source: Tensor, end: Tensor, w: Tensor) -> Tensor:
        away = place[source] - place[end]
        near = torch.exp(-0.5 * (away * away).sum(-1, keepdim=True))
        message = F.gelu((x[source] - x[end]) * w) * near
        total = torch.zeros_like(x).index_add(0, end, message)
        weight = torch.zeros_like(x[:, :1]).index_add(0, end, near)
        return x + total / (weight + 1e-3)

    nodes, edges = 20_000, 160_000
    return layer, [random(nodes, 64, learned=True), random(nodes, 3), torch.randint(nodes, (edges,)),
                   torch.randint(nodes, (edges,)), random(64, learned=True)]  # fmt: skip


@program
def mixture_density() -> Program:
    """Negative log-likelihood of a mixture of Gaussians (Bishop 1994)."""

    def loss(logits: Tensor, mean: Tensor, spread: Tensor, y: Tensor) -> Tensor:
        scale = F.softplus(spread) + 1e-3
        inside = -0.5 * ((y[:, None] - mean) / scale) ** 2 - torch.log(scale) - 0.9189
        return -torch.logsumexp(F.log_softmax(logits, -1) + inside, -1).mean()

    return loss, [*(random(131_072, 32, learned=True) for _ in range(3)), random(131_072)]


@program
def hard_contrast() -> Program:
    """A contrastive loss that weighs hard negatives (Robinson et al. 2021), of scores."""

    def loss(scores: Tensor) -> Tensor:
        s = scores / 0.5
        right = torch.diagonal(s)
        place = torch.arange(len(s), device=s.device)
        others = torch.exp(s) * (place[:, None] != place[None, :])
        weight = others / others.mean(1, keepdim=True)
        hard = (weight * others).sum(1)
        return (torch.log(torch.exp(right) + hard) - right).mean()

    return loss, [random(4096, 4096, learned=True)]


@program
def volume_rays() -> Program:
    """Colours along rays (Mildenhall et al. 2020)."""

    def render(density: Tensor, colour: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        inside = F.softplus(density) * length
        through = torch.exp(-(inside.cumsum(1) - inside))
        weight = (1 - torch.exp(-inside)) * through
        return (weight[..., None] * torch.sigmoid(colour)).sum(1), (weight * weight).sum(1)

    return render, [random(32_768, 96, learned=True), random(32_768, 96, 3, learned=True), torch.rand(32_768, 96)]


@program
def colour_jitter() -> Program:
    """Brightness, contrast, saturation, a gamma curve and normalisation of images."""

    def jitter(x: Tensor, b: Tensor, c: Tensor, s: Tensor) -> Tensor:
        grey = torch.tensor([0.299, 0.587, 0.114], device=x.device)[:, None, None]
        x = (x * b).clamp(0, 1)
        x = (c * x + (1 - c) * (x * grey).sum(1, keepdim=True).mean((2, 3), keepdim=True)).clamp(0, 1)
        x = (s * x + (1 - s) * (x * grey).sum(1, keepdim=True)).clamp(0, 1) ** 0.9
        return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-5)

    return jitter, [torch.rand(64, 3, 224, 224), *(torch.rand(64, 1, 1, 1) + 0.5 for _ in range(3))]


@program
def shallow_water() -> Program:
    """One step of the shallow-water equations on a torus."""

    def step(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def dx(a: Tensor) -> Tensor:
            return (torch.roll(a, -1, 1) - torch.roll(a, 1, 1)) * 0.5

        def dy(a: Tensor) -> Tensor:
            return (torch.roll(a, -1, 0) - torch.roll(a, 1, 0)) * 0.5

        depth, speed = 1 + 0.1 * h, torch.sqrt(u * u + v * v + 1e-6)
        drag = 0.002 * speed / depth
        return (h - 0.01 * (dx(depth * u) + dy(depth * v)),
                u - 0.01 * (u * dx(u) + v * dy(u) + 9.8 * dx(h) - 0.1 * v + drag * u),
                v - 0.01 * (u * dx(v) + v * dy(v) + 9.8 * dy(h) + 0.1 * u + drag * v))  # fmt: skip

    return step, [random(2048, 2048) for _ in range(3)]


@program
def swiglu_layer() -> Program:
    """A layer's feed-forward part: RMSNorm, SwiGLU, a scaled residual."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.residual = nn.Parameter(torch.ones(1024)), nn.Parameter(torch.full((1024,), 0.1))
            self.gate, self.up = nn.Linear(1024, 2816, bias=False), nn.Linear(1024, 2816, bias=False)
            self.down = nn.Linear(2816, 1024, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.scale
            return x + self.residual * self.down(F.silu(self.gate(y)) * self.up(y))

    return Layer(), [random(2048, 1024, learned=True)]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    how = {"source": __file__, "graphs": "compiled", "device": args.device, "only": args.only}
    for graph in construct(option("dataset", "lowered") | how, "dataset").graphs("test"):
        assert isinstance(graph.program, bytes)
        (args.folder / f"{graph.name}.program.json.gz").write_bytes(graph.program)
        program = unpacked_program(graph.program, graph.name)
        print(f"{graph.name}: {graph.num_ops} ops, {len(program.choices or {})} with a choice, {len(graph.program)} B")


if __name__ == "__main__":
    main()
