"""Device, priority and fusion of every op, decided together, by several searches under the same budget."""

import torch
from torch import nn

from graphopt import compare

model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 256), nn.Softmax(-1))
results = compare((model, torch.zeros(64, 256)), task="joint", algos=["default", "random", "local"], budget=[50, 200])
print(results)
best = min(results.answers(), key=lambda answer: answer.price)
print(f"{1e6 * best.default_price:.2f} -> {1e6 * best.price:.2f} us")
