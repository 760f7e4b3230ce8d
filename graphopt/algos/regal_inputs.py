"""What REGAL's policy reads beside the encoder's features: orders of the ops, and how far an op belongs to a device.

The paper names sizes and costs only (appendix, as far as known). Orders and memberships are our addition: identical
devices look alike to a graph network, so something has to tell which ops could go together; docs/results.md says what
they bring. `size` is the number of ops on a log scale, since how sharp a proposal should be depends on how many genes
share the budget. All of it is cheap beside the search, and none is a price.
Shape legend: N ops, D devices, E edges.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import coo_matrix, csgraph, identity
from scipy.sparse.linalg import ArpackError, eigsh

from graphopt.fusible import view_inline
from graphopt.graph import F64, Graph
from graphopt.machine import Machine
from graphopt.operators import Category

F32 = NDArray[np.float32]
DENSE = 160  # ops up to which a dense eigensolver is faster
LARGEST = 20_000  # ops up to which eigenvectors are computed; beyond it the topological order stands in

ORDERS = ("topological", "depth", "height", "slack", "spectral", "spectral_2", "bytes_share", "largest", "size")
MEMBERSHIPS = ("spectral", "spectral_by_bytes", "spectral_2_by_bytes", "blocks_by_bytes", "speed", "room")


class Inputs(NamedTuple):
    """Of one graph on one machine."""

    order_NX: F32  # [N, len(ORDERS)]
    member_NDX: F32  # [N, D, len(MEMBERSHIPS)]


_CACHE: "WeakKeyDictionary[Graph, dict[Machine, Inputs]]" = WeakKeyDictionary()


def inputs(graph: Graph, machine: Machine) -> Inputs:
    """Computed once per graph and machine."""
    known = _CACHE.setdefault(graph, {})
    if machine not in known:
        known[machine] = _inputs(graph, machine)
    return known[machine]


def _inputs(graph: Graph, machine: Machine) -> Inputs:
    held = (graph.weight_bytes + graph.result_bytes).astype(np.float64)
    held[view_inline(graph)] = 0.0
    held = held / max(held.sum(), 1.0) + 1e-6 / graph.num_ops
    first, second = fiedler(graph)
    depth, height = _levels(graph)
    position = np.arange(graph.num_ops, dtype=np.float64)
    orders = [
        share(position, np.ones(graph.num_ops)), share(depth, np.ones(graph.num_ops)),
        share(height, np.ones(graph.num_ops)), 1 - (depth + height) / max(float((depth + height).max()), 1.0),
        share(first, np.ones(graph.num_ops)), share(second, np.ones(graph.num_ops)),
        np.clip(np.log10(held * graph.num_ops), -3, 3) / 3, held / held.max(),
        np.full(graph.num_ops, np.log10(graph.num_ops) / 2 - 1),
    ]  # fmt: skip
    splits = [share(first, np.ones(graph.num_ops)), share(first, held), share(second, held), share(position, held)]
    members = [membership(split, machine.num_devices) for split in splits]
    return Inputs(
        np.stack(orders, 1).astype(np.float32),
        np.stack([*members, *_device_columns(graph, machine)], 2).astype(np.float32),
    )


def share(value: F64, weight: F64) -> F64:
    """[N] in (0, 1): the share of all weight that lies before the op in the order of value; equal values share."""
    _, group = np.unique(value, return_inverse=True)
    total = np.bincount(group, weight)
    middle: F64 = ((np.cumsum(total) - total / 2) / total.sum())[group]
    return middle


def membership(position: F64, devices: int) -> F64:
    """[N, D] how far positions in (0, 1) lie inside the d-th of D equal intervals, in interval lengths, within [-1, 1].

    The outer ends are open: of two devices one's membership is the negative of the other's.
    """
    d = np.arange(devices)
    low = np.where(d == 0, np.inf, position[:, None] * devices - d)
    high = np.where(d == devices - 1, np.inf, d + 1 - position[:, None] * devices)
    inside: F64 = np.clip(np.minimum(low, high), -1.0, 1.0) if devices > 1 else np.ones((len(position), 1))
    return inside


def _device_columns(graph: Graph, machine: Machine) -> list[F64]:
    """[N, D] each: log of the device's speed and of its room over the machine's means."""
    speed = np.array([device.contraction_flops for device in machine.devices])
    room = np.array([min(device.capacity, 1e15) for device in machine.devices])
    columns = [np.log(value / np.exp(np.log(value).mean())) for value in (speed, room)]
    return [np.broadcast_to(np.clip(column, -3, 3), (graph.num_ops, machine.num_devices)) for column in columns]


def fiedler(graph: Graph) -> tuple[F64, F64]:
    """The second and third eigenvector of the normalised Laplacian [N], edges weighted by bytes.

    The sign is such that the op position correlates with them, so that equal graphs give equal signs.
    """
    n = graph.num_ops
    if n < 4 or n > LARGEST:
        return np.arange(n, dtype=np.float64), np.arange(n, dtype=np.float64)
    source, target, tensor = graph.edges
    weight = graph.tensor_bytes[tensor] / max(float(graph.tensor_bytes.max()), 1.0) + 1e-6
    both = coo_matrix((np.tile(weight, 2), (np.append(source, target), np.append(target, source))), shape=(n, n))
    laplacian = csgraph.laplacian(both.tocsr(), normed=True)
    vectors = _smallest(laplacian, 3)[:, 1:]
    signs = np.where(np.arange(n) @ (vectors - vectors.mean(0)) < 0, -1.0, 1.0)
    return vectors[:, 0] * signs[0], vectors[:, 1] * signs[1]


def _smallest(laplacian: object, count: int) -> F64:
    n = laplacian.shape[0]  # type: ignore[attr-defined]
    if n <= DENSE:
        return np.asarray(eigh(laplacian.toarray(), subset_by_index=(0, count - 1))[1])  # type: ignore[attr-defined]
    start = np.random.default_rng(0).random(n)
    try:
        values, vectors = eigsh(laplacian + 1e-3 * identity(n), k=count, sigma=0.0, which="LM", v0=start)
    except (ArpackError, RuntimeError):  # no convergence or a singular factor
        return np.stack([np.arange(n, dtype=np.float64)] * count, 1)
    return np.asarray(vectors[:, np.argsort(values)])


def _levels(graph: Graph) -> tuple[F64, F64]:
    """[N] steps from the sources and to the sinks along the longest path, views not counted."""
    step = (graph.category != Category.VIEW).astype(np.float64).tolist()
    source, target = graph.edges[0].tolist(), graph.edges[1].tolist()
    depth, height = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    for s, t in zip(source, target):
        depth[t] = max(depth[t], depth[s] + step[s])
    for s, t in zip(reversed(source), reversed(target)):
        height[s] = max(height[s], height[t] + step[t])
    return np.array(depth), np.array(height)
