"""Partitions of kernels over devices: equal blocks in op order, spectral, and METIS.

All take the weight of every kernel and the share of it that each device should get.
Shape legend: N ops (ids without a kernel included: weight 0), E dependencies, D devices.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from graphopt.core.errors import ConfigError
from graphopt.core.graph import F64, I64
from graphopt.core.list_schedule import Dependencies
from graphopt.core.spectral import smallest_eigenvectors

I16 = NDArray[np.int16]

EXACT = 3_000  # ops up to which the eigenvector is computed; beyond it a smoothed op order stands in
SMOOTHINGS = 200  # matrix products of the latter
CHAIN = 1e-6  # weight, in units of the largest edge, that ties each op to the next, so that nothing falls apart
SLACK = 0.02  # how far a cut may be from the share that was asked for, for fewer bytes
METIS_UNITS = 1e8  # METIS counts in int32: weights are scaled to this sum


def blocks(weight: F64, share: F64) -> I16:
    """[N] runs of ops in op order with their shares of the weight."""
    return _cut(np.arange(len(weight)), weight, share)


def spectral(weight: F64, share: F64, edges: csr_array) -> I16:
    """[N] recursive bisection along the Fiedler vector of the normalised Laplacian (Shi, Malik 2000).

    Of the ops of some devices, those that come first along it go to the first half of the devices. They are cut where
    fewest bytes are cut, with their share of the weight to within `SLACK` of the whole. Deterministic; where no
    eigenvector is found, op order stands in.
    """
    device = np.zeros(len(weight), np.int16)

    def split(ops: I64, first: int, count: int) -> None:
        if count == 1 or len(ops) == 0:
            device[ops] = first
            return
        half = count // 2
        left = share[first : first + half].sum() / share[first : first + count].sum()
        inside = edges[ops][:, ops]
        order = np.argsort(fiedler(inside), kind="stable")
        place = _lightest_cut(order, weight[ops], left, inside)
        split(np.sort(ops[order[:place]]), first, half)
        split(np.sort(ops[order[place:]]), first + half, count - half)

    split(np.arange(len(weight)), 0, len(share))
    return device


def metis(weight: F64, share: F64, edges: csr_array, imbalance: float) -> I16:
    """[N] METIS (Karypis, Kumar 1998): few bytes between devices, no device more than `imbalance` above its share.

    Raises ConfigError where pymetis is not installed.
    """
    try:
        import pymetis
    except ModuleNotFoundError:
        raise ConfigError("graph partitioning needs the package pymetis; `pip install -e .[solvers]`") from None
    if len(share) == 1:
        return np.zeros(len(weight), np.int16)
    options = pymetis.Options(seed=0, ufactor=max(1, round(1000 * imbalance)))
    _, part = pymetis.part_graph(
        len(share), xadj=edges.indptr.astype(np.int64), adjncy=edges.indices.astype(np.int64),
        vweights=_whole(weight), eweights=np.maximum(_whole(edges.data), 1), tpwgts=share.tolist(), options=options,
    )  # fmt: skip
    return np.asarray(part, np.int16)


def undirected(needs: Dependencies) -> csr_array:
    """[N, N] symmetric: bytes that ops send each other, plus a light chain in op order."""
    ops = len(needs.ptr) - 1
    reader = np.repeat(np.arange(ops), np.diff(needs.ptr))
    largest = max(float(needs.size.max(initial=0.0)), 1.0)
    here = np.concatenate([needs.source, np.arange(ops - 1)])
    there = np.concatenate([reader, np.arange(1, ops)])
    weight = np.concatenate([needs.size + CHAIN * largest, np.full(ops - 1, CHAIN * largest)]) / largest
    one_way = coo_array((weight, (here, there)), shape=(ops, ops)).tocsr()
    return csr_array(one_way + one_way.T)


def chain(ops: int) -> csr_array:
    """[N, N] symmetric: each op beside the next."""
    i = np.arange(ops - 1)
    one_way = csr_array((np.ones(ops - 1), (i, i + 1)), shape=(ops, ops))
    return csr_array(one_way + one_way.T)


def fiedler(edges: csr_array) -> F64:
    """[N] the second eigenvector of the normalised Laplacian over roots of degrees, in the direction of op order.

    Beyond `EXACT` ops it is the op order, smoothed along the edges.
    """
    ops = edges.shape[0]
    if ops < 4:
        return np.arange(ops, dtype=np.float64)
    degree = np.maximum(edges.sum(1), 1e-30)
    vector = _smoothed_order(edges, degree) if ops > EXACT else smallest_eigenvectors(edges, 2)[:, 1] / np.sqrt(degree)
    position = np.arange(ops) - (ops - 1) / 2
    return vector if vector @ position >= 0 else -vector


def _smoothed_order(edges: csr_array, degree: F64) -> F64:
    """Op order, each op moved half-way to the mean of its neighbours, again and again: the power method, stopped early.

    On deep graphs the eigenvector is out of reach of any number of steps that is affordable, and op order is near it.
    """
    value = np.arange(edges.shape[0], dtype=np.float64)
    for _ in range(SMOOTHINGS):
        value = 0.5 * (value + (edges @ value) / degree)
        value -= (value @ degree) / degree.sum()
    return value


def _cut(order: I64, weight: F64, share: F64) -> I16:
    """[N] device of the ops in `order`: where the middle of their weight lies among the shares."""
    along = weight[order] + 1e-12 * max(float(weight.sum()), 1e-30)
    middle = (np.cumsum(along) - along / 2) / along.sum()
    bounds = np.cumsum(share)[:-1] / share.sum()
    return np.asarray(np.searchsorted(bounds, middle, side="right"), np.int16)


def _lightest_cut(order: I64, weight: F64, share: float, edges: csr_array) -> int:
    """How many ops of `order` to cut off: `share` of the weight within `SLACK`, with the lightest edges across."""
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    both = edges.tocoo()
    low, high = np.minimum(position[both.row], position[both.col]), np.maximum(position[both.row], position[both.col])
    across = np.cumsum(np.bincount(low, both.data, len(order)) - np.bincount(high, both.data, len(order)))
    along = np.cumsum(weight[order] + 1e-12 * max(float(weight.sum()), 1e-30))
    off = np.abs(along / along[-1] - share)
    allowed = off <= max(SLACK, float(off.min()))
    return int(np.lexsort((off, np.where(allowed, across, np.inf)))[0]) + 1


def _whole(weight: F64) -> I64:
    return np.round(weight * (METIS_UNITS / max(float(weight.sum()), 1e-30))).astype(np.int64)
