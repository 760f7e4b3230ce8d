"""Learning: a policy is trained on some models and compared with searches on others (a few steps: to see how)."""

from tempfile import TemporaryDirectory

import torch
from torch import nn

from graphopt import compare, optimize, train


def model(width: int, layers: int) -> tuple[nn.Module, torch.Tensor]:
    """A module and its inputs."""
    blocks = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(layers)]
    return nn.Sequential(*blocks), torch.zeros(8, width)


with TemporaryDirectory() as folder:
    path = train([model(32, 2), model(64, 3)], val=model(48, 2), algo="go", steps=4, output_dir=folder)
    print(compare(model(96, 4), algos=["default", "local", "go"], budget=50, ckpt={"go": path}))
    module, inputs = model(96, 4)
    answer = optimize(module, inputs, ckpt=str(path), budget=50)
    print(f"{1e6 * answer.default_price:.1f} -> {1e6 * answer.price:.1f} us")
