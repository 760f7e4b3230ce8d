"""Every task in one call, without any setting, on a transformer, a CNN and an ONNX file. Prints answers and times."""

import time
from importlib.resources import files

import torch
from torch import nn

import graphopt


class Encoder(nn.Module):
    """One layer of a transformer, whose loss is the mean of its result."""

    def __init__(self, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.first(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(2))
        return (x + self.mlp(self.second(x))).mean()


CNN = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
)  # fmt: skip
ONNX = files("onnx") / "backend/test/data/light/light_squeezenet.onnx"
MODELS = [(Encoder(), torch.zeros(2, 16, 64)), (CNN, torch.zeros(2, 3, 32, 32)), (str(ONNX), None)]
TASKS = ("fusion", "placement", "scheduling", "placement_scheduling", "joint", "rewrite", "recompute")

for model, inputs in MODELS:
    for task in TASKS:
        if task == "recompute" and isinstance(model, str):
            continue  # a file has no training step
        begun = time.process_time()
        answer = graphopt.optimize(model, inputs, task=task, budget=200)
        print(f"{time.process_time() - begun:6.2f} s of CPU  {answer}")
