"""Optimisers, losses and blocks that no policy of ours has learned from, and none was designed on.

`python run.py experiment=hardware_fusion dataset.source=benchmarks/unseen_programs.py dataset.graphs=compiled`

Every one is written after its paper's formula, and takes some milliseconds a run on one core.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = tuple[Any, list[Tensor]]
PROGRAMS: dict[str, Callable[[], Program]] = {}
SHAPES = [(512, 768), (768,), (1536, 256), (64, 128, 3, 3)] * 2


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def random(*shape: int, learned: bool = False) -> Tensor:
    return torch.randn(*shape).requires_grad_(learned)


def in_place(update: Callable[..., tuple[Tensor, ...]], states: int) -> Program:
    """An optimiser's step over all parameters; update(t, parameter, gradient, states...) gives what replaces them."""
    parts = [torch.rand(*shape) * 0.1 + 0.01 for _ in range(2 + states) for shape in SHAPES]

    def step(t: Tensor, *flat: Tensor) -> Tensor:
        groups = [flat[i * len(SHAPES) : (i + 1) * len(SHAPES)] for i in range(2 + states)]
        for parameter, gradient, *kept in zip(*groups):
            for old, value in zip((parameter, *kept), update(t, parameter, gradient, *kept)):
                old.copy_(value)
        return t + 1

    return step, [torch.tensor(7.0), *parts]


# ---- optimisers


@program
def lion() -> Program:
    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        return p - 1e-4 * (torch.sign(0.9 * m + 0.1 * g) + 0.01 * p), 0.99 * m + 0.01 * g

    return in_place(update, 1)


@program
def lamb() -> Program:
    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        r = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + 0.01 * p
        return p - 1e-3 * p.norm() / (r.norm() + 1e-6) * r, m, v

    return in_place(update, 2)


