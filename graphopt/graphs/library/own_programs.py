"""Programs to compile: training steps of layers, and optimisers. Sizes are such that a run takes some milliseconds.

Layers of transformers and timm are here where these are installed.
"""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Program = tuple[Any, list[Tensor]]
PROGRAMS: dict[str, Callable[[], Program]] = {}
SIZES = [(768, 768), (768,), (3072, 192), (96, 96, 3, 3)] * 3


def program(make: Callable[[], Program]) -> Callable[[], Program]:
    PROGRAMS[make.__name__] = make
    return make


def training_step(module: nn.Module, *inputs: Tensor) -> Program:
    """Forward and gradients of all parameters and of the first input, as a function of flat tensors: parameters, the
    gradient that arrives, inputs."""
    names = [name for name, _ in module.named_parameters()]
    given = [parameter.detach() for parameter in module.parameters()]
    result = module(*inputs)
    seed = torch.randn_like(result[0] if isinstance(result, tuple) else result)

    def step(*flat: Tensor) -> list[Tensor]:
        leaves = [tensor.detach().requires_grad_() for tensor in flat[: len(names)]]
        first = flat[len(names) + 1].detach()
        first = first.requires_grad_(first.is_floating_point())
        made = torch.func.functional_call(module, dict(zip(names, leaves)), (first, *flat[len(names) + 2 :]))
        out = made[0] if isinstance(made, tuple) else made
        wanted = [*leaves, first] if first.requires_grad else leaves
        return [out.detach(), *torch.autograd.grad(out, wanted, flat[len(names)], allow_unused=True)]

    return step, [*given, seed, *inputs]


def optimiser(update: Callable[..., tuple[Tensor, ...]], states: int) -> Program:
    """A step over all parameters; update(parameter, gradient, states...) gives the new parameter and states."""
    parts = [torch.rand(*size) * 0.1 + 0.01 for _ in range(2 + states) for size in SIZES]

    def step(*flat: Tensor) -> list[Tensor]:
        groups = [flat[i * len(SIZES) : (i + 1) * len(SIZES)] for i in range(2 + states)]
        for parameter, gradient, *kept in zip(*groups):
            new = update(parameter, gradient, *kept)
            for old, value in zip((parameter, *kept), new):
                old.copy_(value)
        return []

    return step, parts


@program
def adagrad_clipped() -> Program:
    def update(p: Tensor, g: Tensor, s: Tensor) -> tuple[Tensor, ...]:
        g = g * torch.clamp(1.0 / (g.norm() + 1e-6), max=1.0)
        s = s + g * g
        return p - 1e-2 * g / (s.sqrt() + 1e-10), s

    return optimiser(update, 1)


@program
def rmsprop_centred() -> Program:
    def update(p: Tensor, g: Tensor, s: Tensor, m: Tensor) -> tuple[Tensor, ...]:
        s, m = 0.99 * s + 0.01 * g * g, 0.99 * m + 0.01 * g
        return p - 1e-3 * g / ((s - m * m).clamp_min(0).sqrt() + 1e-8), s, m

    return optimiser(update, 2)


@program
def transformer_layer() -> Program:
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
    return training_step(layer, torch.randn(4, 192, 128))


@program
def gated_recurrent_steps() -> Program:
    cell = nn.GRUCell(96, 96)

    class Unrolled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.norm = cell, nn.LayerNorm(96)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.zeros(x.shape[1], 96)
            for step in x:
                h = self.norm(self.cell(step, h))
            return h

    return training_step(Unrolled(), torch.randn(6, 256, 96))


def random(*shape: int, learned: bool = False) -> Tensor:
    return torch.randn(*shape).requires_grad_(learned)


@program
def norm_residual() -> Program:
    """Two residual blocks of layer norm, gate and scale, without matrix products."""
    rows, width = 4096, 192

    def block(x: Tensor, scale: Tensor, shift: Tensor, gate: Tensor) -> Tensor:
        for _ in range(2):
            h = F.layer_norm(x, (width,), scale, shift)
            x = x + F.gelu(h * gate, approximate="tanh") * torch.sigmoid(h)
        return x

    weights = [random(width, learned=True) for _ in range(3)]
    return block, [random(rows, width, learned=True), *weights]


@program
def biased_attention() -> Program:
    """Scores with a learned bias per distance, bounded by tanh, causal."""
    batch, heads, length, width = 2, 6, 320, 32

    def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        place = torch.arange(length)
        distance = place[:, None] - place[None, :]
        scores = 20.0 * torch.tanh((q @ k.transpose(-1, -2)) * width**-0.5 / 20.0) + bias[:, distance.abs()]
        return torch.softmax(scores.masked_fill(distance < 0, float("-inf")), -1) @ v

    given = [random(batch, heads, length, width, learned=True) for _ in range(3)]
    return attention, [*given, random(heads, length, learned=True)]


