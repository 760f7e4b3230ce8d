"""Random keys -> plans, as in REGAL (section 3 of the paper): an affinity per op and device, a priority per op, and a
priority per result and destination device.

Shape legend: B plans, K keys, N ops, T tensors, R results (tensors made by ops), D devices.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import Graph
from graphopt.core.utils.compiled import njit

Keys = NDArray[np.floating[Any]]  # [B, K] in [0, 1]


class KeyRole(IntEnum):
    """The part of a plan that a key decides."""

    AFFINITY = 0  # the op runs on the device with its largest affinity
    PRIORITY = 1  # among ready kernels the op with the highest starts first
    TRANSFER = 2  # among results waiting for a link the one with the highest goes first
    CHOICE = 3  # choice floor(key x number of choices of the head)


@dataclass(frozen=True, eq=False)
class KeyLayout:
    """The meaning of every key of a graph, in the order of the keys."""

    role: NDArray[np.int8]  # [K]
    op: NDArray[np.int32]  # [K]; of TRANSFER the op that makes the result
    head: NDArray[np.int16]  # [K] the task's head that the key decides, -1 of TRANSFER
    device: NDArray[np.int16]  # [K] of AFFINITY and TRANSFER, else -1

    def __len__(self) -> int:
        return len(self.role)


def layout(graph: Graph, devices: int, *parts: tuple[KeyRole, int]) -> KeyLayout:
    """The layout of parts (role of the keys, head) in order. An AFFINITY part is [N, D], PRIORITY and CHOICE are [N],
    TRANSFER is [R, D] (nothing on one device)."""
    ops, here = np.arange(graph.num_ops), np.arange(devices)
    maker = graph.producer[int(graph.output_ptr[0]) :] if devices > 1 else np.zeros(0, np.int32)
    role, op, head, device = [], [], [], []
    for part, column in parts:
        rows = maker if part == KeyRole.TRANSFER else ops
        spread = part in (KeyRole.AFFINITY, KeyRole.TRANSFER)
        op.append(np.repeat(rows, devices) if spread else rows)
        device.append(np.tile(here, len(rows)) if spread else np.full(len(rows), -1))
        role.append(np.full(len(op[-1]), part))
        head.append(np.full(len(op[-1]), column))
    joined = (np.concatenate(part) for part in (role, op, head, device))
    kinds = (np.int8, np.int32, np.int16, np.int16)
    return KeyLayout(*(part.astype(kind) for part, kind in zip(joined, kinds, strict=True)))


def split(keys: Keys, *lengths: int) -> list[Keys]:
    """Cuts keys [B, K] into parts of the given lengths, which sum to K."""
    return np.split(keys, np.cumsum(lengths)[:-1], axis=1)


def devices(affinity: Keys, num_devices: int) -> NDArray[np.int16]:
    """[B, N] the device with the largest affinity; affinities [B, N * D] are those of op 0, then of op 1, ..."""
    best = np.zeros((len(affinity), affinity.shape[1] // num_devices), np.int16)
    _largest(affinity, num_devices, best)
    return best


@njit(cache=True, nogil=True)
def _largest(affinity, num_devices, best):  # type: ignore[no-untyped-def]
    """Device with the largest affinity, the first of equals."""
    for b in range(len(best)):
        row = affinity[b]
        for n in range(best.shape[1]):
            device, top = 0, row[n * num_devices]
            for d in range(1, num_devices):
                here = row[n * num_devices + d]
                device, top = (d, here) if here > top else (device, top)
            best[b, n] = device


def choices(keys: Keys, count: int) -> NDArray[np.int16]:
    """[B, ...] choices from 0 to count - 1, as CHOICE keys have them."""
    return np.minimum((keys * count).astype(np.int16), count - 1)


def transfer_count(graph: Graph, num_devices: int) -> int:
    """R * D, or 0 where nothing travels."""
    return (graph.num_tensors - int(graph.output_ptr[0])) * num_devices if num_devices > 1 else 0


def transfers(graph: Graph, keys: Keys, num_devices: int) -> NDArray[np.float64] | None:
    """[B, T, D] transfer priorities from keys [B, R * D], those of the first result first; None for one device."""
    if num_devices == 1:
        return None
    out = np.zeros((len(keys), graph.num_tensors, num_devices))
    out[:, int(graph.output_ptr[0]) :] = keys.reshape(len(keys), -1, num_devices)
    return out


def digests(keys: Keys) -> NDArray[np.uint64]:
    """[B] 64-bit digests of rows of keys: equal rows have equal ones."""
    found = np.zeros(len(keys), np.uint64)
    _digest(np.ascontiguousarray(keys).view(np.uint32), found)
    return found


@njit(cache=True, nogil=True)
def _digest(words, found):  # type: ignore[no-untyped-def]
    """Sums of words [B, W] mixed with their positions (the finaliser of SplitMix64): vector code."""
    for b in range(len(words)):
        total = np.uint64(0)
        for i in range(words.shape[1]):
            z = np.uint64(words[b, i]) + np.uint64(i) * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            total += z ^ (z >> np.uint64(31))
        found[b] = total
