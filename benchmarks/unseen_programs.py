"""Optimisers, losses and blocks that no policy of ours has learned from, and none was designed on.

`python run.py experiment=hardware_fusion dataset.source=benchmarks/unseen_programs.py dataset.graphs=compiled`

Every one is written after its paper's formula, and takes some milliseconds a run on one core. Those in `LATER`, then
those in `LAST`, in `BLIND` and in `UNTRIED` were added after looks at the others (results/hardware_unseen).
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


# ---- added later


@program
def adan() -> Program:
    """Xie et al. 2022: momentum of differences of gradients."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, d: Tensor, n: Tensor, last: Tensor) -> tuple[Tensor, ...]:
        change = g - last
        m, d = 0.98 * m + 0.02 * g, 0.92 * d + 0.08 * change
        n = 0.99 * n + 0.01 * (g + 0.92 * change) ** 2
        step = (m / (1 - 0.98**t) + 0.92 * d / (1 - 0.92**t)) / ((n / (1 - 0.99**t)).sqrt() + 1e-8)
        return (p - 1e-3 * step) / (1 + 1e-3 * 0.02), m, d, n, g

    return in_place(update, 4)


@program
def sophia() -> Program:
    """Liu et al. 2023: steps by a clipped diagonal of the Hessian."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        m, h = 0.96 * m + 0.04 * g, torch.where(t % 10 == 1, 0.99 * h + 0.01 * 8192 * g * g, h)
        return p * (1 - 1e-4 * 0.1) - 1e-4 * (m / (0.04 * h).clamp_min(1e-12)).clamp(-1, 1), m, h

    return in_place(update, 2)


@program
def lars() -> Program:
    """You et al. 2017: a rate for each layer, with Nesterov's momentum."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        warm = torch.clamp(t / 100, max=1.0) * 0.5 * (1 + torch.cos(math.pi * t / 1000))
        g = g + 1e-4 * p
        rate = torch.where(p.norm() > 0, 0.02 * p.norm() / (g.norm() + 1e-8), torch.ones(()))
        m = 0.9 * m + rate.clamp(max=10) * g
        return p - warm * (g * rate + 0.9 * m), m

    return in_place(update, 1)


