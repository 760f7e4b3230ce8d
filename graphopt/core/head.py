"""`Head`: one kind of choice that a task makes for every op, and what it does to a plan."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Role(Enum):
    """What the choices of a head mean. Code that needs a head asks for its role, never for its name."""

    DEVICE = "device"  # where the op runs: choice d is device d of the machine
    PRIORITY = "priority"  # among ready kernels of a device the highest starts first
    FUSION = "fusion"  # 0 stores the op; others inline it where that is legal, the highest first
    CHOICE = "choice"  # anything else: `Plans.choices` holds it under the head's name


@dataclass(frozen=True, slots=True)
class Head:
    """name: as files and messages have it. count: the largest number of choices that an op has; they are 0 to
    count - 1. words: what they are called, where they have names."""

    name: str
    count: int
    role: Role
    words: tuple[str, ...] = ()


def named_counts(heads: Iterable[Head]) -> dict[str, int]:
    """Head -> number of choices, in order, as files keep it."""
    return {head.name: head.count for head in heads}