@program
def focal_loss() -> Program:
    """Classification with label smoothing and a weight that falls with certainty."""
    rows, classes = 1024, 4096

    def loss(logits: Tensor, label: Tensor) -> Tensor:
        logs = F.log_softmax(logits, -1)
        of_label = logs.gather(1, label[:, None])[:, 0]
        smooth = 0.95 * of_label + 0.05 * logs.mean(-1)
        return -((1 - of_label.exp()) ** 2 * smooth).mean()

    return loss, [random(rows, classes, learned=True), torch.randint(0, classes, (rows,))]


@program
def edge_messages() -> Program:
    """Two rounds of gated messages along edges, summed at nodes and normalised."""
    nodes, edges, width = 4096, 16384, 48

    def rounds(x: Tensor, e: Tensor, gate: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for _ in range(2):
            message = torch.tanh(x[source]) * torch.sigmoid(e * gate + x[target])
            x = F.layer_norm(x + torch.zeros_like(x).index_add(0, target, message), (width,))
        return x

    learned = [random(nodes, width, learned=True), random(edges, width, learned=True), random(width, learned=True)]
    return rounds, [*learned, torch.randint(0, nodes, (edges,)), torch.randint(0, nodes, (edges,))]


@program
def group_norm_block() -> Program:
    """Group norm, a shift per picture, activation, and a gate per channel."""
    batch, channels, size = 4, 48, 56

    def block(x: Tensor, shift: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        h = F.silu(F.group_norm(x, 6, scale, bias) + shift[:, :, None, None])
        return x + h * torch.sigmoid(h.mean((2, 3), keepdim=True))

    learned = [random(channels, learned=True), random(channels, learned=True)]
    return block, [random(batch, channels, size, size, learned=True), random(batch, channels, learned=True), *learned]


@program
def heat_and_advection() -> Program:
    """Three steps of a field that spreads and is carried along, on a ring in both directions."""
    size = 768

    def steps(t: Tensor, u: Tensor, v: Tensor) -> list[Tensor]:
        for _ in range(3):
            west, east, north, south = (t.roll(by, dim) for dim in (1, 0) for by in (1, -1))
            carried = u.clamp(min=0) * (t - west) + u.clamp(max=0) * (east - t)
            carried = carried + v.clamp(min=0) * (t - north) + v.clamp(max=0) * (south - t)
            t = t - 0.1 * carried + 0.1 * (west + east + north + south - 4 * t)
        return [t]

    return steps, [torch.rand(size, size), 0.5 * random(size, size), 0.5 * random(size, size)]


@program
def picture_statistics() -> Program:
    """Pictures brightened, compressed, and normalised by their own mean and deviation."""

    def transform(x: Tensor, light: Tensor, gamma: Tensor) -> list[Tensor]:
        x = (x * light).clamp(0, 1) ** gamma
        grey = (x * torch.tensor([0.3, 0.6, 0.1])[None, :, None, None]).sum(1, keepdim=True)
        x = torch.where(grey > 0.8, 0.5 * (x + grey), x)
        return [(x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-4)]

    one = (8, 1, 1, 1)
    return transform, [torch.rand(8, 3, 224, 224), torch.rand(one) + 0.5, torch.rand(one) + 0.5]


def _layer_of(architecture: str, settings: dict[str, Any], tokens: bool = True) -> Program:
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(architecture, **settings)
    config._attn_implementation = "eager"
    model = AutoModel.from_config(config).eval()

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            state: Tensor = self.model(inputs_embeds=x).last_hidden_state
            return state

    return training_step(First(), torch.randn(2, 128, 128))


if find_spec("transformers") is not None:
    WIDTHS = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 100}

    @program
    def llama_layer() -> Program:
        return _layer_of("llama", {**WIDTHS, "intermediate_size": 344, "num_key_value_heads": 2})

    @program
    def gpt_neox_layer() -> Program:
        return _layer_of("gpt_neox", {**WIDTHS, "intermediate_size": 512})

    @program
    def gemma2_layer() -> Program:
        return _layer_of("gemma2", {**WIDTHS, "intermediate_size": 256, "num_key_value_heads": 2, "head_dim": 32})


if find_spec("timm") is not None:

    def _block(name: str, position: str, *inputs: Tensor, **settings: Any) -> Program:
        from graphopt.graphs.library.packages import without_torchvision

        without_torchvision()
        import timm

        model = timm.create_model(name, **settings).eval()
        return training_step(model.get_submodule(position), *inputs)

    @program
    def convnext_block() -> Program:
        return _block("convnext_atto", "stages.1.blocks.0", torch.randn(2, 80, 28, 28))

    @program
    def swin_block() -> Program:
        return _block("swin_tiny_patch4_window7_224", "layers.0.blocks.1", torch.randn(1, 28, 28, 96), img_size=112)

    @program
    def efficientnet_block() -> Program:
        return _block("efficientnet_b0", "blocks.2.1", torch.randn(2, 40, 28, 28))
