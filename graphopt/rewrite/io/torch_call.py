"""ATen operators outside the vocabulary: kept with their arguments, and run by torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import Any

import torch

from graphopt.graphs.readers.pytorch.aten_table import kind_of
from graphopt.rewrite.ir.vocabulary import TensorType


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor among the arguments."""

    index: int


def filled(arg: Any, inputs: Sequence[Any]) -> Any:
    """An argument with its tensors in place."""
    if isinstance(arg, Slot):
        return inputs[arg.index]
    return [filled(a, inputs) for a in arg] if isinstance(arg, tuple) else arg


def with_slots(arg: Any, slot: Callable[[Any], Slot | None]) -> Any:
    """An argument as a call keeps it: `slot` says which place a node takes, None for what is no node."""
    place = slot(arg)
    if place is not None:
        return place
    return tuple(with_slots(a, slot) for a in arg) if isinstance(arg, list | tuple) else arg


@dataclass(frozen=True)
class TorchCall:
    """One ATen operator, `name.overload`, with all arguments but its tensors fixed."""

    name: str
    overload: str
    args: tuple[Any, ...]  # nested tuples; a `Slot` where a tensor goes
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        return f"aten.{self.name}"

    @property
    def kind(self) -> str:
        return kind_of(self.name, self.overload, self.args) or "opaque"

    @property
    def key(self) -> str:
        """Equal calls have equal keys."""
        digest = sha256(repr((self.overload, self.args, self.kwargs)).encode()).hexdigest()
        return f"{self.label}.{digest[:12]}"

    def flops(self, inputs: Sequence[TensorType], results: Sequence[TensorType]) -> float | None:
        if self.name == "convolution":
            return 2.0 * prod((inputs[0] if self.args[6] else results[0]).shape) * prod(inputs[1].shape[1:])
        return None

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """By torch."""
        operator = getattr(getattr(torch.ops.aten, self.name), self.overload)
        kwargs = {key: filled(value, inputs) for key, value in self.kwargs}
        result = operator(*(filled(arg, inputs) for arg in self.args), **kwargs)
        return list(result) if isinstance(result, tuple | list) else [result]
