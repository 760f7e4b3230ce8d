"""Fusion: which ops a compiler computes inside the kernels of their readers."""

import torch
from torch import nn

from graphopt import optimize

model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64), nn.Softmax(-1))
answer = optimize(model, torch.zeros(8, 64), task="fusion", budget=200)
for change in answer.changes():
    print(change.op, change.operator, change.what)
print(f"{len(answer.kernels())} kernels, {1e6 * answer.default_price:.1f} -> {1e6 * answer.price:.1f} us")
