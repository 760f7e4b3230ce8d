"""`Plans`: executable plans, the interface between tasks (which make plans) and cost models (which price them).

`Head`: one kind of choice that a task makes for every op; decisions are arrays of choices. `compact`: plans as small
arrays for files. Of random keys only the order is kept, and only where it matters; prices stay exactly equal.

Shape legend: B plans or decisions, N ops, T tensors, D devices, H heads.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph

CHOICE = "choice_"  # prefix of the names of arrays of choices
Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Plans:
    """A batch of plans for one graph.

    An op with `inline` is computed inside every kernel that needs it (no kernel of its own); a task sets it only where
    fusion is legal, and always for views. A kernel runs on the device of its stored op.
    """

    graph: Graph
    device: NDArray[np.int16]  # [B, N] device of every op
    priority: Floats  # [B, N] among ready kernels of a device the highest starts first, ties by op id
    inline: NDArray[np.bool_]  # [B, N]
    transfer: NDArray[np.float64] | None = None  # [B, T, D] transfer priorities, else those of the producing op
    choices: Mapping[str, NDArray[np.int16]] = field(default_factory=dict)
    """Further decisions, by the names of heads of role `choice`: [B, N], or [B, ...] if they belong to no op."""

    def __post_init__(self) -> None:
        shape = (len(self.device), self.graph.num_ops)
        if any(a.shape != shape for a in (self.device, self.priority, self.inline)):
            raise ValueError(f"plans for {self.graph.name!r} must have arrays of shape [B, N] = {shape}")
        if any(a.shape[:1] != shape[:1] for a in self.choices.values()):
            raise ValueError(f"plans for {self.graph.name!r} must have choices of shape [B, ...], B = {shape[0]}")

    def __len__(self) -> int:
        return len(self.device)

    def copy(self) -> "Plans":
        """With arrays of its own."""
        return self._with(np.copy)

    def __getitem__(self, b: int | slice | NDArray[np.int64]) -> "Plans":
        """One plan (still a batch, of one) or a slice of the batch."""
        rows = slice(b, b + 1) if isinstance(b, int) else b
        return self._with(lambda array: array[rows])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that it holds, by names that no two parts share."""
        own = {"device": self.device, "priority": self.priority, "inline": self.inline}
        sends = {} if self.transfer is None else {"transfer": self.transfer}
        return {**own, **sends, **{CHOICE + name: array for name, array in self.choices.items()}}

    def _with(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Plans":
        transfer = None if self.transfer is None else change(self.transfer)
        choices = {name: change(array) for name, array in self.choices.items()}
        return Plans(self.graph, change(self.device), change(self.priority), change(self.inline), transfer, choices)


class Role(Enum):
    """The meaning of a head's choices. Code that needs a head asks for its role, never for its name."""

    DEVICE = "device"  # where the op runs: choice d is device d of the machine
    PRIORITY = "priority"  # among ready kernels of a device the highest starts first
    FUSION = "fusion"  # 0 stores the op; others inline it where that is legal, the highest first
    CHOICE = "choice"  # anything else: `Plans.choices` holds it under the head's name


@dataclass(frozen=True, slots=True)
class Head:
    """name: as files and messages have it. count: the largest number of choices that an op has; they are 0 to
    count - 1. words: names of the choices, if any."""

    name: str
    count: int
    role: Role
    words: tuple[str, ...] = ()


def named_counts(heads: Iterable[Head]) -> dict[str, int]:
    """Head -> number of choices, in order, as files keep it."""
    return {head.name: head.count for head in heads}


MOST_LEVELS = 2**15 - 1  # decisions are 16-bit numbers
Decisions = NDArray[np.int16]  # [B, N, H]
Decision = NDArray[np.int16]  # [N, H]


Arrays = dict[str, NDArray[Any]]


def compact(plan: Plans, devices: int) -> Arrays:
    """device [N], priority [N], inline [N] and, if the plan has its own, transfer [T, D], of a batch of one; and
    choice_NAME [N] for each of its further choices.

    Priorities are dense ranks from 1 over the ops that have kernels, transfer priorities dense ranks from 1 over the
    (result, destination) pairs that are sent; all else is 0, devices of inlined ops too. Equal ones stay equal, so ties
    are broken as before.
    """
    device, inline = plan.device[0], plan.inline[0]
    arrays = {
        "device": _small(np.where(inline, 0, device)),
        "priority": _ranks(plan.priority[0], ~inline),
        "inline": inline,
    }
    if plan.transfer is not None:
        arrays["transfer"] = _ranks(plan.transfer[0], sent(plan.graph, device, inline, devices))
    return arrays | {CHOICE + name: _small(array[0]) for name, array in plan.choices.items()}


def same(a: Mapping[str, NDArray[Any]], b: Mapping[str, NDArray[Any]]) -> bool:
    """Whether two compact plans are equal, and so are their prices."""
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


def expand(graph: Graph, arrays: Mapping[str, NDArray[Any]]) -> Plans:
    """The plan of stored arrays, a batch of one; ranks count as priorities."""
    transfer = arrays["transfer"][None].astype(np.float64) if "transfer" in arrays else None
    device, priority = arrays["device"].astype(np.int16), arrays["priority"].astype(np.float64)
    choices = {
        name.removeprefix(CHOICE): array.astype(np.int16)[None]
        for name, array in arrays.items()
        if name.startswith(CHOICE)
    }
    return Plans(graph, device[None], priority[None], arrays["inline"].astype(np.bool_)[None], transfer, choices)


def sent(graph: Graph, device: NDArray[np.int16], inline: NDArray[np.bool_], devices: int) -> NDArray[np.bool_]:
    """[T, D] where a result has to travel: it is needed by a kernel on another device than its own.

    An inlined op needs its operands wherever its readers are computed.
    """
    needed = np.zeros((graph.num_tensors, devices), np.bool_)
    first, place = graph.output_ptr.tolist(), device.tolist()
    for op in range(graph.num_ops - 1, -1, -1):
        operands = graph.operands(op)
        if inline[op]:
            needed[operands] |= needed[first[op] : first[op + 1]].any(0)
        else:
            needed[operands, place[op]] = True
    made = np.flatnonzero(graph.producer >= 0)
    maker = graph.producer[made]
    needed[: len(needed) - len(made)] = False  # graph inputs are where they are needed
    needed[made, device[maker]] = False
    needed[made[inline[maker]]] = False
    return needed


def _ranks(values: NDArray[Any], where: NDArray[np.bool_]) -> NDArray[Any]:
    """Dense ranks of the chosen values, smallest 1; 0 elsewhere."""
    out = np.zeros(values.shape, np.int64)
    out[where] = np.unique(values[where], return_inverse=True)[1] + 1
    return _small(out)


def _small(values: NDArray[np.integer[Any]]) -> NDArray[Any]:
    """In the smallest unsigned type that holds them."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))
