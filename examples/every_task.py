"""Every task in one call, without any setting, on a transformer, a CNN and an ONNX file; with the seconds of CPU."""

import time
from importlib.resources import files

import torch
from torch import nn

import graphopt


class Encoder(nn.Module):
    """One layer of a transformer; its result is a loss."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(((q @ k.transpose(-1, -2) / 4).softmax(-1) @ v).transpose(1, 2).flatten(2))
        return (x + self.mlp(x)).mean()


CNN = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(1))
ONNX = str(files("onnx") / "backend/test/data/light/light_squeezenet.onnx")
MODELS = {"encoder": (Encoder(), torch.zeros(2, 16, 64)), "cnn": (CNN, torch.zeros(2, 3, 32, 32)), "onnx": (ONNX, None)}

for name, (model, inputs) in MODELS.items():
    for task in ("fusion", "placement", "scheduling", "placement_scheduling", "joint", "rewrite", "recompute"):
        if name == "onnx" and task == "recompute":
            continue  # a file has no training step
        begun = time.process_time()
        answer = graphopt.optimize(model, inputs, task=task, budget=200)
        found = f"{answer.default_price:.9f} -> {answer.price:.9f} by {answer.facts['algo']}"
        print(f"{name:8} {task:21} {time.process_time() - begun:5.2f} s  {found}")