@program
def adafactor() -> Program:
    def update(t: Tensor, p: Tensor, g: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        decay = 1 - t**-0.8
        square = g * g + 1e-30
        v = decay * v + (1 - decay) * square
        scaled = g * torch.rsqrt(v)
        return p - 1e-3 * scaled / torch.clamp(scaled.pow(2).mean().sqrt(), min=1.0), v

    return in_place(update, 1)


@program
def nadam() -> Program:
    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        now, after = 0.9 * (1 - 0.5 * 0.96 ** (t * 0.004)), 0.9 * (1 - 0.5 * 0.96 ** ((t + 1) * 0.004))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = after * m / (1 - after**t) + (1 - now) * g / (1 - now**t)
        return p - 1e-3 * step / ((v / (1 - 0.999**t)).sqrt() + 1e-8), m, v

    return in_place(update, 2)


@program
def adabelief() -> Program:
    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        m = 0.9 * m + 0.1 * g
        s = 0.999 * s + 0.001 * (g - m).square() + 1e-16
        return p - 1e-3 * (m / (1 - 0.9**t)) / ((s / (1 - 0.999**t)).sqrt() + 1e-16), m, s

    return in_place(update, 2)


# ---- losses


@program
def contrastive() -> Program:
    """InfoNCE of two views, both ways."""

    def loss(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
        logits, own = scale.exp() * a @ b.T, torch.arange(a.shape[0])
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    return loss, [random(768, 128, learned=True), random(768, 128, learned=True), random(1, learned=True)]


@program
def distillation() -> Program:
    def loss(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
        soft = F.kl_div(F.log_softmax(student / 4, 1), F.log_softmax(teacher / 4, 1), log_target=True)
        return 16 * soft + F.cross_entropy(student, labels, label_smoothing=0.1)

    return loss, [random(512, 4096, learned=True), random(512, 4096), torch.randint(0, 4096, (512,))]


@program
def evidence_bound() -> Program:
    """Of a variational auto-encoder with a Gaussian mixture as its decoder."""

    def loss(x: Tensor, mean: Tensor, logs: Tensor, weights: Tensor, centres: Tensor, widths: Tensor) -> Tensor:
        prior = -0.5 * (1 + logs - mean.square() - logs.exp()).sum(1).mean()
        spread = F.softplus(widths) + 1e-3
        log = -0.5 * ((x[:, :, None] - centres) / spread).square() - spread.log() - 0.9189385
        return prior - torch.logsumexp(log + F.log_softmax(weights, 2), 2).sum(1).mean()

    sizes = (256, 384, 5)
    return loss, [random(256, 384), random(256, 64, learned=True), random(256, 64, learned=True),
                  *(random(*sizes, learned=True) for _ in range(3))]  # fmt: skip


@program
def segmentation() -> Program:
    """Focal Tversky loss and boundary weights of four classes."""

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        p = torch.softmax(logits, 1)
        edges = (F.max_pool2d(target, 3, 1, 1) - target).clamp(0, 1) * 4 + 1
        hit, miss, false = ((w * edges).sum((2, 3)) for w in (p * target, (1 - p) * target, p * (1 - target)))
        tversky = (hit + 1) / (hit + 0.7 * miss + 0.3 * false + 1)
        return ((1 - tversky).clamp_min(1e-6) ** 0.75).mean()

    classes = torch.randint(0, 4, (4, 160, 160))
    return loss, [random(4, 4, 160, 160, learned=True), F.one_hot(classes, 4).permute(0, 3, 1, 2).float()]


@program
def pinball() -> Program:
    """Quantiles that must not cross, with a smooth corner."""

    def loss(made: Tensor, target: Tensor) -> Tensor:
        quantiles = torch.linspace(0.05, 0.95, 16)
        made = made[:, :1].sinh() + torch.cumsum(F.softplus(made), 1)
        away = target[:, None] - made
        smooth = torch.where(away.abs() < 0.1, 5 * away.square(), away.abs() - 0.05)
        return (torch.abs(quantiles - (away < 0).float()) * smooth).mean()

    return loss, [random(65536, 16, learned=True), random(65536)]


@program
def landmarks() -> Program:
    """Adaptive wing loss of heat maps."""

    def loss(made: Tensor, target: Tensor) -> Tensor:
        power = 2.1 - target
        near = (0.5 / 1.0) ** power
        slope = 14 / (1 + near) * power * (0.5 ** (power - 1))
        away = (target - torch.sigmoid(made)).abs()
        wing = torch.where(
            away < 0.5, 14 * torch.log1p(away**power), slope * away - (0.5 * slope - 14 * torch.log1p(near))
        )
        return (wing * (1 + 10 * (target > 0.2))).mean()

    return loss, [random(8, 17, 64, 64, learned=True), torch.rand(8, 17, 64, 64)]


@program
def ranking() -> Program:
    """LambdaRank over lists of 64 documents."""

    def loss(scores: Tensor, gains: Tensor) -> Tensor:
        pairs = scores[:, :, None] - scores[:, None, :]
        better = (gains[:, :, None] > gains[:, None, :]).float()
        weight = (2.0 ** gains[:, :, None] - 2.0 ** gains[:, None, :]).abs() * better
        return (weight * F.softplus(-pairs)).sum((1, 2)).div(weight.sum((1, 2)) + 1e-6).mean()

    return loss, [random(128, 64, learned=True), torch.randint(0, 5, (128, 64)).float()]


# ---- blocks


@program
def film() -> Program:
    """A denoiser's block: embedding of the noise, group norm, scale and shift."""
    module = nn.Linear(128, 2 * 64)

    def block(x: Tensor, noise: Tensor, weight: Tensor, bias: Tensor, project: Tensor) -> Tensor:
        angles = noise[:, None] * torch.exp(torch.arange(64) * (-math.log(1e4) / 64))
        scale, shift = F.linear(torch.cat((angles.sin(), angles.cos()), 1), weight, bias).chunk(2, 1)
        h = F.silu(F.group_norm(x, 8) * (1 + scale[:, :, None, None]) + shift[:, :, None, None])
        return x + F.conv2d(h, project)

    return block, [random(4, 64, 48, 48, learned=True), torch.rand(4), module.weight.detach().requires_grad_(),
                   module.bias.detach().requires_grad_(), random(64, 64, 1, 1, learned=True)]  # fmt: skip


@program
def selective_scan() -> Program:
    """A state space layer with gates that depend on the input, twelve steps."""

    def scan(x: Tensor, delta: Tensor, rates: Tensor, into: Tensor, out: Tensor) -> Tensor:
        state, made = torch.zeros(x.shape[0], x.shape[2], rates.shape[1]), []
        for t in range(x.shape[1]):
            step = F.softplus(delta[:, t])[:, :, None]
            state = torch.exp(-step * rates.exp()) * state + step * x[:, t, :, None] * into[:, t, None, :]
            made.append((state * out[:, t, None, :]).sum(2))
        return torch.stack(made, 1)

    return scan, [random(16, 12, 128, learned=True), random(16, 12, 128, learned=True), random(128, 8, learned=True),
                  random(16, 12, 8, learned=True), random(16, 12, 8, learned=True)]  # fmt: skip


@program
def radial_basis() -> Program:
    """Distances between atoms, basis functions with a smooth cut-off, and messages, after SchNet."""

    def layer(places: Tensor, features: Tensor, first: Tensor, second: Tensor) -> Tensor:
        away = (places[:, :, None] - places[:, None]).square().sum(3).add(1e-6).sqrt()
        basis = torch.exp(-4 * (away[..., None] - torch.linspace(0, 5, 24)).square())
        filters = (F.softplus(basis @ first) - math.log(2)) @ second
        cut = 0.5 * (torch.cos(away * math.pi / 5) + 1) * (away < 5)
        return (features[:, None] * filters * cut[..., None]).sum(2)

    return layer, [random(4, 40, 3), random(4, 40, 64, learned=True), random(24, 64, learned=True),
                   random(64, 64, learned=True)]  # fmt: skip


@program
def orbit() -> Program:
    """Two steps of Runge-Kutta of gravity among 160 bodies."""

    def pull(x: Tensor, mass: Tensor) -> Tensor:
        away = x[None] - x[:, None]
        return (away * (mass[None, :, None] * (away.square().sum(2, keepdim=True) + 1e-2) ** -1.5)).sum(1)

    def steps(x: Tensor, v: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            first = pull(x, mass)
            second = pull(x + 0.05 * v, mass)
            third = pull(x + 0.05 * v + 0.0025 * first, mass)
            x, v = x + 0.1 * v + 0.005 * (first + second) / 2, v + 0.1 * (first + 4 * second + third) / 6
        return x, v

    return steps, [random(160, 3), random(160, 3), torch.rand(160)]


@program
def windows() -> Program:
    """Cosine attention within windows, with a learned bias, after Swin v2."""

    def attend(q: Tensor, k: Tensor, v: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        q, k = F.normalize(q, dim=3), F.normalize(k, dim=3)
        logits = q @ k.transpose(2, 3) * scale.clamp(max=4.6).exp() + 16 * torch.sigmoid(bias)
        return torch.softmax(logits, 3) @ v

    shape = (32, 4, 64, 32)
    return attend, [*(random(*shape, learned=True) for _ in range(3)), random(4, 1, 1, learned=True),
                    random(4, 64, 64, learned=True)]  # fmt: skip


@program
def mixture_gate() -> Program:
    """Noisy gates of 16 experts with their losses of balance."""

    def gate(x: Tensor, weight: Tensor, spread: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        clean, width = x @ weight, F.softplus(x @ spread) + 1e-2
        p = torch.softmax(clean + noise * width, 1)
        kept = torch.where(p >= p.topk(2, 1).values[:, 1:], p, torch.zeros(()))
        kept = kept / kept.sum(1, keepdim=True)
        load, use = 0.5 * (1 + torch.erf(clean / width / math.sqrt(2))).sum(0), kept.sum(0)
        balance = sum(of.var() / of.mean().square() for of in (load, use))
        return kept, balance + 1e-3 * torch.logsumexp(clean, 1).square().mean()

    return gate, [random(16384, 64), random(64, 16, learned=True), random(64, 16, learned=True), random(16384, 16)]


@program
def equaliser() -> Program:
    """Luminance, local contrast and tone curve of pictures."""

    def tone(x: Tensor) -> Tensor:
        grey = (x * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        mean = F.avg_pool2d(grey, 5, 1, 2)
        spread = (F.avg_pool2d(grey * grey, 5, 1, 2) - mean * mean).clamp_min(0).sqrt()
        curve = torch.sigmoid(6 * ((grey - mean) / (spread + 0.05)) * 0.2 + 3 * (mean - 0.5))
        ratio = curve / grey.clamp_min(1e-3)
        return ((x * ratio).clamp(0, 1) ** (1 / 2.2) * 255).round()

    return tone, [torch.rand(4, 3, 192, 192)]
