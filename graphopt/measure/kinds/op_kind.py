"""A single op of the rewriting vocabulary in torch. payload: `name`, `params`, `inputs` [[shape, dtype], ...]."""

from functools import cache
from math import ceil, prod
from typing import Any

import torch

from graphopt.measure.kinds.torch_process import begin
from graphopt.measure.rounds import Runner
from graphopt.rewrite.ir.execution import apply
from graphopt.rewrite.ir.vocabulary import Operation

__all__ = ["begin", "load"]

POOL = (1 << 20) + 7  # random numbers that inputs are filled with, over and over


def load(payload: dict[str, Any], device: str) -> Runner:
    operation = Operation(payload["name"], _tuples(payload["params"]))
    inputs = [_tensor(shape, dtype, _pool(device)) for shape, dtype in payload["inputs"]]

    def run() -> Any:
        result = apply(operation, inputs)
        return result.contiguous() if operation.name == "transpose" else result  # else a view: its reader pays for it

    return Runner(run)


@cache
def _pool(device: str) -> torch.Tensor:
    return torch.randn(POOL, generator=torch.Generator().manual_seed(0)).to(device)


def _tensor(shape: list[int], dtype: str, pool: torch.Tensor) -> torch.Tensor:
    """Normal numbers, the same over and over: drawing a large product's weights would take longer than the product.
    Ones of other types."""
    kind, size = getattr(torch, dtype), prod(shape)
    if kind.is_floating_point:
        return pool.repeat(ceil(size / POOL))[:size].view(shape).to(kind)
    return torch.ones(shape, dtype=kind, device=pool.device)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
