"""Recomputation: which activations of a training step are saved, and which the backward pass computes again."""

import torch
from torch import nn

from graphopt import optimize


class Loss(nn.Module):
    """Its result is the loss of a step."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32)) for _ in range(4)]
        self.model = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()


answer = optimize(Loss(), (torch.zeros(512, 32),), task="recompute", budget=200)
print(len(answer.changes()), "ops are decided otherwise than by default")
print(f"peak {answer.default_price / 2**20:.2f} -> {answer.price / 2**20:.2f} MiB")
