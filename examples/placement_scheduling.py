"""Placement and scheduling: a device and a priority for every op, of a small Inception-like network."""

import torch
from torch import nn

from graphopt import optimize


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Conv2d(256, 256, size, padding=size // 2) for size in (1, 3, 5, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.relu(branch(x)) for branch in self.branches], 1)


answer = optimize(Branches(), torch.zeros(8, 256, 14, 14), task="placement_scheduling", budget=300)
for kernel in answer.kernels()[:5]:
    print(f"{kernel.device:6} {1e6 * kernel.start:8.1f} to {1e6 * kernel.end:8.1f} us  {kernel.root}")
print(f"{1e6 * answer.default_price:.1f} -> {1e6 * answer.price:.1f} us")
