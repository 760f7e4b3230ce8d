"""Convolutional networks of the papers' evaluations."""

# mypy: disable-error-code="no-any-return, no-untyped-call"

from itertools import pairwise

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]


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


def _image(batch: int, size: int) -> tuple[Tensor]:
    return (torch.zeros(batch, 3, size, size),)


class Classifier(nn.Sequential):
    """Features, global mean, linear."""

    def __init__(self, features: list[nn.Module], channels: int) -> None:
        super().__init__(*features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Branches(nn.Module):
    """The input through several branches, concatenated over channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Fire(nn.Module):
    """SqueezeNet's block (Iandola et al. 2016): a 1x1 squeeze, then 1x1 and 3x3 expansions side by side."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(inputs, squeeze, 1), nn.ReLU())
        self.expand = Branches(
            nn.Sequential(nn.Conv2d(squeeze, expand, 1), nn.ReLU()),
            nn.Sequential(nn.Conv2d(squeeze, expand, 3, padding=1), nn.ReLU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.expand(self.squeeze(x))
        return out


def squeezenet(*, depth: int = 8, batch: int = 1, size: int = 224) -> Built:
    """`depth` fire blocks (8 as published), pooling after every third."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    channels = 64
    for i in range(depth):
        squeeze = 16 * (1 + i // 2)
        layers.append(Fire(channels, squeeze, 4 * squeeze))
        channels = 8 * squeeze
        if i % 3 == 1 and i < depth - 1:
            layers.append(nn.MaxPool2d(3, 2, 1))
    layers += [nn.Conv2d(channels, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers), _image(batch, size)


class ResidualBlock(nn.Module):
    """relu(body(x) + shortcut(x)); the shortcut projects where shapes differ."""

    def __init__(self, body: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = body
        plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if plain else ConvNorm(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def _stages(blocks: tuple[int, ...], first: int) -> list[tuple[int, int]]:
    """(width, stride) of every block: width doubles and stride is 2 at the start of each later stage."""
    return [(first << s, 2 if s and not b else 1) for s, count in enumerate(blocks) for b in range(count)]


def _stem() -> list[nn.Module]:
    return [ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]


def resnet18(*, depth: int = 2, batch: int = 1, size: int = 224) -> Built:
    """He et al. 2016 with `depth` basic blocks in each of the four stages (2 as published)."""
    layers, channels = _stem(), 64
    for width, stride in _stages((depth,) * 4, 64):
        body = nn.Sequential(ConvNorm(channels, width, 3, stride), ConvNorm(width, width, 3, activation=None))
        layers.append(ResidualBlock(body, channels, width, stride))
        channels = width
    return Classifier(layers, channels), _image(batch, size)


def resnext50(*, depth: int = 3, batch: int = 1, size: int = 224, groups: int = 32) -> Built:
    """Xie et al. 2017: stages of depth, depth + 1, 2 * depth and depth bottlenecks (depth 3 as published)."""
    layers, channels = _stem(), 64
    for width, stride in _stages((depth, depth + 1, 2 * depth, depth), 128):
        body = nn.Sequential(
            ConvNorm(channels, width),
            ConvNorm(width, width, 3, stride, groups),
            ConvNorm(width, 2 * width, activation=None),
        )
        layers.append(ResidualBlock(body, channels, 2 * width, stride))
        channels = 2 * width
    return Classifier(layers, channels), _image(batch, size)


def _chain(inputs: int, *steps: tuple[int, int | tuple[int, int], int]) -> nn.Sequential:
    """Convolutions of (channels, kernel, stride), one after the other."""
    layers = []
    for outputs, kernel, stride in steps:
        layers.append(ConvNorm(inputs, outputs, kernel, stride))
        inputs = outputs
    return nn.Sequential(*layers)


def _pooled(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, outputs))


def _inception_35(c: int, pool: int) -> nn.Module:
    return Branches(_chain(c, (64, 1, 1)), _chain(c, (48, 1, 1), (64, 5, 1)),
                    _chain(c, (64, 1, 1), (96, 3, 1), (96, 3, 1)), _pooled(c, pool))  # fmt: skip


def _inception_17(c: int, w: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    return Branches(_chain(c, (192, 1, 1)), _chain(c, (w, 1, 1), (w, row, 1), (192, column, 1)),
                    _chain(c, (w, 1, 1), (w, column, 1), (w, row, 1), (w, column, 1), (192, row, 1)),
                    _pooled(c, 192))  # fmt: skip


def _inception_8(c: int) -> nn.Module:
    def fork(inputs: nn.Sequential) -> nn.Sequential:
        return nn.Sequential(inputs, Branches(_chain(384, (384, (1, 3), 1)), _chain(384, (384, (3, 1), 1))))

    return Branches(
        _chain(c, (320, 1, 1)), fork(_chain(c, (384, 1, 1))), fork(_chain(c, (448, 1, 1), (384, 3, 1))), _pooled(c, 192)
    )


def inception_v3(*, depth: int = 4, batch: int = 1, size: int = 299) -> Built:
    """Szegedy et al. 2016 with `depth` blocks at 17x17 (4 as published) and no auxiliary head."""
    layers: list[nn.Module] = [_chain(3, (32, 3, 2), (32, 3, 1), (64, 3, 1)), nn.MaxPool2d(3, 2)]
    layers += [_chain(64, (80, 1, 1), (192, 3, 1)), nn.MaxPool2d(3, 2)]
    layers += [_inception_35(192, 32), _inception_35(256, 64), _inception_35(288, 64)]
    layers.append(
        Branches(_chain(288, (384, 3, 2)), _chain(288, (64, 1, 1), (96, 3, 1), (96, 3, 2)), nn.MaxPool2d(3, 2, 1))
    )
    layers += [_inception_17(768, min(192, 128 + 32 * ((i + 1) // 2))) for i in range(depth)]
    tall = _chain(768, (192, 1, 1), (192, (1, 7), 1), (192, (7, 1), 1), (192, 3, 2))
    layers.append(Branches(_chain(768, (192, 1, 1), (320, 3, 2)), tall, nn.MaxPool2d(3, 2, 1)))
    layers += [_inception_8(1280), _inception_8(2048)]
    return Classifier(layers, 2048), _image(batch, size)


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, project; added to the input where shapes agree (Sandler et al. 2018)."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        inner = inputs * expand
        self.body = nn.Sequential(
            ConvNorm(inputs, inner),
            ConvNorm(inner, inner, kernel, stride, inner),
            ConvNorm(inner, outputs, activation=None),
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


def mnasnet(*, depth: int = 3, batch: int = 1, size: int = 224) -> Built:
    """MnasNet-B1 (Tan et al. 2019) with about `depth` blocks a stage (3 as published)."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2), ConvNorm(32, 32, 3, 1, 32), ConvNorm(32, 16, activation=None)]
    channels = 16
    stages = [
        (24, 3, 2, 3, 0),
        (40, 5, 2, 3, 0),
        (80, 5, 2, 6, 0),
        (96, 3, 1, 6, -1),
        (192, 5, 2, 6, 1),
        (320, 3, 1, 6, -2),
    ]
    for outputs, kernel, stride, expand, extra in stages:
        for i in range(max(1, depth + extra)):
            layers.append(InvertedResidual(channels, outputs, kernel, stride if i == 0 else 1, expand))
            channels = outputs
    return Classifier([*layers, ConvNorm(channels, 1280)], 1280), _image(batch, size)


# --- AmoebaNet-A: its cells were found by evolution (Real et al. 2019).

# Pairs (operation, which earlier state) that are added to make the next state; states 0 and 1 are the cell's inputs.
_NORMAL = [
    ("avg3", 0, "max3", 1),
    ("same", 0, "avg3", 0),
    ("sep5", 0, "sep3", 1),
    ("sep3", 3, "same", 2),
    ("sep3", 1, "avg3", 0),
]
_REDUCTION = [
    ("avg3", 0, "sep3", 1),
    ("max3", 0, "sep7", 0),
    ("sep7", 0, "avg3", 1),
    ("max3", 0, "max3", 1),
    ("wide7", 0, "sep3", 3),
]


def _operation(name: str, channels: int, stride: int) -> nn.Module:
    """One of the search space's operations at unchanged width."""
    if name == "same":
        return nn.Identity() if stride == 1 else ConvNorm(channels, channels, 1, stride)
    if name == "avg3":
        return nn.AvgPool2d(3, stride, 1)
    if name == "max3":
        return nn.MaxPool2d(3, stride, 1)
    if name == "wide7":
        return nn.Sequential(ConvNorm(channels, channels, (1, 7), stride), ConvNorm(channels, channels, (7, 1)))
    kernel = int(name.removeprefix("sep"))
    once, again = (_separable_twice(channels, kernel, s) for s in (stride, 1))
    return nn.Sequential(once, again)


def _separable_twice(channels: int, kernel: int, stride: int) -> nn.Module:
    depthwise = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, ConvNorm(channels, channels, activation=None))


class AmoebaCell(nn.Module):
    """Five pairwise combinations of two earlier states; states that no pair reads are concatenated."""

    def __init__(self, before: int, last: int, channels: int, *, shrink_before: bool, reduction: bool) -> None:
        super().__init__()
        pairs = _REDUCTION if reduction else _NORMAL
        self.fit = nn.ModuleList([ConvNorm(before, channels, 1, 2 if shrink_before else 1), ConvNorm(last, channels)])
        self.operations, self.sources = nn.ModuleList(), []
        for left, i, right, j in pairs:
            strides = [2 if reduction and source < 2 else 1 for source in (i, j)]
            self.operations.extend(_operation(name, channels, s) for name, s in zip((left, right), strides))
            self.sources.append((i, j))
        self.loose = [s for s in range(2, 7) if not any(s in pair for pair in self.sources)]
        self.channels = channels * len(self.loose)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        states = [self.fit[0](before), self.fit[1](last)]
        for n, (i, j) in enumerate(self.sources):
            states.append(self.operations[2 * n](states[i]) + self.operations[2 * n + 1](states[j]))
        return torch.cat([states[s] for s in self.loose], 1)


class AmoebaNet(nn.Module):
    """Three groups of `depth` normal cells with reduction cells between; every cell reads the two before it."""

    def __init__(self, depth: int, channels: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, channels, 3, 2)
        self.cells, before, last, shrink = nn.ModuleList(), channels, channels, False
        for i in range(3 * depth + 2):
            reduction = i in (depth, 2 * depth + 1)
            channels *= 2 if reduction else 1
            cell = AmoebaCell(before, last, channels, shrink_before=shrink, reduction=reduction)
            self.cells.append(cell)
            before, last, shrink = last, cell.channels, reduction
        self.classes = nn.Linear(last, 1000)

    def forward(self, image: Tensor) -> Tensor:
        before = last = self.stem(image)
        for cell in self.cells:
            before, last = last, cell(before, last)
        scores: Tensor = self.classes(last.mean((2, 3)))
        return scores


def amoebanet(
    *, depth: int = 2, batch: int = 4, size: int = 64, channels: int = 32
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    return AmoebaNet(depth, channels), (torch.zeros(batch, 3, size, size),)


# --- Outputs of the size of the input: WaveNet, U-Net, and a detector.


class WaveLayer(nn.Module):
    """Gated dilated causal convolution with residual and skip outputs (van den Oord et al. 2016)."""

    def __init__(self, channels: int, skip: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.filter, self.gate = (nn.Conv1d(channels, channels, 2, dilation=dilation) for _ in range(2))
        self.residual, self.skip = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, skip, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        past = nn.functional.pad(x, (self.dilation, 0))
        y = torch.tanh(self.filter(past)) * torch.sigmoid(self.gate(past))
        return x + self.residual(y), self.skip(y)


class WaveNet(nn.Module):
    """Stacks of layers whose dilation doubles up to 512, then starts again."""

    def __init__(self, stacks: int, layers: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, channels, 1)
        self.layers = nn.ModuleList(
            WaveLayer(channels, channels, 1 << (i % 10)) for _ in range(stacks) for i in range(layers)
        )
        self.hidden, self.last = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, 256, 1)

    def forward(self, wave: Tensor) -> Tensor:
        x = self.first(wave)
        total: Tensor | None = None
        for layer in self.layers:
            x, skip = layer(x)
            total = skip if total is None else total + skip
        assert total is not None
        return self.last(torch.relu(self.hidden(torch.relu(total)))).log_softmax(1)


def wavenet(*, stacks: int = 2, layers: int = 18, seq: int = 2048, batch: int = 1, channels: int = 64) -> Built:
    """10 ops per layer."""
    return WaveNet(stacks, layers, channels), (torch.zeros(batch, 1, seq),)


def _level(inputs: int, outputs: int, convs: int) -> nn.Module:
    widths = [inputs, *[outputs] * convs]
    return nn.Sequential(*(ConvNorm(i, o, 3) for i, o in pairwise(widths)))


class UNet(nn.Module):
    """Ronneberger et al. 2015: down by pooling, up by transposed convolutions, levels joined by concatenation."""

    def __init__(self, depth: int, channels: int, convs: int) -> None:
        super().__init__()
        widths = [channels << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_level(i, o, convs) for i, o in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w, w // 2, 2, 2) for w in widths[:0:-1])
        self.joined = nn.ModuleList(_level(w, w // 2, convs) for w in widths[:0:-1])
        self.pool, self.last = nn.MaxPool2d(2), nn.Conv2d(channels, 2, 1)

    def forward(self, image: Tensor) -> Tensor:
        levels = [self.down[0](image)]
        for layer in self.down[1:]:
            levels.append(layer(self.pool(levels[-1])))
        x = levels.pop()
        for up, joined in zip(self.up, self.joined):
            x = joined(torch.cat([levels.pop(), up(x)], 1))
        return torch.sigmoid(self.last(x))


def unet(*, depth: int = 4, batch: int = 1, size: int = 128, channels: int = 32, convs: int = 2) -> Built:
    """`depth` poolings; `size` must be a multiple of 2^depth. convs: per level and side (2 in the paper)."""
    return UNet(depth, channels, convs), (torch.zeros(batch, 3, size, size),)


def _separable(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """MobileNet's pair: depthwise 3x3, then 1x1, with ReLU6."""
    depthwise = ConvNorm(inputs, inputs, 3, stride, inputs, activation=nn.ReLU6)
    return nn.Sequential(depthwise, ConvNorm(inputs, outputs, activation=nn.ReLU6))


class SSDMobileNet(nn.Module):
    """Single-shot detector (Liu et al. 2016) on MobileNet (Howard et al. 2017): boxes and scores at six scales."""

    def __init__(self, classes: int, depth: int) -> None:
        super().__init__()
        widths = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * depth]
        blocks: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.ReLU6)]
        channels = 32
        for width, stride in widths:
            blocks.append(_separable(channels, width, stride))
            channels = width
        top = nn.Sequential(_separable(512, 1024, 2), _separable(1024, 1024))
        extras = [
            nn.Sequential(ConvNorm(i, o // 2), ConvNorm(o // 2, o, 3, 2))
            for i, o in [(1024, 512), (512, 256), (256, 256), (256, 128)]
        ]
        self.scales = nn.ModuleList([nn.Sequential(*blocks), top, *extras])
        sizes, self.classes = [512, 1024, 512, 256, 256, 128], classes
        self.boxes = nn.ModuleList(nn.Conv2d(c, 6 * 4, 1) for c in sizes)
        self.scores = nn.ModuleList(nn.Conv2d(c, 6 * classes, 1) for c in sizes)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x, boxes, scores = image, [], []
        for scale, box, score in zip(self.scales, self.boxes, self.scores):
            x = scale(x)
            boxes.append(box(x).permute(0, 2, 3, 1).reshape(len(x), -1, 4))
            scores.append(score(x).permute(0, 2, 3, 1).reshape(len(x), -1, self.classes))
        return torch.cat(boxes, 1), torch.sigmoid(torch.cat(scores, 1))


def ssd_mobilenet(*, depth: int = 5, batch: int = 2, size: int = 300, classes: int = 91) -> Built:
    """`depth` MobileNet blocks of 512 channels (5 as published)."""
    return SSDMobileNet(classes, depth), (torch.zeros(batch, 3, size, size),)
