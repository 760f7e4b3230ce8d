"""Runs of functions of a list of tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from graphopt.measure.rounds import Runner


def runner_of(call: Callable[[list[Tensor]], Any], inputs: list[Tensor]) -> Runner:
    """call may empty the list that it gets, and change tensors in place: what it changes in its first run is put back
    before every run, so that no run sees other numbers than the first."""
    pristine = [tensor.clone() for tensor in inputs]
    call(list(inputs))
    changed = [(now, kept) for now, kept in zip(inputs, pristine) if not _same(now, kept)]

    def reset() -> None:
        for now, kept in changed:
            now.copy_(kept)

    return Runner(lambda: call(list(inputs)), reset if changed else None)


def _same(a: Tensor, b: Tensor) -> bool:
    """NaNs are equal where they stand in the same places."""
    return bool(torch.equal(a, b) or torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True))
