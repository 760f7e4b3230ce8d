"""Programs of torch's own functions, on which costs of generated code are looked at: optimisers of torch.optim, losses,
and chains of layers, activations, reductions and selections that a seed draws, as Adams et al. (2019, section 5) draw
pipelines.

    python run.py experiment=calibration dataset.source=benchmarks/library_programs.py dataset.graphs=compiled

A program takes some milliseconds a run on one core. Nothing of benchmarks/unseen_programs.py is among them.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import adadelta, adagrad, adam, adamax, asgd, radam, rmsprop, rprop, sgd

Program = tuple[Callable[..., Any], list[Tensor]]
Step = Callable[[Tensor], Tensor]
PARAMETERS = [(512, 512), (512,), (1024, 192), (48, 96, 3, 3)] * 2
CHAINS = 128

# ---- optimisers: the update of torch.optim, for all parameters


def optimiser(update: Callable[..., None], states: int, **settings: Any) -> Program:
    """update(parameters, gradients, state after state, steps)."""
    count = len(PARAMETERS)
    parts = [torch.rand(*shape) * 0.1 + 0.01 for _ in range(2 + states) for shape in PARAMETERS]

    def step(t: Tensor, *flat: Tensor) -> Tensor:
        groups = [[*flat[i * count : (i + 1) * count]] for i in range(2 + states)]
        update(*groups, [t.clone() for _ in range(count)], **settings)
        return t + 1

    return step, [torch.tensor(7.0), *parts]


def momentum(parameters: Any, gradients: Any, buffers: Any, steps: Any, **settings: Any) -> None:
    sgd.sgd(parameters, gradients, buffers, foreach=False, maximize=False, **settings)


def adam_update(parameters: Any, gradients: Any, means: Any, squares: Any, *rest: Any, **settings: Any) -> None:
    *largest, steps = rest
    adam.adam(parameters, gradients, means, squares, largest[0] if largest else [], steps, foreach=False,
              amsgrad=bool(largest), beta1=0.9, beta2=0.999, lr=1e-3, eps=1e-8, maximize=False, **settings)  # fmt: skip


def rms(parameters: Any, gradients: Any, squares: Any, means: Any, buffers: Any, steps: Any) -> None:
    rmsprop.rmsprop(parameters, gradients, squares, means, buffers, steps, foreach=False, lr=1e-3, alpha=0.99, eps=1e-8,
                    weight_decay=0.01, momentum=0.9, centered=True)  # fmt: skip


def averaged(parameters: Any, gradients: Any, means: Any, steps: Any) -> None:
    rates = [[torch.tensor(value) for _ in steps] for value in (1.0, 1e-3)]
    asgd.asgd(parameters, gradients, means, *rates, steps, foreach=False, lambd=1e-4, lr=1e-3, t0=1e3, alpha=0.75,
              weight_decay=0.01, maximize=False)  # fmt: skip


OPTIMISERS: dict[str, Callable[[], Program]] = {
    "momentum": lambda: optimiser(momentum, 1, weight_decay=0.01, momentum=0.9, lr=1e-3, dampening=0.1, nesterov=False),
    "nesterov": lambda: optimiser(momentum, 1, weight_decay=0.0, momentum=0.9, lr=1e-3, dampening=0.0, nesterov=True),
    "adam": lambda: optimiser(adam_update, 2, weight_decay=0.01),
    "amsgrad": lambda: optimiser(adam_update, 3, weight_decay=0.0),
    "adamw": lambda: optimiser(adam_update, 2, weight_decay=0.01, decoupled_weight_decay=True),
    "adagrad": lambda: optimiser(partial(adagrad.adagrad, foreach=False), 1, lr=1e-2, weight_decay=0.01, lr_decay=1e-3,
                                 eps=1e-10, maximize=False),
    "adadelta": lambda: optimiser(partial(adadelta.adadelta, foreach=False), 2, lr=1.0, rho=0.9, eps=1e-6,
                                  weight_decay=0.01, maximize=False),
    "adamax": lambda: optimiser(partial(adamax.adamax, foreach=False), 2, eps=1e-8, beta1=0.9, beta2=0.999, lr=2e-3,
                                weight_decay=0.01),
    "radam": lambda: optimiser(partial(radam.radam, foreach=False), 2, beta1=0.9, beta2=0.999, lr=1e-3,
                               weight_decay=0.01, eps=1e-8),
    "rmsprop": lambda: optimiser(rms, 3),
    "rprop": lambda: optimiser(partial(rprop.rprop, foreach=False), 2, step_size_min=1e-6, step_size_max=50.0,
                               etaminus=0.5, etaplus=1.2, maximize=False),
    "asgd": lambda: optimiser(averaged, 1),
}  # fmt: skip

# ---- losses: of a prediction that comes from a map of inputs


def loss(
    of: Callable[..., Tensor], *others: Callable[[int, int], Tensor], rows: int = 8192, width: int = 128
) -> Program:
    """of(prediction, others...); each of the others is made from rows and width."""

    def run(x: Tensor, scale: Tensor, shift: Tensor, *given: Tensor) -> Tensor:
        return of(x * scale + shift, *given)

    weights = [torch.randn(width).requires_grad_(), torch.randn(width).requires_grad_()]
    return run, [torch.randn(rows, width), *weights, *(make(rows, width) for make in others)]


def real(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width)


def share(rows: int, width: int) -> Tensor:
    return torch.rand(rows, width)


def label(rows: int, width: int) -> Tensor:
    return torch.randint(width, (rows,))


def sign(rows: int, width: int) -> Tensor:
    return torch.randint(2, (rows,)) * 2.0 - 1


def signs(rows: int, width: int) -> Tensor:
    return torch.randint(2, (rows, width)) * 2.0 - 1


LOSSES: dict[str, Callable[[], Program]] = {
    "cross_entropy": lambda: loss(partial(F.cross_entropy, label_smoothing=0.1), label),
    "soft_cross_entropy": lambda: loss(lambda p, t: F.cross_entropy(p, torch.softmax(t, 1)), real, width=48),
    "binary": lambda: loss(lambda p, t: F.binary_cross_entropy(torch.sigmoid(p), t), share),
    "binary_logits": lambda: loss(lambda p, t, w: F.binary_cross_entropy_with_logits(p, t, w), share, share),
    "divergence": lambda: loss(lambda p, t: F.kl_div(F.log_softmax(p, 1), torch.softmax(t, 1), reduction="batchmean"),
                               real),
    "huber": lambda: loss(partial(F.huber_loss, delta=0.7), real, width=100),
    "smooth": lambda: loss(lambda p, t: F.smooth_l1_loss(p, t, beta=0.4) + F.mse_loss(p, t).sqrt(), real),
    "poisson": lambda: loss(lambda p, t: F.poisson_nll_loss(p.clamp(max=4), t, full=False), share),
    "gaussian": lambda: loss(lambda p, t, v: F.gaussian_nll_loss(p, t, F.softplus(v)), real, real),
    "cosine": lambda: loss(lambda p, t, s: F.cosine_embedding_loss(p, t, s, margin=0.1), real, sign),
    "soft_margin": lambda: loss(F.soft_margin_loss, signs, width=37),
    "many_labels": lambda: loss(lambda p, t: F.multilabel_soft_margin_loss(p, t), share, width=80),
    "triplet": lambda: loss(lambda p, a, b: F.triplet_margin_loss(p, a, b, swap=True), real, real),
    "hinge": lambda: loss(lambda p, t, s: F.hinge_embedding_loss(F.pairwise_distance(p, t), s), real, sign),
    "focal": lambda: loss(lambda p, t: (((t - torch.sigmoid(p)).abs() ** 2)
                                        * F.binary_cross_entropy_with_logits(p, t, reduction="none")).mean(), share,
                          width=20),
    "polynomial": lambda: loss(lambda p, t: (F.cross_entropy(p, t, reduction="none") + 1 - torch.softmax(p, 1)
                                             .gather(1, t[:, None])[:, 0]).mean(), label, width=64),
}  # fmt: skip

# ---- chains: pieces that a seed draws


class Draw(random.Random):
    """What a seed draws. given: [(tensor)] weights and indices, which the program takes as inputs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.given: list[Tensor] = []

    def weight(self, *shape: int) -> int:
        self.given.append((torch.randn(*shape) * 0.2).requires_grad_())
        return len(self.given) - 1


