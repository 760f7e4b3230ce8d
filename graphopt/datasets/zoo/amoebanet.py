"""AmoebaNet-A: a convolutional network whose cells were found by evolution (Real et al. 2019)."""

import torch
from torch import Tensor, nn

from graphopt.datasets.zoo.layers import ConvNorm

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
    once, again = (_separable(channels, kernel, s) for s in (stride, 1))
    return nn.Sequential(once, again)


def _separable(channels: int, kernel: int, stride: int) -> nn.Module:
    depthwise = nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, ConvNorm(channels, channels, activation=None))


class AmoebaCell(nn.Module):
    """Five pairwise combinations of two earlier states; what no pair reads is concatenated."""

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
