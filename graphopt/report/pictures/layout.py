"""Where the ops of a graph stand in a picture: layers from left to right, few crossings, wrapped like text.

Sugiyama's method in our words. There are longest-path layers, and dummy points where an edge passes a layer. Barycentre
sweeps keep the order with the fewest crossings. Then coordinates are as close to the neighbours' as the order allows
(isotonic regression).

Legend: V ops shown, E edges, P points (ops and dummies), L layers.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise

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


class _Points:
    """Ops 0 .. V-1, then dummies, by layer and position."""

    def __init__(self, layer: list[int], edges: Sequence[tuple[int, int]]) -> None:
        self.real, self.layer = len(layer), list(layer)
        self.chains: list[list[int]] = []  # per edge: its points from source to destination
        for source, target in edges:
            near = layer[target] - layer[source] <= LONGEST_CHAIN
            passed = range(layer[source] + 1, layer[target]) if near else ()
            self.chains.append([source, *range(len(self.layer), len(self.layer) + len(passed)), target])
            self.layer += passed
        self.above: list[list[int]] = [[] for _ in self.layer]  # per point: neighbours in the layer before
        self.below: list[list[int]] = [[] for _ in self.layer]
        for a, b in (pair for chain in self.chains for pair in pairwise(chain)):
            if self.layer[b] == self.layer[a] + 1:
                self.below[a].append(b)
                self.above[b].append(a)


def layered(count: int, edges: Sequence[tuple[int, int]], aspect: float) -> Layout:
    """Layout of a graph of `count` ops whose edges (source, destination) go from lower to higher numbers.

    aspect: wanted width / height, in units of one layer by one op.
    """
    points = _Points(longest_path_layers(count, edges), edges)
    return _wrapped(points, _coordinates(points, _ordered(points)), aspect)


def longest_path_layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Layer of every op: one more than its latest predecessor's; ops without predecessors stand just before their first
    reader."""
    layer, reader = [0] * count, [count] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layer[target] = max(layer[target], layer[source] + 1)
    for source, target in edges:
        reader[source] = min(reader[source], layer[target])
    return [first - 1 if at == 0 and first < count else at for at, first in zip(layer, reader)]


def _ordered(points: _Points) -> list[list[int]]:
    """Points of every layer, top to bottom: barycentre sweeps down and up, the best order kept."""
    layers: list[list[int]] = [[] for _ in range(max(points.layer, default=0) + 1)]
    for point, at in enumerate(points.layer):
        layers[at].append(point)
    best, fewest = [list(row) for row in layers], _crossings(layers, points)
    for sweep in range(SWEEPS):
        near = points.below if sweep % 2 else points.above
        position = {point: float(i) for row in layers for i, point in enumerate(row)}
        for row in reversed(layers) if sweep % 2 else layers:
            row.sort(key=lambda p: sum(position[n] for n in near[p]) / len(near[p]) if near[p] else position[p])
            position.update(zip(row, count()))
        crossings = _crossings(layers, points)
        if crossings < fewest:
            best, fewest = [list(row) for row in layers], crossings
    return best


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
    y, room = np.zeros(len(points.layer)), np.where(np.arange(len(points.layer)) < points.real, 1.0, DUMMY_GAP)
    rows = [row for row in order if row]
    # least distance of each point from the first of its layer
    spread = [np.cumsum([0.0] + [room[a] / 2 + room[b] / 2 for a, b in pairwise(row)]) for row in rows]
    weights = [np.where(np.array(row) < points.real, 1.0, 2.0) for row in rows]  # passing edges straight first
    for row, offset in zip(rows, spread):
        y[row] = offset - offset[-1] / 2
    for sweep in range(SWEEPS):
        near, back = (points.below, points.above) if sweep % 2 else (points.above, points.below)
        for row, offset, weight in [*zip(rows, spread, weights)][:: -1 if sweep % 2 else 1]:
            wanted = np.array([_level(p, near[p], back, y) for p in row])
            y[row] = isotonic_regression(wanted - offset, weights=weight).x + offset
    return y


def _level(point: int, near: list[int], back: list[list[int]], y: F64) -> float:
    """Mean y of the neighbours; those without other neighbours on this side count most, so that chains are straight."""
    if not near:
        return float(y[point])
    weight = [STRAIGHT if len(back[n]) == 1 else 1.0 for n in near]
    return float(np.average(y[near], weights=weight))


def _wrapped(points: _Points, y: F64, aspect: float) -> Layout:
    """Breaks the layers into rows so that the picture has about the wanted shape."""
    layer, tried = np.array(points.layer), list[tuple[float, int]]()
    layers = int(layer[: points.real].max()) + 1
    for rows in range(1, layers + 1):
        per_row = -(-layers // rows)
        shape = per_row / _stacked(layer // per_row, y)[1]
        tried.append((abs(np.log(shape / aspect)), per_row))
        if shape < aspect:
            break
    _, best = min(tried, key=lambda miss: miss[0])
    row, x = layer // best, (layer % best).astype(np.float64)
    placed, height = _stacked(row, y)
    routes = [_route(chain, row, x, placed, best) for chain in points.chains]
    real = slice(0, points.real)
    return Layout(x[real], placed[real], routes, float(best), max(height - ROW_GAP + 1.0, 1.0))


def _stacked(row: NDArray[np.int64], y: F64) -> tuple[F64, float]:
    """(y with the rows below each other, their height). Empty bands are made as narrow as the distance of two ops."""
    top, placed = 0.0, y.copy()
    for r in range(int(row.max()) + 1):
        members = np.flatnonzero(row == r)
        members = members[np.argsort(y[members], kind="stable")]
        gaps = np.minimum(np.diff(y[members], prepend=y[members[:1]]), 1.0)
        placed[members] = np.cumsum(gaps) + top
        top += float(gaps.sum()) + ROW_GAP
    return placed, top


def _route(chain: list[int], row: NDArray[np.int64], x: F64, y: F64, per_row: int) -> list[F64]:
    """An edge's lines. Where it goes on in a lower row it leaves to the right and comes in from the left."""
    lines: list[list[tuple[float, float]]] = [[(x[chain[0]], y[chain[0]])]]
    for a, b in pairwise(chain):
        if row[a] != row[b]:
            lines[-1].append((per_row - 0.35, y[a]))
            lines.append([(-0.65, y[b])])
        lines[-1].append((x[b], y[b]))
    return [np.array(line) for line in lines]