ACTIVATIONS: list[Step] = [
    F.gelu, partial(F.gelu, approximate="tanh"), F.silu, F.mish, F.elu, F.selu, F.softplus, F.softsign, F.hardswish,
    F.leaky_relu, torch.sigmoid, torch.tanh, F.logsigmoid, F.tanhshrink, lambda x: torch.sin(x) ** 2,
    lambda x: F.relu(x) ** 2,
    lambda x: torch.exp(-x * x), lambda x: torch.sign(x) * torch.log1p(x.abs()), torch.atan, torch.erf,
]  # fmt: skip
ROWS: list[Step] = [
    lambda x: torch.softmax(x, -1), lambda x: torch.log_softmax(x, -1), lambda x: F.normalize(x, dim=-1),
    lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-3), lambda x: x - x.amax(-1, keepdim=True),
    lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
    lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    lambda x: x / (x.abs().sum(-1, keepdim=True) + 1e-3), lambda x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
]  # fmt: skip
COLUMNS: list[Step] = [
    lambda x: (x - x.mean(0)) * torch.rsqrt(x.var(0) + 1e-3), lambda x: x - x.amin(0), lambda x: x * x.abs().mean(0),
    lambda x: torch.softmax(x, 0),
]  # fmt: skip
SHIFTS: list[Step] = [
    lambda x: x - torch.roll(x, 1, 0), lambda x: F.pad(x[:, 1:] - x[:, :-1], (0, 1)), lambda x: 0.5 * (x + x.flip(0)),
    lambda x: torch.cat([x[:, ::2], x[:, 1::2]], 1), lambda x: torch.where(x > 0, torch.roll(x, 2, 1), x),
]  # fmt: skip
PICTURES: list[Step] = [
    lambda x: F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0), lambda x: F.max_pool2d(x, 3, 1, 1),
    lambda x: F.avg_pool2d(x, 3, 1, 1), lambda x: F.instance_norm(x),
    lambda x: F.pad(x, (1, 1, 1, 1), "reflect")[:, :, 2:, 2:],
    lambda x: x * torch.sigmoid(x.mean((2, 3), keepdim=True)), lambda x: x * torch.sigmoid(x.amax(1, keepdim=True)),
    lambda x: F.local_response_norm(x, 3), lambda x: F.pixel_shuffle(F.pixel_unshuffle(x, 2).tanh(), 2),
]  # fmt: skip


