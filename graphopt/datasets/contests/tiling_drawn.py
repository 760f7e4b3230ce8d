"""Tiling problems drawn from blocks of models: chains, diamonds, products, gates, perceptrons, attention heads.

Each block reads the running results, one after the other or several beside each other whose results are added up;
sizes, base costs, capacity and bandwidth are drawn for each graph. To learn from, and to choose constants on.
"""

from collections.abc import Callable, Sequence

import numpy as np

from graphopt.datasets.contests.tiling_generator import TilingGenerator
from graphopt.tiling.tile_workload import TileWorkload

NATIVE = 128  # side of the largest tile
POINTWISE, PRODUCT = (100, 200, 500, 1000, 2000), (500, 1000, 2000, 5000)  # base costs
TILES = (1.5, 40.0)  # native tiles that fast memory holds
BANDWIDTH = (8.0, 120.0)


class TilingDrawn(TilingGenerator):
    """Blocks of models. yaml: conf/dataset/tiling_drawn.yaml."""

    fewest = 8

    def workload(self, rng: np.random.Generator, ops: int, name: str) -> TileWorkload:
        return drawn_workload(rng, ops, self.sizes, name)


def drawn_workload(rng: np.random.Generator, ops: int, sizes: Sequence[int], name: str) -> TileWorkload:
    """Blocks until there are at least so many ops; those that follow are left out."""
    blocks = _Blocks(rng, ops, int(rng.choice(sizes)), int(rng.choice(sizes)))
    kinds: list[Callable[[int], int]] = [blocks.chain, blocks.diamond, blocks.product, blocks.gate, blocks.perceptron,
                                         blocks.head]  # fmt: skip
    chosen = [kinds[place] for place in rng.choice(len(kinds), int(rng.integers(2, 5)), replace=False)]
    beside = int(rng.choice([1, 1, 2, 4, 8]))
    now = blocks.tensor(blocks.length, blocks.width)
    while blocks.left:
        block = chosen[rng.integers(len(chosen))]
        results = [block(now) for _ in range(beside) if blocks.left]
        now = results[0]
        for other in results[1:]:
            now = blocks.pointwise(now, other)
    return blocks.workload(name)


class _Blocks:
    """A graph that grows. Results are `length` rows by `width` columns; inside blocks they are `inner` wide."""

    def __init__(self, rng: np.random.Generator, ops: int, length: int, width: int) -> None:
        self.rng, self.ops, self.length, self.width = rng, ops, length, width
        self.inner = int(rng.choice([width, width, 4 * width, NATIVE]))
        self.costs = {False: rng.choice(POINTWISE, 2), True: rng.choice(PRODUCT, 2)}
        self.shared = bool(rng.random() < 0.3)  # weights of one shape are one tensor
        self.heights, self.widths = list[int](), list[int]()
        self.inputs, self.output = list[tuple[int, ...]](), list[int]()
        self.base, self.matmul = list[float](), list[bool]()
        self._weights: dict[tuple[int, int], int] = {}

    @property
    def left(self) -> int:
        return max(0, self.ops - len(self.output))

    def tensor(self, height: int, width: int) -> int:
        self.heights.append(height)
        self.widths.append(width)
        return len(self.heights) - 1

    def weight(self, height: int, width: int) -> int:
        if not self.shared:
            return self.tensor(height, width)
        return self._weights.setdefault((height, width), self.tensor(height, width))

    def op(self, read: tuple[int, ...], made: tuple[int, int], *, matmul: bool) -> int:
        """Once all ops are there it is left out, and so is what it would make: its first input stands for it."""
        if not self.left:
            return read[0]
        self.inputs.append(read)
        self.output.append(self.tensor(*made))
        self.matmul.append(matmul)
        self.base.append(float(self.rng.choice(self.costs[matmul])))
        return self.output[-1]

    def pointwise(self, *read: int) -> int:
        """Of tensors of one shape; those of another are left out."""
        shape = self.heights[read[0]], self.widths[read[0]]
        alike = tuple(t for t in dict.fromkeys(read) if (self.heights[t], self.widths[t]) == shape)
        return self.op(alike, shape, matmul=False)

    def times(self, left: int, right: int) -> int:
        if self.widths[left] != self.heights[right]:
            return left  # after the last op
        return self.op((left, right), (self.heights[left], self.widths[right]), matmul=True)

    def chain(self, now: int) -> int:
        for _ in range(int(self.rng.integers(2, 6))):
            more = (self.tensor(self.heights[now], self.widths[now]),) if self.rng.random() < 0.3 else ()
            now = self.pointwise(now, *more)
        return now

    def diamond(self, now: int) -> int:
        ends = []
        for _ in range(int(self.rng.integers(2, 4))):
            end = now
            for _ in range(int(self.rng.integers(1, 4))):
                end = self.pointwise(end)
            ends.append(end)
        return self.pointwise(*ends)

    def product(self, now: int) -> int:
        return self.times(now, self.weight(self.widths[now], self.width))

    def gate(self, now: int) -> int:
        wide, open_ = (self.times(now, self.weight(self.widths[now], self.inner)) for _ in range(2))
        gated = self.pointwise(wide, self.pointwise(open_))
        return self.times(gated, self.weight(self.widths[gated], self.width))

    def perceptron(self, now: int) -> int:
        hidden = self.times(now, self.weight(self.widths[now], self.inner))
        for _ in range(int(self.rng.integers(1, 3))):
            hidden = self.pointwise(hidden)
        out = self.times(hidden, self.weight(self.widths[hidden], self.width))
        return self.pointwise(out, now)

    def head(self, now: int) -> int:
        """Keys are made as columns."""
        queries = self.times(now, self.weight(self.widths[now], NATIVE))
        keys = self.tensor(NATIVE, self.length) if self.rng.random() < 0.5 else self._keys(now)
        scores = self.times(queries, keys)
        for _ in range(int(self.rng.integers(0, 4))):
            scores = self.pointwise(scores)
        values = self.times(now, self.weight(self.widths[now], NATIVE))
        mixed = self.times(scores, values)
        return self.times(mixed, self.weight(self.widths[mixed], self.width))

    def _keys(self, now: int) -> int:
        """Of an input that is stored the other way round."""
        return self.times(self.weight(NATIVE, self.widths[now]), self.tensor(self.widths[now], self.length))

    def workload(self, name: str) -> TileWorkload:
        """With the tensors that ops read or make."""
        used = sorted({*self.output, *(t for read in self.inputs for t in read)})
        place = {tensor: number for number, tensor in enumerate(used)}
        rng, capacity = self.rng, NATIVE * NATIVE * float(np.exp(self.rng.uniform(*np.log(TILES))))
        return TileWorkload(
            name=name, widths=tuple(self.widths[t] for t in used), heights=tuple(self.heights[t] for t in used),
            inputs=tuple(tuple(place[t] for t in read) for read in self.inputs),
            output=tuple(place[t] for t in self.output), base_costs=tuple(self.base), is_matmul=tuple(self.matmul),
            capacity=float(round(capacity)), bandwidth=float(round(np.exp(rng.uniform(*np.log(BANDWIDTH))))),
            native=(NATIVE, NATIVE),
        )  # fmt: skip
