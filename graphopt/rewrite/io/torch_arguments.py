"""Arguments of ATen operators as calls keep them: tensors are places."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


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