def chain(seed: int) -> Program:
    """Six to twelve pieces on rows [rows, width] or pictures [batch, channels, height, width], of which some take
    earlier values along, and a sum or a loss at the end."""
    draw, pictures = Draw(seed), seed % 4 == 3
    torch.manual_seed(seed)
    size = draw.choice([1 << 18, 1 << 19, 1 << 20])
    if pictures:
        channels, side = draw.choice([4, 8, 16, 24, 32]), draw.choice([32, 48, 64])
        shape = (max(1, size // (channels * side * side)), channels, side, side)
        kinds: list[list[Step]] = [ACTIVATIONS, PICTURES, PICTURES, ACTIVATIONS]
        learned = (channels, 1, 1)
    else:
        width = draw.choice([6, 12, 24, 40, 64, 100, 128, 256, 512, 768])
        shape, learned = (size // width, width), (width,)
        kinds = [ACTIVATIONS, ROWS, ROWS, COLUMNS, SHIFTS, ACTIVATIONS]
    pieces: list[tuple[str, Any]] = []
    for _ in range(draw.randint(6, 12)):
        kind = draw.choice(["step", "step", "step", "step", "scale", "join", "join", "two", "widen", "product"])
        if kind == "scale":
            pieces.append((kind, (draw.weight(*learned), draw.weight(*learned))))
        elif kind == "join":
            pieces.append((kind, (draw.random(), draw.randrange(3))))
        elif kind == "two":
            pieces.append((kind, (draw.choice(draw.choice(kinds)), draw.choice(ACTIVATIONS))))
        elif kind == "widen" and not pictures:
            pieces.append((kind, (draw.weight(4), draw.choice(ACTIVATIONS))))
        elif kind == "product" and not pictures and shape[1] <= 128:
            pieces.append((kind, draw.weight(shape[1], shape[1])))
        else:
            pieces.append(("step", draw.choice(draw.choice(kinds))))
    end = draw.choice(["value", "value", "square", "target"])

    def run(x: Tensor, target: Tensor, *given: Tensor) -> Tensor:
        seen = [x]
        for kind, what in pieces:
            if kind == "scale":
                x = x * given[what[0]] + given[what[1]]
            elif kind == "join":
                other = seen[int(what[0] * len(seen))]
                x = (x + other, x * torch.sigmoid(other), torch.where(other > x, other, 0.3 * x))[what[1]]
            elif kind == "two":
                x = what[0](x) * what[1](x)
            elif kind == "widen":
                x = what[1](x[..., None] * given[what[0]]).mean(-1)
            elif kind == "product":
                x = x @ given[what]
            else:
                x = what(x)
            seen.append(x)
        if end == "value":
            return x
        return x.square().mean() if end == "square" else F.smooth_l1_loss(x, target)

    start = torch.randn(*shape).requires_grad_()
    return run, [start, torch.randn(*shape), *draw.given]


PROGRAMS: dict[str, Callable[[], Program]] = {
    **OPTIMISERS, **LOSSES, **{f"chain_{seed}": partial(chain, seed) for seed in range(CHAINS)}}  # fmt: skip
