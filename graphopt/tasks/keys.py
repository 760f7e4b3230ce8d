"""Random keys -> plans, as in REGAL (section 3 of the paper): an affinity per op and device, a priority per op, and a
priority per result and destination device.

Shape legend: B plans, N ops, T tensors, R results (tensors made by ops), D devices.
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.graph import Graph

Keys = NDArray[np.float64]


def split(keys: Keys, *lengths: int) -> list[Keys]:
    """Cuts keys [B, K] into parts of the given lengths, which sum to K."""
    return np.split(keys, np.cumsum(lengths)[:-1], axis=1)


def devices(affinity: Keys, num_devices: int) -> NDArray[np.int16]:
    """[B, N] the device with the largest affinity; affinities [B, N * D] are those of op 0, then of op 1, ..."""
    best: NDArray[np.int16] = affinity.reshape(len(affinity), -1, num_devices).argmax(2).astype(np.int16)
    return best


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
