"""Where the ops of a graph stand in a picture: layers from left to right, few crossings, wrapped like text.

Sugiyama's method in our words: longest-path layers, dummy points where an edge passes a layer, barycentre sweeps that
keep the order with the fewest crossings, then coordinates as close to the neighbours' as the order allows (isotonic
regression).

Legend: V ops shown, E edges, P points (ops and dummies), L layers.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

F64 = NDArray[np.float64]
SWEEPS = 24
LONGEST_CHAIN = 14  # layers; longer edges are drawn without dummy points, else they would fill the picture
STRAIGHT = 20.0
ROW_GAP = 1.7  # between rows, in ops
DUMMY_GAP = 0.45  # of the distance between two ops


@dataclass(frozen=True)
class Layout:
    """x and y of every op, rows from the top; routes of edges as points, one line for every row of text it touches."""

    x: F64  # [V] layer within its row
    y: F64  # [V] grows downwards
    routes: list[list[F64]]  # per edge: lines, each [points, 2]
    width: float
    height: float


@dataclass
class _Points:
    """Ops 0 .. V-1, then dummies, by layer and position."""

    layer: list[int]
    chains: list[list[int]]  # per edge: its points from source to destination
    above: list[list[int]]  # per point: neighbours in the layer before
    below: list[list[int]]
    real: int


def layered(count: int, edges: Sequence[tuple[int, int]], aspect: float) -> Layout:
    """Layout of a graph of `count` ops whose edges (source, destination) go from lower to higher numbers.

    aspect: wanted width / height, in units of one layer by one op.
    """
    layer = longest_path_layers(count, edges)
    points = _with_dummies(layer, edges)
    order = _ordered(points)
    y = _coordinates(points, order)
    return _wrapped(points, y, int(max(layer)) + 1 if count else 1, aspect)


def longest_path_layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Layer of every op: one more than its latest predecessor's; ops without predecessors stand just before their first
    reader."""
    layer = [0] * count
    has_input = [False] * count
    first_reader = [count] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
        has_input[target] = True
    for source, target in edges:
        first_reader[source] = min(first_reader[source], layer[target])
    return [
        max(0, first_reader[v] - 1) if not has_input[v] and first_reader[v] < count else layer[v] for v in range(count)
    ]


def _with_dummies(layer: list[int], edges: Sequence[tuple[int, int]]) -> _Points:
    points = _Points(list(layer), [], [], [], len(layer))
    for source, target in edges:
        chain = [source]
        if layer[target] - layer[source] <= LONGEST_CHAIN:
            for passed in range(layer[source] + 1, layer[target]):
                chain.append(len(points.layer))
                points.layer.append(passed)
        points.chains.append([*chain, target])
    points.above = [[] for _ in points.layer]
    points.below = [[] for _ in points.layer]
    for chain in points.chains:
        for a, b in pairwise(chain):
            if points.layer[b] == points.layer[a] + 1:
                points.below[a].append(b)
                points.above[b].append(a)
    return points


def _ordered(points: _Points) -> list[list[int]]:
    """Points of every layer, top to bottom: barycentre sweeps down and up, the best order kept."""
    layers: list[list[int]] = [[] for _ in range(max(points.layer, default=0) + 1)]
    for point, at in enumerate(points.layer):
        layers[at].append(point)
    best, fewest = [list(row) for row in layers], _crossings(layers, points)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        neighbours = points.above if down else points.below
        position = {point: i for row in layers for i, point in enumerate(row)}
        for row in layers if down else reversed(layers):
            row.sort(key=lambda p: _barycentre(neighbours[p], position, position[p]))
            position.update((point, i) for i, point in enumerate(row))
        crossings = _crossings(layers, points)
        if crossings < fewest:
            best, fewest = [list(row) for row in layers], crossings
    return best


def _barycentre(neighbours: list[int], position: dict[int, int], otherwise: float) -> float:
    return sum(position[n] for n in neighbours) / len(neighbours) if neighbours else otherwise


