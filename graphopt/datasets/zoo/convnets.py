"""Image classifiers: SqueezeNet, ResNet-18, ResNeXt-50, Inception-v3, MnasNet."""

import torch
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import ConvNorm

Built = tuple[nn.Module, tuple[Tensor, ...]]


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
