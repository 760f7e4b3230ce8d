"""Networks with an output per sample or pixel: WaveNet, U-Net, SSD-MobileNet."""

# mypy: disable-error-code="no-any-return, no-untyped-call"

from itertools import pairwise

import torch
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import ConvNorm

Built = tuple[nn.Module, tuple[Tensor, ...]]


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