def _crossings(layers: list[list[int]], points: _Points) -> int:
    """Pairs of edges between adjacent layers that cross."""
    total = 0
    for row, following in pairwise(layers):
        position = {point: i for i, point in enumerate(following)}
        ends: list[int] = []
        for point in row:
            reached = sorted(position[b] for b in points.below[point])
            total += sum(len(ends) - bisect_left(ends, at + 1) for at in reached)
            for at in reached:
                insort(ends, at)
    return total


def _coordinates(points: _Points, order: list[list[int]]) -> F64:
    """[P] y of every point: near its neighbours', in the given order, one apart (less between dummies)."""
    y = np.zeros(len(points.layer))
    for row in order:
        y[row] = _spread(row, points.real) - (_spread(row, points.real)[-1] / 2 if row else 0)
    for sweep in range(SWEEPS):
        for row in order if sweep % 2 == 0 else reversed(order):
            if not row:
                continue
            down = sweep % 2 == 0
            near, back = (points.above, points.below) if down else (points.below, points.above)
            wanted = np.array([_level(p, near[p], back, y) for p in row])
            weight = np.array([2.0 if p >= points.real else 1.0 for p in row])  # passing edges straight first
            offset = _spread(row, points.real)
            y[row] = isotonic_regression(wanted - offset, weights=weight).x + offset
    return y


def _level(point: int, near: list[int], back: list[list[int]], y: F64) -> float:
    """Mean y of the neighbours; those without other neighbours on this side count most, so that chains are straight."""
    if not near:
        return float(y[point])
    weight = [STRAIGHT if len(back[n]) == 1 else 1.0 for n in near]
    return float(np.average(y[near], weights=weight))


def _spread(row: list[int], real: int) -> F64:
    """Least distance of each point from the first of its layer."""
    gaps = [0.0] + [(1 if a < real else DUMMY_GAP) / 2 + (1 if b < real else DUMMY_GAP) / 2 for a, b in pairwise(row)]
    return np.cumsum(gaps)


def _wrapped(points: _Points, y: F64, layers: int, aspect: float) -> Layout:
    """Breaks the layers into rows so that the picture has about the wanted shape."""
    layer = np.array(points.layer)
    best: tuple[float, int] | None = None
    for rows in range(1, layers + 1):
        per_row = -(-layers // rows)
        shape = per_row / sum(_heights(layer, y, per_row))
        miss = abs(np.log(shape / aspect))
        if best is None or miss < best[0]:
            best = (miss, per_row)
        if shape < aspect:
            break
    assert best is not None
    return _place(points, layer, y, best[1])


def _heights(layer: NDArray[np.int64], y: F64, per_row: int) -> list[float]:
    rows = layer // per_row
    return [float(_squeezed(y[rows == r]).max()) + ROW_GAP for r in range(int(rows.max()) + 1)]


def _squeezed(y: F64) -> F64:
    """From 0 on, with empty bands made as narrow as the distance of two ops."""
    order = np.argsort(y, kind="stable")
    gaps = np.minimum(np.diff(y[order], prepend=y[order[:1]]), 1.0)
    out = np.empty_like(y)
    out[order] = np.cumsum(gaps)
    return out


def _place(points: _Points, layer: NDArray[np.int64], y: F64, per_row: int) -> Layout:
    row, x = layer // per_row, (layer % per_row).astype(np.float64)
    top, placed = 0.0, y.copy()
    for r in range(int(row.max()) + 1):
        members = np.flatnonzero(row == r)
        squeezed = _squeezed(y[members])
        placed[members] = squeezed + top
        top += float(squeezed.max()) + ROW_GAP
    routes = [_route(chain, row, x, placed, per_row) for chain in points.chains]
    real = slice(0, points.real)
    return Layout(x[real], placed[real], routes, float(per_row), max(top - ROW_GAP + 1.0, 1.0))


def _route(chain: list[int], row: NDArray[np.int64], x: F64, y: F64, per_row: int) -> list[F64]:
    """An edge's lines. Where it goes on in a lower row it leaves to the right and comes in from the left."""
    lines: list[list[tuple[float, float]]] = [[(x[chain[0]], y[chain[0]])]]
    for a, b in pairwise(chain):
        if row[a] != row[b]:
            lines[-1].append((per_row - 0.35, y[a]))
            lines.append([(-0.65, y[b])])
        lines[-1].append((x[b], y[b]))
    return [np.array(line) for line in lines]
