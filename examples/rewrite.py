"""Rewriting: an equivalent program that is cheaper, here by its FLOP at a roofline."""

import torch
from torch import nn

from graphopt import optimize


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.first(x) + self.second(x)


answer = optimize(Twice(), torch.zeros(128, 64), task="rewrite", budget=200)
print("rules:", answer.rules())
print(f"{1e6 * answer.default_price:.2f} -> {1e6 * answer.price:.2f} us")