@program
def schedule_free() -> Program:
    """Defazio et al. 2024: averages in the place of a schedule, around Adam's second moment."""

    def update(t: Tensor, y: Tensor, g: Tensor, z: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        rate, v = 2.5e-3 * torch.clamp(t / 50, max=1.0), 0.999 * v + 0.001 * g * g
        weight = (rate * rate) / (rate * rate * t)
        g = g / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + 0.05 * y
        y = torch.lerp(y, z, weight) + rate * (0.9 * (1 - weight) - 1) * g
        return y, z - rate * g, v

    return in_place(update, 2)


@program
def sinkhorn() -> Program:
    """Entropic transport between two clouds, four iterations in logarithms (Cuturi 2013)."""

    def distance(x: Tensor, y: Tensor) -> Tensor:
        cost = (x[:, None] - y[None]).square().sum(2)
        f, g = torch.zeros(len(x)), torch.zeros(len(y))
        for _ in range(4):
            f = -0.1 * torch.logsumexp((g[None] - cost) / 0.1 - math.log(len(y)), 1)
            g = -0.1 * torch.logsumexp((f[:, None] - cost) / 0.1 - math.log(len(x)), 0)
        plan = torch.exp((f[:, None] + g[None] - cost) / 0.1)
        return (plan * cost).sum() / (len(x) * len(y))

    return distance, [torch.rand(384, 3).requires_grad_(), torch.rand(448, 3)]


@program
def mixture_density() -> Program:
    """Likelihood of five Gaussians for each row (Bishop 1994)."""

    def loss(raw: Tensor, target: Tensor) -> Tensor:
        weight, mean, width = raw.split(5, 1)
        width = F.elu(width) + 1 + 1e-4
        parts = torch.log_softmax(weight, 1) - 0.5 * ((target[:, None] - mean) / width) ** 2 - width.log()
        return -torch.logsumexp(parts, 1).mean() + 1e-3 * (mean.square() + width.log().square()).mean()

    return loss, [random(49152, 15, learned=True), random(49152)]


@program
def vicreg() -> Program:
    """Bardes et al. 2022: variance, invariance, covariance."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        total = 25 * F.mse_loss(a, b)
        for x in (a, b):
            x = x - x.mean(0)
            spread, together = (x.var(0) + 1e-4).sqrt(), (x.T @ x) / (len(x) - 1)
            rest = together.square() - torch.diag_embed(torch.diagonal(together).square())
            total = total + 12.5 * F.relu(1 - spread).mean() + rest.sum() / x.shape[1]
        return total

    return loss, [random(2048, 192, learned=True), random(2048, 192, learned=True)]


@program
def clipped_policy() -> Program:
    """The loss of PPO over groups of answers, with entropy and the divergence from a reference (Shao et al. 2024)."""

    def loss(logits: Tensor, chosen: Tensor, old: Tensor, reference: Tensor, reward: Tensor, mask: Tensor) -> Tensor:
        every = torch.log_softmax(logits, 2)
        now = every.gather(2, chosen[..., None])[..., 0]
        entropy = -(every.exp() * every).sum(2)
        gain = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-4)
        gain, ratio = gain.reshape(-1, 1), torch.exp(now - old)
        away = reference - now
        kept = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain) - 0.04 * (away.exp() - away - 1)
        kept = kept + 0.01 * entropy
        return -((kept * mask).sum(1) / mask.sum(1).clamp_min(1)).mean()

    rows, length, words = 64, 96, 200
    chosen = torch.randint(words, (rows, length))
    return loss, [random(rows, length, words, learned=True), chosen, *(-torch.rand(rows, length) * 6 for _ in range(2)),
                  random(8, 8), (torch.rand(rows, length) > 0.2).float()]  # fmt: skip


@program
def student_t() -> Program:
    """Likelihood with learned degrees of freedom, location and scale."""

    def loss(raw: Tensor, target: Tensor) -> Tensor:
        free, mean, width = F.softplus(raw[..., 0]) + 2, raw[..., 1], F.softplus(raw[..., 2]) + 1e-3
        z = (target - mean) / width
        norm = torch.lgamma((free + 1) / 2) - torch.lgamma(free / 2) - 0.5 * torch.log(math.pi * free) - width.log()
        return -(norm - (free + 1) / 2 * torch.log1p(z * z / free)).mean()

    return loss, [random(256, 256, 3, learned=True), random(256, 256)]


@program
def likeness() -> Program:
    """Structural similarity of pictures (Wang et al. 2004), and a robust difference of their gradients."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        def blur(x: Tensor) -> Tensor:
            return F.avg_pool2d(x, 7, 1, 3)

        ma, mb = blur(a), blur(b)
        va, vb, both = blur(a * a) - ma * ma, blur(b * b) - mb * mb, blur(a * b) - ma * mb
        same = (2 * ma * mb + 1e-4) * (2 * both + 9e-4) / ((ma * ma + mb * mb + 1e-4) * (va + vb + 9e-4))
        edges = (a[..., 1:] - a[..., :-1]) - (b[..., 1:] - b[..., :-1])
        return (1 - same).mean() / 2 + 0.1 * (edges.square() + 1e-6).sqrt().mean()

    return loss, [torch.rand(4, 3, 128, 128).requires_grad_(), torch.rand(4, 3, 128, 128)]


@program
def time_mix() -> Program:
    """RWKV's shift and mix of tokens before a gated layer (Peng et al. 2023)."""

    def mix(x: Tensor, rates: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        k, v, r = (x * rate + before * (1 - rate) for rate in torch.sigmoid(rates))
        hidden = torch.square(F.relu(F.layer_norm(k, k.shape[-1:]) @ key))
        return x + torch.sigmoid(r @ gate) * (hidden @ value) * torch.tanh(v)

    width = 128
    shapes = [(8, 256, width), (3, width), (width, 2 * width), (2 * width, width), (width, width)]
    return mix, [random(*shape, learned=True) for shape in shapes]


@program
def splines() -> Program:
    """Cubic B-splines of every input, as in the layers of Liu et al. (2024)."""

    def layer(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        grid = torch.linspace(-2.5, 2.5, 12)
        part = x[..., None]
        basis = ((part >= grid[:-1]) & (part < grid[1:])).float()
        for k in range(1, 4):
            left = (part - grid[: -k - 1]) / (grid[k:-1] - grid[: -k - 1])
            right = (grid[k + 1 :] - part) / (grid[k + 1 :] - grid[1:-k])
            basis = left * basis[..., :-1] + right * basis[..., 1:]
        return (basis * weight).sum(2) * scale + F.silu(x)

    return layer, [random(2048, 32), random(32, 8, learned=True), random(32, learned=True)]


@program
def hue() -> Program:
    """Pictures to hue, saturation and value, turned, and back."""

    def turn(x: Tensor) -> Tensor:
        r, g, b = x.unbind(1)
        high, low = x.amax(1), x.amin(1)
        span = high - low
        rest = torch.where(high == g, (b - r) / (span + 1e-6) + 2, (r - g) / (span + 1e-6) + 4)
        part = torch.where(high == r, (g - b) / (span + 1e-6) % 6, rest)
        angle, strength = (part / 6 + 0.15) % 1.0, (span / (high + 1e-6) * 1.3).clamp(0, 1)
        wheel = [(2 - ((angle * 6 + n) % 6 - 3).abs()).clamp(0, 1) for n in (0.0, 4.0, 2.0)]
        return torch.stack([high * (1 - strength * part) for part in wheel], 1).clamp(0, 1)

    return turn, [torch.rand(4, 3, 160, 160)]


@program
def bodies() -> Program:
    """Forces and energy of 512 bodies."""

    def energy(place: Tensor, mass: Tensor, speed: Tensor) -> tuple[Tensor, Tensor]:
        apart = place[None] - place[:, None]
        near = torch.rsqrt(apart.square().sum(2) + 1e-2)
        force = (mass[None, :, None] * apart * near[..., None] ** 3).sum(1)
        total = 0.5 * (mass * speed.square().sum(1)).sum() - 0.5 * (mass[:, None] * mass[None] * near).sum()
        return speed + 1e-3 * force, total

    return energy, [random(512, 3, learned=True), torch.rand(512), random(512, 3)]


@program
def prices() -> Program:
    """Prices of options after Black and Scholes."""

    def price(spot: Tensor, strike: Tensor, spread: Tensor, years: Tensor) -> tuple[Tensor, Tensor]:
        root = spread * years.sqrt()
        upper = (torch.log(spot / strike) + (0.02 + 0.5 * spread * spread) * years) / root
        worth = strike * torch.exp(-0.02 * years)

        def below(x: Tensor) -> Tensor:
            return 0.5 * (1 + torch.erf(x / math.sqrt(2)))

        call = spot * below(upper) - worth * below(upper - root)
        return call, call - spot + worth

    return price, [(torch.rand(1 << 19) + 0.5).requires_grad_(), torch.rand(1 << 19) + 0.5,
                   (torch.rand(1 << 19) * 0.4 + 0.1).requires_grad_(), torch.rand(1 << 19) + 0.1]  # fmt: skip


@program
def lattice() -> Program:
    """A step of a lattice Boltzmann method in two dimensions, nine speeds."""
    moves = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    shares = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4

    def step(f: Tensor, solid: Tensor) -> Tensor:
        f = torch.stack([torch.roll(part, move, (0, 1)) for part, move in zip(f, moves)])
        mass = f.sum(0)
        flow = [sum(part * float(move[axis]) for part, move in zip(f, moves)) / mass for axis in (0, 1)]
        square = flow[0] * flow[0] + flow[1] * flow[1]
        out = []
        for part, move, share in zip(f, moves, shares):
            along = 3 * (flow[0] * float(move[0]) + flow[1] * float(move[1]))
            rest = share * mass * (1 + along + 0.5 * along * along - 1.5 * square)
            out.append(torch.where(solid, part, part + (rest - part) / 0.6))
        return torch.stack(out)

    return step, [torch.rand(9, 224, 224) + 0.5, torch.rand(224, 224) > 0.95]


# ---- added last


@program
def yogi() -> Program:
    """Zaheer et al. 2018: a second moment that moves by the sign of its error."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        square = g * g
        m, v = 0.9 * m + 0.1 * g, v - 0.001 * torch.sign(v - square) * square
        return p - 1e-2 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-3), m, v

    return in_place(update, 2)


@program
def ademamix() -> Program:
    """Pagliardini et al. 2024: a fast and a slow mean of gradients, the slow one warmed up."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, slow: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        warm = torch.clamp(t / 1000, max=1.0)
        near, far = math.log(0.9), math.log(0.9999)
        beta = torch.exp(near * far / ((1 - warm) * far + warm * near))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        slow = beta * slow + (1 - beta) * g
        step = (m / (1 - 0.9**t) + 5 * warm * slow) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        return p - 1e-3 * (step + 0.1 * p), m, slow, v

    return in_place(update, 3)


@program
def adabound() -> Program:
    """Luo et al. 2019: rates between bounds that close in on one value."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        size = 1e-3 * (1 - 0.999**t).sqrt() / (1 - 0.9**t)
        low, high = 0.1 * (1 - 1 / (1e-3 * t + 1)), 0.1 * (1 + 1 / (1e-3 * t))
        return p - torch.minimum(torch.maximum(size / (v.sqrt() + 1e-8), low), high) * m, m, v

    return in_place(update, 2)


@program
def cautious() -> Program:
    """Liang et al. 2024: AdamW, whose steps count only where they agree with the gradient."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        step = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-8)
        agree = (step * g > 0).to(g.dtype)
        return p * (1 - 1e-4) - 1e-3 * step * agree / agree.mean().clamp_min(1e-3), m, v

    return in_place(update, 2)


@program
def angular_margin() -> Program:
    """ArcFace (Deng et al. 2019): a margin added to the angle of the right class."""

    def loss(cosine: Tensor, label: Tensor) -> Tensor:
        cosine = torch.tanh(cosine)
        own = cosine.gather(1, label[:, None])
        sine = (1 - own * own).clamp_min(1e-6).sqrt()
        moved = torch.where(own > math.cos(math.pi - 0.5), own * math.cos(0.5) - sine * math.sin(0.5), own - 0.24)
        hot = F.one_hot(label, cosine.shape[1])
        return F.cross_entropy(64 * torch.where(hot > 0, moved, cosine), label)

    return loss, [random(1024, 700, learned=True), torch.randint(700, (1024,))]


@program
def circle() -> Program:
    """Circle loss (Sun et al. 2020) of all pairs in a batch."""

    def loss(x: Tensor, label: Tensor) -> Tensor:
        x = F.normalize(x, dim=1)
        alike, same = x @ x.T, label[:, None] == label[None]
        near = 64 * F.relu(1.25 - alike).detach() * (alike - 0.75)
        far = 64 * F.relu(alike + 0.25).detach() * (alike - 0.25)
        far = torch.logsumexp(far.masked_fill(same, -1e9), 1)
        near = torch.logsumexp((-near).masked_fill(~same, -1e9), 1)
        return F.softplus(far + near).mean()

    return loss, [random(640, 64, learned=True), torch.randint(40, (640,))]


@program
def boxes() -> Program:
    """Complete IoU (Zheng et al. 2020): overlap, distance of centres, and shape."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        centre, size = a[:, :2], F.softplus(a[:, 2:])
        a0, a1, b0, b1 = centre - size / 2, centre + size / 2, b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
        shared = (torch.minimum(a1, b1) - torch.maximum(a0, b0)).clamp_min(0).prod(1)
        joint = size.prod(1) + b[:, 2:].prod(1) - shared
        across = (torch.maximum(a1, b1) - torch.minimum(a0, b0)).square().sum(1)
        away = (centre - b[:, :2]).square().sum(1) / (across + 1e-7)
        shape = 4 / math.pi**2 * (torch.atan(b[:, 2] / b[:, 3]) - torch.atan(size[:, 0] / size[:, 1])) ** 2
        overlap = shared / (joint + 1e-7)
        return (1 - overlap + away + shape * (shape / (1 - overlap + shape + 1e-7)).detach()).mean()

    return loss, [random(131072, 4, learned=True), torch.rand(131072, 4) + 0.1]


@program
def quantiles() -> Program:
    """Quantile regression of returns (Dabney et al. 2018): all pairs of 32 and 32 quantiles, by Huber's loss."""

    def loss(now: Tensor, after: Tensor, tau: Tensor) -> Tensor:
        apart = after[:, None] - now[:, :, None]
        huber = torch.where(apart.abs() <= 1, 0.5 * apart * apart, apart.abs() - 0.5)
        return ((tau[:, :, None] - (apart.detach() < 0).to(apart.dtype)).abs() * huber).mean(2).sum(1).mean()

    return loss, [random(1024, 32, learned=True), random(1024, 32), torch.rand(1024, 32)]


@program
def evidence() -> Program:
    """Evidential regression (Amini et al. 2020): the likelihood of a normal-inverse-gamma distribution."""

    def loss(raw: Tensor, y: Tensor) -> Tensor:
        mean, nu, alpha, beta = raw.unbind(0)
        nu, alpha, beta = F.softplus(nu) + 1e-3, F.softplus(alpha) + 1.001, F.softplus(beta) + 1e-3
        omega = 2 * beta * (1 + nu)
        likelihood = (0.5 * torch.log(math.pi / nu) - alpha * omega.log()
                      + (alpha + 0.5) * (nu * (y - mean) ** 2 + omega).log()
                      + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5))  # fmt: skip
        return (likelihood + 0.01 * (y - mean).abs() * (2 * nu + alpha)).mean()

    return loss, [random(4, 1 << 17, learned=True), random(1 << 17)]


@program
def preference() -> Program:
    """Direct preference optimisation (Rafailov et al. 2023) over logits of two answers."""

    def loss(logits: Tensor, chosen: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
        told = torch.log_softmax(logits, 2).gather(2, chosen[..., None])[..., 0]
        gain = ((told - reference) * mask).sum(1).view(-1, 2)
        margin = 0.1 * (gain[:, 0] - gain[:, 1])
        return -(0.9 * F.logsigmoid(margin) + 0.1 * F.logsigmoid(-margin)).mean()

    return loss, [random(16, 96, 500, learned=True), torch.randint(500, (16, 96)), -torch.rand(16, 96),
                  (torch.rand(16, 96) > 0.2).float()]  # fmt: skip


@program
def ensemble_score() -> Program:
    """The continuous ranked probability score of an ensemble (Gneiting and Raftery 2007), weighted by latitude."""

    def loss(members: Tensor, truth: Tensor, latitude: Tensor) -> Tensor:
        error = (members - truth).abs().mean(0)
        spread = (members[:, None] - members[None]).abs().mean((0, 1))
        weight = torch.cos(latitude)[:, None]
        return ((error - 0.5 * spread) * weight / weight.mean()).mean()

    return loss, [random(8, 128, 160, learned=True), random(128, 160), torch.linspace(-1.5, 1.5, 128)]


@program
def rays() -> Program:
    """Volume rendering along rays (Mildenhall et al. 2020): what is seen of 48 samples."""

    def render(density: Tensor, colour: Tensor, depth: Tensor) -> Tensor:
        step = torch.cat([depth[:, 1:] - depth[:, :-1], torch.full((len(depth), 1), 1e3)], 1)
        opaque = 1 - torch.exp(-F.softplus(density - 1) * step)
        clear = torch.cumsum(torch.log(1 - opaque + 1e-10), 1)
        weight = opaque * torch.exp(torch.cat([torch.zeros(len(depth), 1), clear[:, :-1]], 1))
        seen = (weight[..., None] * torch.sigmoid(colour)).sum(1)
        return seen + (1 - weight.sum(1, keepdim=True)), (weight * depth).sum(1)

    return render, [random(4096, 48, learned=True), random(4096, 48, 3, learned=True),
                    torch.rand(4096, 48).cumsum(1)]  # fmt: skip


@program
def recurrent_cell() -> Program:
    """Three steps of a layer-normalised GRU (Ba et al. 2016)."""

    def cell(h: Tensor, x: Tensor, inner: Tensor, scale: Tensor) -> Tensor:
        for t in range(x.shape[0]):
            a, b = F.layer_norm(x[t], x.shape[2:]) * scale, F.layer_norm(h @ inner, inner.shape[1:])
            (ar, az, an), (br, bz, bn) = a.chunk(3, 1), b.chunk(3, 1)
            z = torch.sigmoid(az + bz - 1)
            h = (1 - z) * torch.tanh(an + torch.sigmoid(ar + br) * bn) + z * h
        return h

    return cell, [random(1024, 128), random(3, 1024, 384, learned=True), (random(128, 384) * 0.1).requires_grad_(),
                  random(384, learned=True)]  # fmt: skip


@program
def response() -> Program:
    """A block of ConvNeXt V2 (Woo et al. 2023) without its first convolution: responses normalised over pictures."""

    def block(x: Tensor, wide: Tensor, back: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        y = F.gelu(F.layer_norm(x, x.shape[3:]) @ wide)
        size = y.square().sum((1, 2), keepdim=True).sqrt()
        y = scale * (y * (size / (size.mean(3, keepdim=True) + 1e-6))) + shift + y
        return x + y @ back

    return block, [random(4, 28, 28, 80, learned=True), (random(80, 320) * 0.1).requires_grad_(),
                   (random(320, 80) * 0.1).requires_grad_(), random(320, learned=True),
                   random(320, learned=True)]  # fmt: skip


@program
def reaction() -> Program:
    """Three steps of Gray and Scott's reaction with diffusion, on a torus."""

    def around(x: Tensor) -> Tensor:
        sides = sum(torch.roll(x, by, axis) for by in (1, -1) for axis in (0, 1))
        corners = sum(torch.roll(x, by, (0, 1)) for by in ((1, 1), (1, -1), (-1, 1), (-1, -1)))
        return 0.2 * sides + 0.05 * corners - x

    def steps(u: Tensor, v: Tensor, feed: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(3):
            made = u * v * v
            u, v = (
                (u + 0.16 * around(u) - made + feed * (1 - u)).clamp(0, 1),
                (v + 0.08 * around(v) + made - (feed + 0.06) * v).clamp(0, 1),
            )
        return u, v

    return steps, [torch.rand(384, 384), torch.rand(384, 384), torch.rand(384, 384) * 0.04]


@program
def rotations() -> Program:
    """Points turned by unit quaternions, one after another, and how far they are from where they should be."""

    def loss(q: Tensor, r: Tensor, points: Tensor, target: Tensor) -> Tensor:
        q, r = F.normalize(q, dim=1), F.normalize(r, dim=1)
        w = q[:, :1] * r[:, :1] - (q[:, 1:] * r[:, 1:]).sum(1, keepdim=True)
        v = q[:, :1] * r[:, 1:] + r[:, :1] * q[:, 1:] + torch.linalg.cross(q[:, 1:], r[:, 1:])
        twice = 2 * torch.linalg.cross(v, points)
        moved = points + w * twice + torch.linalg.cross(v, twice)
        return F.huber_loss(moved, target, delta=0.5)

    return loss, [random(98304, 4, learned=True), random(98304, 4, learned=True), random(98304, 3), random(98304, 3)]


@program
def similarity() -> Program:
    """Structural similarity of pictures (Wang et al. 2004) at two scales."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        found = torch.ones(())
        for _ in range(2):
            mx, my = F.avg_pool2d(x, 7, 1), F.avg_pool2d(y, 7, 1)
            xx, yy = F.avg_pool2d(x * x, 7, 1) - mx * mx, F.avg_pool2d(y * y, 7, 1) - my * my
            xy = F.avg_pool2d(x * y, 7, 1) - mx * my
            light, shape = (2 * mx * my + 1e-4) / (mx * mx + my * my + 1e-4), (2 * xy + 9e-4) / (xx + yy + 9e-4)
            found = found * (light * shape).mean()
            x, y = F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)
        return 1 - found

    return loss, [torch.rand(4, 3, 96, 96).requires_grad_(), torch.rand(4, 3, 96, 96)]


@program
def rotary() -> Program:
    """Queries and keys turned by place (Su et al. 2021), after a norm for each head (Dehghani et al. 2023)."""

    def turned(x: Tensor, scale: Tensor, angle: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(3, keepdim=True) + 1e-6) * scale
        a, b = x.chunk(2, 3)
        cos, sin = torch.cos(angle), torch.sin(angle)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], 3)

    def both(q: Tensor, k: Tensor, scale: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        angle = (torch.arange(q.shape[1])[:, None] * rate)[:, None]
        return turned(q, scale[0], angle), turned(k, scale[1], angle)

    return both, [random(4, 256, 8, 64, learned=True), random(4, 256, 8, 64, learned=True),
                  random(2, 64, learned=True), 1e4 ** (-torch.arange(32) / 32.0)]  # fmt: skip


# ---- added last, and run once: see `BLIND`


@program
def madgrad() -> Program:
    """Defazio and Jelassi 2021: dual averaging with a cube root."""

    def update(t: Tensor, p: Tensor, g: Tensor, first: Tensor, s: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        rate = 1e-2 * (t + 1).sqrt()
        s, v = s + rate * g, v + rate * g * g
        z = first - s / (v.pow(1 / 3) + 1e-6)
        return 0.9 * p + 0.1 * z, first, s, v

    return in_place(update, 3)


@program
def novograd() -> Program:
    """Ginsburg et al. 2019: one second moment for each tensor."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        size = 0.98 * v + 0.02 * g.square().sum()
        m = 0.95 * m + g / (size.sqrt() + 1e-8) + 1e-3 * p
        return p - 1e-2 * m / (1 - 0.95**t), m, size

    return in_place(update, 2)


@program
def quasi_hyperbolic() -> Program:
    """QHAdam (Ma and Yarats 2019), with decay apart from the gradient."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.995 * m + 0.005 * g, 0.999 * v + 0.001 * g * g
        near = 0.3 * g + 0.7 * m / (1 - 0.995**t)
        wide = (0.1 * g * g + 0.9 * v / (1 - 0.999**t)).sqrt()
        return p * (1 - 1e-5) - 1e-3 * near / (wide + 1e-8), m, v

    return in_place(update, 2)


@program
def projected() -> Program:
    """AdamP (Heo et al. 2021): what a step does along its weights is taken out where both lie apart."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        a, b, c = p.reshape(p.shape[0], -1), g.reshape(p.shape[0], -1), step.reshape(p.shape[0], -1)
        size = a.square().sum(1, keepdim=True).sqrt() + 1e-8
        apart = ((a * b).sum(1, keepdim=True).abs() / size / (b.square().sum(1, keepdim=True).sqrt() + 1e-8)).amax()
        along = a / size * ((a / size) * c).sum(1, keepdim=True)
        return p - 1e-3 * torch.where(apart < 0.1, c - along, c).reshape(p.shape), m, v

    return in_place(update, 2)


@program
def prodigy() -> Program:
    """Mishchenko and Defazio 2024: the distance to the solution is estimated over all parameters."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor, s: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        d = 1e-3 * (1 + (g * (first - p)).sum() / (s.abs().sum() + 1e-8)).clamp(0.5, 2)
        m, v = 0.9 * m + 0.1 * d * g, 0.999 * v + 0.001 * (d * g) ** 2
        s = 0.999**0.5 * s + (1 - 0.999**0.5) * d * d * g
        return p - d * (m / (v.sqrt() + d * 1e-8) + 0.01 * p), m, v, s, first

    return in_place(update, 4)


@program
def correlations() -> Program:
    """Barlow twins (Zbontar et al. 2021)."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        a, b = ((x - x.mean(0)) / (x.std(0) + 1e-5) for x in (a, b))
        both = a.T @ b / len(a)
        own = torch.diagonal(both)
        return (own - 1).square().sum() + 5e-3 * (both.square().sum() - own.square().sum())

    return loss, [random(2048, 160, learned=True), random(2048, 160, learned=True)]


@program
def wing() -> Program:
    """Feng et al. 2018, on heat maps whose expected places are compared (soft argmax)."""

    def loss(maps: Tensor, place: Tensor) -> Tensor:
        share = torch.softmax(maps.flatten(2), 2).view_as(maps)
        line = torch.linspace(-1, 1, maps.shape[2])
        found = torch.stack([(share.sum(2) * line).sum(2), (share.sum(3) * line).sum(2)], 2)
        away = (found - place).abs()
        bent = torch.where(away < 0.1, 0.1 * torch.log(1 + away / 0.02), away - 0.1 + 0.1 * math.log(6))
        return bent.mean() + 1e-2 * -(share * (share + 1e-9).log()).sum((2, 3)).mean()

    return loss, [random(16, 17, 48, 48, learned=True), torch.rand(16, 17, 2) * 2 - 1]


@program
def count_data() -> Program:
    """Zero-inflated negative binomial likelihood (Eraslan et al. 2019)."""

    def loss(raw: Tensor, size: Tensor, count: Tensor) -> Tensor:
        mean = raw[0].clamp(-8, 8).exp() * size
        spread, empty = F.softplus(raw[1]).clamp(1e-4, 1e4), torch.sigmoid(raw[2])
        known = torch.lgamma(spread) + torch.lgamma(count + 1) - torch.lgamma(count + spread)
        rest = (spread + count) * torch.log1p(mean / spread) + count * (spread.log() - (mean + 1e-8).log())
        many = known + rest - torch.log(1 - empty + 1e-8)
        none = -torch.log(empty + (1 - empty) * (spread / (spread + mean)) ** spread + 1e-8)
        return torch.where(count < 1e-8, none, many).mean() + 1e-3 * empty.square().mean()

    return loss, [random(3, 256, 192, learned=True), torch.rand(256, 1) + 0.5,
                  (torch.rand(256, 192) * 6 - 3).clamp_min(0).round()]  # fmt: skip


@program
def survival() -> Program:
    """Cox's partial likelihood by batches, with a penalty of how groups differ."""

    def loss(risk: Tensor, time: Tensor, seen: Tensor, group: Tensor) -> Tensor:
        later = time[:, None, :] >= time[:, :, None]
        among = torch.logsumexp(torch.where(later, risk[:, None, :], -1e9), 2)
        own = ((among - risk) * seen).sum(1) / seen.sum(1).clamp_min(1)
        inside = (risk[:, None] * group).sum(2) / group.sum(2).clamp_min(1)
        return own.mean() + 0.1 * (inside - risk.mean(1, keepdim=True)).square().mean()

    group = (torch.rand(16, 4, 256) < 0.25).float()
    return loss, [random(16, 256, learned=True), torch.rand(16, 256), (torch.rand(16, 256) < 0.7).float(), group]


@program
def hyperbolic() -> Program:
    """Distances in the Poincare ball (Nickel and Kiela 2017) between rows and prototypes, and their margin."""

    def loss(x: Tensor, y: Tensor, label: Tensor) -> Tensor:
        x = x * (torch.tanh(x.norm(dim=1, keepdim=True)) / x.norm(dim=1, keepdim=True).clamp_min(1e-6)) * 0.95
        y = y * (torch.tanh(y.norm(dim=1, keepdim=True)) / y.norm(dim=1, keepdim=True).clamp_min(1e-6)) * 0.95
        xx, yy = x.square().sum(1), y.square().sum(1)
        apart = (xx[:, None] + yy[None] - 2 * x @ y.T).clamp_min(0)
        far = 1 + 2 * apart / ((1 - xx)[:, None] * (1 - yy)[None])
        distance = torch.log(far + (far.square() - 1).clamp_min(1e-7).sqrt())
        own = distance.gather(1, label[:, None])
        return F.relu(0.5 + own - distance).mean() - torch.log_softmax(-distance, 1).gather(1, label[:, None]).mean()

    return loss, [random(2048, 24, learned=True), random(96, 24, learned=True), torch.randint(96, (2048,))]


@program
def directions() -> Program:
    """Mixture of von Mises densities of angles, its normaliser by a series of Bessel's function."""

    def loss(raw: Tensor, angle: Tensor) -> Tensor:
        weight, mean, sharp = raw.chunk(3, 1)
        sharp = F.softplus(sharp)
        term, norm = torch.ones_like(sharp), torch.ones_like(sharp)
        for k in range(1, 7):
            term = term * (sharp / (2 * k)) ** 2
            norm = norm + term
        parts = torch.log_softmax(weight, 1) + sharp * torch.cos(angle[:, None] - mean) - norm.log()
        return math.log(2 * math.pi) - torch.logsumexp(parts, 1).mean()

    return loss, [random(24576, 12, learned=True), torch.rand(24576) * 6.28]


@program
def reverse_advantages() -> Program:
    """V-trace (Espeholt et al. 2018) over 24 steps, and the losses made of it."""

    def loss(now: Tensor, before: Tensor, value: Tensor, reward: Tensor, kept: Tensor) -> Tensor:
        ratio = (now - before).exp()
        clipped, factor = ratio.clamp_max(1.0), 0.99 * kept
        ahead = torch.cat([value[1:], value[-1:]])
        change = clipped * (reward + factor * ahead - value)
        total, targets = torch.zeros_like(value[0]), []
        for t in reversed(range(value.shape[0])):
            total = change[t] + factor[t] * clipped[t] * total
            targets.append(total)
        goal = (torch.stack(targets[::-1]) + value).detach()
        gain = (clipped * (reward + factor * torch.cat([goal[1:], goal[-1:]]) - value)).detach()
        return (goal - value).square().mean() - (now * gain).mean() + 0.01 * (now.exp() * now).mean()

    steps, batch = 24, 4096
    return loss, [(-torch.rand(steps, batch) * 3).requires_grad_(), -torch.rand(steps, batch) * 3,
                  random(steps, batch, learned=True), random(steps, batch),
                  (torch.rand(steps, batch) > 0.05).float()]  # fmt: skip


@program
def sparse_attention() -> Program:
    """Sparsemax (Martins and Astudillo 2016) as attention's normaliser."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        score = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        ordered = score.sort(-1, descending=True).values
        rank = torch.arange(1, score.shape[-1] + 1)
        inside = 1 + rank * ordered > ordered.cumsum(-1)
        many = inside.sum(-1, keepdim=True)
        level = (torch.where(inside, ordered, 0.0).sum(-1, keepdim=True) - 1) / many
        return F.relu(score - level) @ v

    return attend, [random(8, 96, 32), random(8, 96, 32), random(8, 96, 32)]


@program
def delta_rule() -> Program:
    """Gated delta rule (Yang et al. 2025) over eight steps: a matrix of states for each head."""

    def steps(state: Tensor, q: Tensor, k: Tensor, v: Tensor, gate: Tensor, rate: Tensor) -> Tensor:
        out = []
        for t in range(k.shape[0]):
            key = k[t] / (k[t].square().sum(-1, keepdim=True) + 1e-6).sqrt()
            state = state * torch.sigmoid(gate[t])[..., None, None]
            missing = v[t] - (state * key[..., None, :]).sum(-1)
            state = state + torch.sigmoid(rate[t])[..., None, None] * missing[..., None] * key[..., None, :]
            out.append((state * q[t][..., None, :]).sum(-1))
        return torch.stack(out)

    size = (8, 16, 8)
    return steps, [random(16, 8, 32, 32), *(random(*size, 32, learned=True) for _ in range(3)),
                   random(*size, learned=True), random(*size, learned=True)]  # fmt: skip


@program
def capsules() -> Program:
    """Three rounds of routing (Sabour et al. 2017)."""

    def routed(votes: Tensor) -> Tensor:
        score = torch.zeros_like(votes[..., 0])
        for turn in range(3):
            whole = (torch.softmax(score, 2)[..., None] * votes).sum(1)
            size = whole.square().sum(-1, keepdim=True)
            whole = whole * size / (1 + size) / (size + 1e-8).sqrt()
            if turn < 2:
                score = score + (votes * whole[:, None]).sum(-1)
        return (whole.square().sum(-1) + 1e-8).sqrt()

    return routed, [random(16, 384, 10, 16, learned=True)]


@program
def planar_flow() -> Program:
    """Six planar flows (Rezende and Mohamed 2015), and the bound of what they model."""

    def loss(z: Tensor, u: Tensor, w: Tensor, b: Tensor) -> Tensor:
        bound = -0.5 * z.square().sum(1)
        for k in range(u.shape[0]):
            dot = (w[k] * u[k]).sum()
            turned = u[k] + (F.softplus(dot) - 1 - dot) * w[k] / (w[k].square().sum() + 1e-6)
            h = torch.tanh(z @ w[k] + b[k])
            z = z + h[:, None] * turned
            bound = bound - torch.log((1 + (1 - h * h) * (w[k] * turned).sum()).abs() + 1e-6)
        return (bound + 0.5 * z.square().sum(1) - torch.cos(z).sum(1)).mean()

    return loss, [random(8192, 24), random(6, 24, learned=True), random(6, 24, learned=True), random(6, learned=True)]


@program
def kalman() -> Program:
    """Twelve steps of a filter with two states for each of many series, with its likelihood."""

    def filtered(z: Tensor, noise: Tensor, drift: Tensor) -> Tensor:
        level, slope = z[0], torch.zeros_like(z[0])
        a, b, c = torch.ones_like(level), torch.zeros_like(level), torch.ones_like(level)
        total = torch.zeros_like(level)
        q, r = F.softplus(drift), F.softplus(noise)
        for t in range(1, z.shape[0]):
            level = level + slope
            a, b, c = a + 2 * b + c + q, b + c, c + 0.1 * q
            away, wide = z[t] - level, a + r
            total = total + 0.5 * (wide.log() + away * away / wide)
            ka, kb = a / wide, b / wide
            level, slope = level + ka * away, slope + kb * away
            a, b, c = (1 - ka) * a, (1 - ka) * b, c - kb * b
        return total.mean()

    return filtered, [random(12, 32768), random(32768, learned=True), random(32768, learned=True)]


@program
def warped() -> Program:
    """Photometric loss of optical flow by bilinear reads, with smoothness by edges (Jonschkowski et al. 2020)."""

    def loss(flow: Tensor, one: Tensor, two: Tensor) -> Tensor:
        _, _, high, wide = flow.shape
        y, x = torch.arange(high)[None, :, None] + flow[:, 1], torch.arange(wide)[None, None] + flow[:, 0]
        y0, x0 = y.floor().clamp(0, high - 2), x.floor().clamp(0, wide - 2)
        dy, dx = (y - y0).clamp(0, 1)[:, None], (x - x0).clamp(0, 1)[:, None]
        at, flat = (y0 * wide + x0).long()[:, None].expand(-1, 3, -1, -1).flatten(2), two.flatten(2)
        a, b, c, d = (flat.gather(2, at + by).view_as(one) for by in (0, 1, wide, wide + 1))
        there = (a * (1 - dx) + b * dx) * (1 - dy) + (c * (1 - dx) + d * dx) * dy
        edge = torch.exp(-20 * (one[..., 1:] - one[..., :-1]).abs().mean(1, keepdim=True))
        bend = (flow[..., 1:] - flow[..., :-1]).abs()
        return ((one - there).square() + 1e-6).pow(0.45).mean() + 0.1 * (edge * bend).mean()

    return loss, [(random(2, 2, 128, 128) * 3).requires_grad_(), torch.rand(2, 3, 128, 128),
                  torch.rand(2, 3, 128, 128)]  # fmt: skip


@program
def perceptual_colour() -> Program:
    """From sRGB to CIE Lab and back, with more colour."""

    into = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    white, out_of = torch.tensor([0.9505, 1.0, 1.089]), torch.linalg.inv(into)

    def adjusted(x: Tensor) -> Tensor:
        linear = torch.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92)
        xyz = (linear[:, None] * into[:, :, None, None]).sum(2) / white[:, None, None]
        f = torch.where(xyz > 0.008856, xyz ** (1 / 3), 7.787 * xyz + 0.13793)
        light, a, b = 116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])
        more = 1 + 0.3 * torch.exp(-(a * a + b * b) / 2000)
        fy = (light + 16) / 116
        g = torch.stack([fy + a * more / 500, fy, fy - b * more / 200], 1)
        back = torch.where(g > 0.20689, g**3, (g - 0.13793) / 7.787) * white[:, None, None]
        out = (back[:, None] * out_of[:, :, None, None]).sum(2).clamp(0, 1)
        return torch.where(out > 0.0031308, 1.055 * out.clamp_min(1e-6) ** (1 / 2.4) - 0.055, 12.92 * out)

    return adjusted, [torch.rand(2, 3, 160, 160)]


@program
def shallow_water() -> Program:
    """Two steps of the shallow water equations (Lax and Friedrichs) on a torus."""

    def steps(h: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def mean(x: Tensor) -> Tensor:
            return 0.25 * sum(torch.roll(x, by, axis) for by in (1, -1) for axis in (0, 1))

        def along(x: Tensor, axis: int) -> Tensor:
            return 0.5 * (torch.roll(x, -1, axis) - torch.roll(x, 1, axis))

        for _ in range(2):
            x, y, push = h * u, h * v, 4.9 * h * h
            wet = mean(h) - 0.1 * (along(x, 1) + along(y, 0))
            x = mean(x) - 0.1 * (along(x * u + push, 1) + along(x * v, 0))
            y = mean(y) - 0.1 * (along(y * u, 1) + along(y * v + push, 0))
            h = wet.clamp_min(0.1)
            u, v = x / h, y / h
        return h, u, v

    return steps, [torch.rand(320, 320) + 1, random(320, 320) * 0.1, random(320, 320) * 0.1]


@program
def lookup() -> Program:
    """Quantised codes (van den Oord et al. 2017), with their perplexity."""

    def loss(x: Tensor, codes: Tensor) -> Tensor:
        apart = x.square().sum(1, keepdim=True) - 2 * x @ codes.T + codes.square().sum(1)
        chosen = apart.argmin(1)
        found = codes[chosen]
        share = F.one_hot(chosen, codes.shape[0]).float().mean(0)
        entropy = -(share * (share + 1e-10).log()).sum()
        through = x + (found - x).detach()
        near = (found.detach() - x).square().mean() + 0.25 * (found - x.detach()).square().mean()
        return near + through.square().mean() * 1e-3 - 1e-3 * entropy.exp()

    return loss, [random(4096, 48, learned=True), random(256, 48, learned=True)]


@program
def spectral_envelopes() -> Program:
    """Log mel energies of frames by matrix products, differences over time, and their normalised moments."""

    def features(x: Tensor, cos: Tensor, sin: Tensor, mel: Tensor) -> Tensor:
        frames = (x[:, 1:] - 0.97 * x[:, :-1]).unfold(1, 256, 128)
        frames = frames * (0.54 - 0.46 * torch.cos(torch.arange(256) * (2 * math.pi / 255)))
        power = (frames @ cos).square() + (frames @ sin).square()
        level = (power @ mel + 1e-6).log()
        level = (level - level.mean(1, keepdim=True)) / (level.std(1, keepdim=True) + 1e-5)
        first = F.pad(level, (0, 0, 2, 2))
        change = 0.2 * (first[:, 4:] - first[:, :-4]) + 0.1 * (first[:, 3:-1] - first[:, 1:-3])
        return torch.cat([level, change, level * change.sign()], 2)

    turn = torch.arange(256)[:, None] * torch.arange(129)[None] * (2 * math.pi / 256)
    return features, [random(4, 32769), torch.cos(turn), torch.sin(turn), torch.rand(129, 40)]


# ---- added once the policy learned on a program, and run once: see `UNTRIED`


@program
def came() -> Program:
    """Luo et al. 2023: rows and columns of second moments, and how far a step may be trusted."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor, r: Tensor) -> tuple[Tensor, ...]:
        def factored(kept: Tensor, value: Tensor, decay: float) -> tuple[Tensor, Tensor]:
            kept = decay * kept + (1 - decay) * (value.square() + 1e-30)
            rows, columns = kept.mean(-1, keepdim=True), kept.mean(0, keepdim=True)
            return kept, rows / rows.mean().clamp_min(1e-12) * columns

        v, scale = factored(v, g, 0.999)
        step = g * (scale + 1e-12).rsqrt()
        step = step / (step.square().mean().sqrt()).clamp_min(1)
        m = 0.9 * m + 0.1 * step
        r, doubt = factored(r, step - m, 0.9999)
        return p * (1 - 1e-5) - 1e-3 * m * (doubt + 1e-12).rsqrt(), m, v, r

    return in_place(update, 3)


@program
def covers() -> Program:
    """SM3 (Anil et al. 2019): the least of what an entry's row and column have seen."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        seen = torch.minimum(v.amax(-1, keepdim=True), v.amax(0, keepdim=True)) + g * g
        m = 0.9 * m + 0.1 * g / (seen.sqrt() + 1e-12)
        return p - 1e-2 * m, m, seen

    return in_place(update, 2)


@program
def lookahead() -> Program:
    """Zhang et al. 2019 around Nadam: every sixth step the slow weights move, and the fast ones return to them."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, v: Tensor, slow: Tensor) -> tuple[Tensor, ...]:
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        ahead = (0.9 * m + 0.1 * g) / (1 - 0.9 ** (t + 1))
        p = p - 1e-3 * ahead / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        now = torch.remainder(t, 6) < 0.5
        slow = torch.where(now, slow + 0.5 * (p - slow), slow)
        return torch.where(now, slow, p), m, v, slow

    return in_place(update, 3)


@program
def adaptive_clip() -> Program:
    """Gradients clipped by the norms of the units that they move (Brock et al. 2021), momentum, weights averaged."""

    def update(t: Tensor, p: Tensor, g: Tensor, m: Tensor, mean: Tensor) -> tuple[Tensor, ...]:
        axes = tuple(range(1, p.dim())) or (0,)
        most = 0.01 * p.square().sum(axes, keepdim=True).sqrt().clamp_min(1e-3)
        size = g.square().sum(axes, keepdim=True).sqrt()
        g = torch.where(size > most, g * (most / size.clamp_min(1e-6)), g)
        m = 0.9 * m + g
        p = p - 0.1 * (g + 0.9 * m)
        keep = torch.minimum((1 + t) / (10 + t), torch.tensor(0.9999))
        return p, m, keep * mean + (1 - keep) * p

    return in_place(update, 2)


@program
def hardest() -> Program:
    """Triplets of the farthest of a class and the nearest of another (Hermans et al. 2017), with a soft margin."""

    def loss(x: Tensor, label: Tensor) -> Tensor:
        x = F.normalize(x)
        apart = (2 - 2 * x @ x.T).clamp_min(1e-9).sqrt()
        same = label[:, None] == label[None]
        far = torch.where(same, apart, 0).amax(1)
        near = torch.where(same, 9.0, apart).amin(1)
        return F.softplus(far - near).mean() + 1e-2 * torch.where(same, 0, (0.5 - apart).clamp_min(0)).square().mean()

    return loss, [random(768, 96, learned=True), torch.randint(32, (768,))]


@program
def discrepancy() -> Program:
    """Maximum mean discrepancy of two samples under five kernels (Gretton et al. 2012)."""

    def loss(a: Tensor, b: Tensor) -> Tensor:
        both = torch.cat([a, b])
        size = both.square().sum(1)
        apart = (size[:, None] + size[None] - 2 * both @ both.T).clamp_min(0)
        width = apart.detach().mean()
        kernel = torch.zeros_like(apart)
        for scale in (0.25, 0.5, 1.0, 2.0, 4.0):
            kernel = kernel + torch.exp(-apart / (scale * width))
        n = a.shape[0]
        return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()

    return loss, [random(320, 32, learned=True), random(320, 32, learned=True)]


@program
def chain_field() -> Program:
    """Likelihood of label sequences under a conditional random field, ten steps (Lafferty et al. 2001)."""

    def loss(score: Tensor, step: Tensor, label: Tensor, mask: Tensor) -> Tensor:
        state = score[:, 0]
        own = score[:, 0].gather(1, label[:, :1])[:, 0]
        for i in range(1, 10):
            ahead = torch.logsumexp(state[:, :, None] + step[None], 1) + score[:, i]
            state = torch.where(mask[:, i, None], ahead, state)
            move = step[label[:, i - 1], label[:, i]] + score[:, i].gather(1, label[:, i : i + 1])[:, 0]
            own = own + torch.where(mask[:, i], move, 0)
        return (torch.logsumexp(state, 1) - own).mean()

    return loss, [random(128, 10, 24, learned=True), random(24, 24, learned=True), torch.randint(24, (128, 10)),
                  torch.arange(10)[None] < torch.randint(4, 11, (128, 1))]  # fmt: skip


@program
def centred() -> Program:
    """A student's views against a teacher's, centred and sharpened (Caron et al. 2021), with the next centre."""

    def loss(student: Tensor, teacher: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
        target = torch.softmax((teacher - centre) / 0.04, 2)
        found = torch.log_softmax(student / 0.1, 2)
        total = torch.zeros(())
        for i in range(2):
            for j in range(4):
                if i != j:
                    total = total - (target[i] * found[j]).sum(1).mean()
        return total / 7, 0.9 * centre + 0.1 * teacher.mean((0, 1))

    return loss, [random(4, 96, 2048, learned=True), random(2, 96, 2048), random(2048)]


@program
def drawn_codes() -> Program:
    """Codes drawn by Gumbel noise (Jang et al. 2017), straight through, with what they cost in bits."""

    def loss(x: Tensor, noise: Tensor, codes: Tensor, target: Tensor) -> Tensor:
        soft = torch.softmax((x - (-(noise + 1e-9).log() + 1e-9).log()) / 0.7, 2)
        hard = F.one_hot(soft.argmax(2), x.shape[2]).float()
        found = (hard - soft.detach() + soft) @ codes
        log = torch.log_softmax(x, 2)
        bits = (log.exp() * (log + math.log(x.shape[2]))).sum(2)
        return F.smooth_l1_loss(found, target) + 1e-2 * bits.clamp_min(0.1).mean()

    return loss, [random(32, 64, 128, learned=True), torch.rand(32, 64, 128), random(128, 24, learned=True),
                  random(32, 64, 24)]  # fmt: skip


@program
def many_labels() -> Program:
    """Asymmetric loss of many labels (Ridnik et al. 2021), with labels smoothed by how often they occur."""

    def loss(x: Tensor, y: Tensor) -> Tensor:
        often = y.mean(0, keepdim=True)
        yes = torch.sigmoid(x)
        no = (1 - yes + 0.05).clamp_max(1)
        target = y * (1 - 0.1 * often) + (1 - y) * 0.1 * often
        log = target * yes.clamp_min(1e-8).log() + (1 - target) * no.clamp_min(1e-8).log()
        sure = yes * y + no * (1 - y)
        with_weight = log * (1 - sure).clamp_min(0).pow(1 * y + 4 * (1 - y))
        return -with_weight.sum(1).mean()

    return loss, [random(512, 640, learned=True), (torch.rand(512, 640) < 0.04).float()]


@program
def failures() -> Program:
    """Times until failure by Weibull's law, censored, with a mixture of three causes."""

    def loss(raw: Tensor, time: Tensor, seen: Tensor) -> Tensor:
        shape, scale, share = F.softplus(raw[..., 0]) + 0.1, F.softplus(raw[..., 1]) + 0.1, raw[..., 2]
        ratio = time[:, None] / scale
        log = (ratio + 1e-6).log()
        alive = -torch.exp(shape * log)
        density = shape.log() - scale.log() + (shape - 1) * log + alive
        term = torch.where(seen[:, None] > 0.5, density, alive) + torch.log_softmax(share, 1)
        mean = (torch.softmax(share, 1) * scale * torch.exp(torch.lgamma(1 + 1 / shape))).sum(1)
        return -torch.logsumexp(term, 1).mean() + 1e-3 * (mean - time).abs().mean()

    return loss, [random(16384, 3, 3, learned=True), torch.rand(16384) * 3, (torch.rand(16384) < 0.6).float()]


@program
def classes_apart() -> Program:
    """Supervised contrast of two views (Khosla et al. 2020), with weights of rare classes."""

    def loss(x: Tensor, label: Tensor) -> Tensor:
        x = x / x.norm(dim=1, keepdim=True).clamp_min(1e-6)
        like = x @ x.T / 0.1
        like = like - like.detach().amax(1, keepdim=True)
        other = 1 - torch.eye(x.shape[0])
        same = (label[:, None] == label[None]).float() * other
        log = like - (like.exp() * other).sum(1, keepdim=True).log()
        each = (same * log).sum(1) / same.sum(1).clamp_min(1)
        return -(each / (1 + same.sum(1)).sqrt()).mean()

    return loss, [random(768, 64, learned=True), torch.randint(48, (768,))]


@program
def squared_attention() -> Program:
    """A gated attention unit (Hua et al. 2022): squared rectified scores, one head, gates around it."""

    def layer(x: Tensor, w: Tensor, out: Tensor, gain: Tensor, bias: Tensor, near: Tensor) -> Tensor:
        y = F.layer_norm(x, x.shape[-1:])
        u, v, z = F.silu(y @ w).split([256, 256, 64], 2)
        q, k = z * gain[0] + bias[0], z * gain[1] + bias[1]
        score = F.relu(q @ k.transpose(1, 2) / 128 + near).square()
        score = score * torch.tril(torch.ones(128, 128))
        return x + (u * (score @ v)) @ out

    return layer, [random(8, 128, 128), random(128, 576, learned=True), random(256, 128, learned=True),
                   random(2, 64, learned=True), random(2, 64, learned=True),
                   random(128, 128, learned=True)]  # fmt: skip


@program
def retention() -> Program:
    """Retention in a chunk with the state of the one before (Sun et al. 2023), normalised by groups and gated."""

    def layer(q: Tensor, k: Tensor, v: Tensor, gate: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        decay = 1 - torch.exp2(-5 - torch.arange(q.shape[1]).float())
        place = torch.arange(q.shape[2]).float()
        between = place[:, None] - place[None]
        mask = torch.where(between >= 0, decay[:, None, None] ** between.clamp_min(0), 0)
        mask = mask / mask.sum(2, keepdim=True).sqrt()
        score = q @ k.transpose(2, 3) * mask
        score = score / score.detach().abs().sum(3, keepdim=True).clamp_min(1)
        carried = (q @ state) * decay[:, None, None] ** (place[:, None] + 1)
        found = score @ v + carried
        found = (found - found.mean(3, keepdim=True)) * (found.var(3, keepdim=True) + 1e-5).rsqrt()
        late = decay[:, None, None] ** (q.shape[2] - 1 - place[:, None])
        return F.silu(gate) * found, state * decay[:, None, None] ** q.shape[2] + (k * late).transpose(2, 3) @ v

    return layer, [random(4, 8, 96, 32, learned=True), random(4, 8, 96, 32, learned=True),
                   random(4, 8, 96, 32, learned=True), random(4, 8, 96, 32), random(4, 8, 32, 32)]  # fmt: skip


@program
def every_pair() -> Program:
    """Attention over a dense graph whose scores see both ends before they bend (Brody et al. 2022)."""

    def layer(x: Tensor, y: Tensor, a: Tensor, edge: Tensor, length: Tensor) -> Tensor:
        pair = F.leaky_relu(x[:, None] + y[None] + length[..., None] * a[0], 0.2)
        score = torch.where(edge[..., None], (pair * a[1]).unflatten(2, (4, 12)).sum(3), -1e9)
        share = torch.softmax(score, 1)
        return F.elu(torch.einsum("ijh,jhc->ihc", share, y.unflatten(1, (4, 12))).flatten(1)) + x

    return layer, [random(160, 48, learned=True), random(160, 48, learned=True), random(2, 48, learned=True),
                   torch.rand(160, 160) < 0.3, torch.rand(160, 160)]  # fmt: skip


@program
def assigned() -> Program:
    """Residuals of local features to soft clusters, normalised twice (NetVLAD, Arandjelovic et al. 2016)."""

    def layer(x: Tensor, w: Tensor, centres: Tensor) -> Tensor:
        x = F.normalize(x, dim=2)
        share = torch.softmax(x @ w, 2)
        rest = share.transpose(1, 2) @ x - share.sum(1)[..., None] * centres
        rest = rest / rest.norm(dim=2, keepdim=True).clamp_min(1e-6)
        rest = rest.flatten(1)
        return rest / rest.norm(dim=1, keepdim=True).clamp_min(1e-6)

    return layer, [random(16, 400, 96, learned=True), random(96, 32, learned=True), random(32, 96, learned=True)]


@program
def polynomials() -> Program:
    """A layer of Chebyshev polynomials of every input, six degrees, with a norm of groups before it."""

    def layer(x: Tensor, w: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        y = x.unflatten(1, (8, -1))
        y = (y - y.mean(2, keepdim=True)) * (y.var(2, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        y = torch.tanh(y.flatten(1) * gain + bias)
        terms = [torch.ones_like(y), y]
        for _ in range(4):
            terms.append(2 * y * terms[-1] - terms[-2])
        return F.silu(x) @ w[:256] + torch.cat(terms, 1) @ w[256:]

    return layer, [random(1024, 256, learned=True), random(256 * 7, 96, learned=True), random(256, learned=True),
                   random(256, learned=True)]  # fmt: skip


@program
def along_lines() -> Program:
    """Gates of rows and columns of pictures (Hou et al. 2021), with h-swish between."""

    def layer(x: Tensor, w: Tensor, wide: Tensor, high: Tensor, gain: Tensor) -> Tensor:
        rows, columns = x.mean(3), x.mean(2)
        both = torch.einsum("bcl,cd->bdl", torch.cat([rows, columns], 2), w)
        both = (both - both.mean((0, 2), keepdim=True)) * (both.var((0, 2), keepdim=True) + 1e-5).rsqrt()
        both = both * gain[:, None]
        both = both * F.relu6(both + 3) / 6
        a, b = both.split(x.shape[2:], 2)
        up = torch.sigmoid(torch.einsum("bdl,dc->bcl", a, high))[..., None]
        across = torch.sigmoid(torch.einsum("bdl,dc->bcl", b, wide))[:, :, None]
        return F.relu(x * up * across + x)

    return layer, [random(8, 64, 48, 48, learned=True), random(64, 16, learned=True), random(16, 64, learned=True),
                   random(16, 64, learned=True), random(16, learned=True)]  # fmt: skip


@program
def shocks() -> Program:
    """Two steps of Burgers' equation by weighted fluxes of third order that do not oscillate (Liu et al. 1994)."""

    def flux(f: Tensor) -> Tensor:
        left, right = torch.roll(f, 1, 1), torch.roll(f, -1, 1)
        a, b = (f - left).square(), (right - f).square()
        wa, wb = 1 / 3 / (a + 1e-6).square(), 2 / 3 / (b + 1e-6).square()
        return (wa * (1.5 * f - 0.5 * left) + wb * 0.5 * (f + right)) / (wa + wb)

    def rate(u: Tensor) -> Tensor:
        fast = u.abs().amax(1, keepdim=True)
        out, back = 0.5 * (u * u / 2 + fast * u), 0.5 * (u * u / 2 - fast * u)
        total = flux(out) + torch.roll(flux(back.flip(1)).flip(1), -1, 1)
        return torch.roll(total, 1, 1) - total

    def steps(u: Tensor) -> Tensor:
        for _ in range(2):
            half = u + 0.2 * rate(u)
            u = 0.5 * u + 0.5 * (half + 0.2 * rate(half))
        return u

    return steps, [random(64, 2048)]


@program
def spins() -> Program:
    """Four half sweeps of Metropolis over spins on a torus, by the colours of a chessboard, with the energy."""

    def sweeps(s: Tensor, noise: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        black = (torch.arange(320)[:, None] + torch.arange(320)[None]) % 2 == 0

        def around(s: Tensor) -> Tensor:
            return torch.roll(s, 1, 0) + torch.roll(s, -1, 0) + torch.roll(s, 1, 1) + torch.roll(s, -1, 1)

        for i in range(4):
            cost = 2 * s * around(s)
            turn = (noise[i] < torch.exp(-cost / heat)) & (black if i % 2 == 0 else ~black)
            s = torch.where(turn, -s, s)
        return s, -(s * around(s)).mean() / 2

    return sweeps, [torch.rand(320, 320).sub(0.5).sign(), torch.rand(4, 320, 320), torch.tensor(2.3)]


@program
def geodesics() -> Program:
    """Distances on an ellipsoid, three iterations of Vincenty's formula (1975)."""

    def distance(a: Tensor, b: Tensor) -> Tensor:
        flat = 1 / 298.257
        u, v = torch.atan((1 - flat) * torch.tan(a[0])), torch.atan((1 - flat) * torch.tan(b[0]))
        su, cu, sv, cv = torch.sin(u), torch.cos(u), torch.sin(v), torch.cos(v)
        turn = gap = b[1] - a[1]
        for _ in range(3):
            st, ct = torch.sin(turn), torch.cos(turn)
            s = ((cv * st).square() + (cu * sv - su * cv * ct).square()).sqrt()
            c = su * sv + cu * cv * ct
            arc = torch.atan2(s, c)
            sine = cu * cv * st / s
            rest = 1 - sine.square()
            middle = c - 2 * su * sv / rest
            k = flat / 16 * rest * (4 + flat * (4 - 3 * rest))
            turn = gap + (1 - k) * flat * sine * (arc + k * s * (middle + k * c * (2 * middle.square() - 1)))
        return 6356.75 * arc * (1 + rest * 0.0067 / 4)

    return distance, [torch.rand(2, 131072) * 0.8 + 0.1, torch.rand(2, 131072) * 0.8 - 1.0]


@program
def bilateral() -> Program:
    """Pictures smoothed where neighbours are alike, 3 x 3, and what that took away made sharper."""

    def smooth(x: Tensor) -> Tensor:
        wide = F.pad(x, (1, 1, 1, 1), mode="replicate")
        grey = (wide * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
        centre = grey[:, :, 1:-1, 1:-1]
        total, weight = torch.zeros_like(x), torch.zeros_like(centre)
        for i in range(3):
            for j in range(3):
                high, across = slice(i, i + x.shape[2]), slice(j, j + x.shape[3])
                near = torch.exp(-(grey[:, :, high, across] - centre).square() / 0.02)
                near = near * math.exp(-((i - 1) ** 2 + (j - 1) ** 2) / 2)
                total, weight = total + near * wide[:, :, high, across], weight + near
        flat = total / weight
        return (flat + 1.5 * (x - flat)).clamp(0, 1)

    return smooth, [torch.rand(4, 3, 160, 160)]


@program
def asian() -> Program:
    """Options on the mean of twelve prices under volatility that moves (Heston 1993), with the delta."""

    def price(spot: Tensor, level: Tensor, noise: Tensor) -> Tensor:
        s, v, total = spot.log().expand(noise.shape[2]), level.expand(noise.shape[2]), torch.zeros(noise.shape[2])
        for i in range(12):
            size = v.clamp_min(0)
            root = (size / 12).sqrt()
            s = s - 0.5 * size / 12 + root * noise[0, i]
            v = v + 1.5 * (0.04 - size) / 12 + 0.3 * root * (-0.6 * noise[0, i] + 0.8 * noise[1, i])
            total = total + s.exp()
        return F.relu(total / 12 - 1).mean()

    return price, [torch.tensor(1.02, requires_grad=True), torch.tensor(0.05, requires_grad=True),
                   random(2, 12, 40000)]  # fmt: skip


@program
def shaded() -> Program:
    """Light of four lamps on a surface of heights, by microfacets (Cook and Torrance 1982), and a tone curve."""

    def light(height: Tensor, colour: Tensor, rough: Tensor, lamps: Tensor) -> Tensor:
        slope = torch.stack([height - torch.roll(height, 1, 1), height - torch.roll(height, 1, 0),
                             torch.full_like(height, 0.5)])  # fmt: skip
        normal = slope * slope.square().sum(0, keepdim=True).rsqrt()
        a = rough.square().clamp_min(1e-3)
        total = 0.03 * colour
        for lamp in lamps:
            way = lamp / lamp.norm()
            half = way + torch.tensor([0.0, 0.0, 1.0])
            half = half / half.norm()
            nl, nh = (
                (normal * way[:, None, None]).sum(0).clamp_min(0),
                (normal * half[:, None, None]).sum(0).clamp_min(0),
            )
            nv = normal[2].clamp_min(1e-3)
            spread = a / (math.pi * (nh.square() * (a - 1) + 1).square())
            k = (rough + 1).square() / 8
            mask = nl / (nl * (1 - k) + k) * nv / (nv * (1 - k) + k)
            mirror = 0.04 + 0.96 * (1 - half[2]) ** 5
            total = total + (colour * (1 - mirror) / math.pi + spread * mask * mirror / (4 * nv * nl + 1e-3)) * nl
        return ((total * (2.51 * total + 0.03)) / (total * (2.43 * total + 0.59) + 0.14)).clamp(0, 1)

    return light, [torch.rand(256, 256), torch.rand(3, 256, 256), torch.rand(256, 256), torch.rand(4, 3) + 0.2]


BLIND = ["madgrad", "novograd", "quasi_hyperbolic", "projected", "prodigy", "correlations", "wing", "count_data",
         "survival", "hyperbolic", "directions", "reverse_advantages", "sparse_attention", "delta_rule", "capsules",
         "planar_flow", "kalman", "warped", "perceptual_colour", "shallow_water", "lookup",
         "spectral_envelopes"]  # fmt: skip
LATER = ["adan", "sophia", "lars", "schedule_free", "sinkhorn", "mixture_density", "vicreg", "clipped_policy",
         "student_t", "likeness", "time_mix", "splines", "hue", "bodies", "prices", "lattice"]  # fmt: skip
LAST = [
    "yogi",
    "ademamix",
    "adabound",
    "cautious",
    "angular_margin",
    "circle",
    "boxes",
    "quantiles",
    "evidence",
    "preference",
    "ensemble_score",
    "rays",
    "recurrent_cell",
    "response",
    "reaction",
    "rotations",
    "similarity",
    "rotary",
]
UNTRIED = ["came", "covers", "lookahead", "adaptive_clip", "hardest", "discrepancy", "chain_field", "centred",
           "drawn_codes", "many_labels", "failures", "classes_apart", "squared_attention", "retention", "every_pair",
           "assigned", "polynomials", "along_lines", "shocks", "spins", "geodesics", "bilateral", "asian",
           "shaded"]  # fmt: skip
