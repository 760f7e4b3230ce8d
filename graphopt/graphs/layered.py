"""Layered graphs like those of deep networks, of any size: blocks of varying width with skip connections.

Sizes and FLOP follow from shapes as in real models. So placement sees heavy and light ops, and scheduling sees parallel
branches. Fusion sees chains of elementwise work around reductions and matrix products.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder

_UNARY = ("relu", "tanh", "sigmoid", "gelu", "silu", "exp", "abs", "neg", "sqrt", "clamp")
_BINARY = ("add", "mul", "sub", "maximum")


class _Net:
    """A network under construction. `x` is the tensor [rows, width] that the next block reads."""

    def __init__(self, builder: GraphBuilder, rng: Generator) -> None:
        self.builder, self.rng, self.ops = builder, rng, 0
        self.rows, self.width = 2 ** int(rng.integers(5, 11)), 2 ** int(rng.integers(6, 10))
        self.x = self.input(self.rows, self.width)
        self.skips: list[int] = []  # earlier tensors of the present shape

    def input(self, *shape: int) -> int:
        return self.builder.tensor(shape)

    def op(self, kind: str, inputs: list[int], shape: tuple[int, ...], flops: float | None = None) -> int:
        result = self.builder.tensor(shape)
        self.builder.op(kind, inputs, [result], flops=flops)
        self.ops += 1
        return result

    def unary(self, x: int) -> int:
        return self.op(str(self.rng.choice(_UNARY)), [x], (self.rows, self.width))

    def binary(self, x: int, y: int) -> int:
        return self.op(str(self.rng.choice(_BINARY)), [x, y], (self.rows, self.width))

    def project(self, x: int, inner: int, width: int) -> int:
        """Matrix product with a weight [inner, width], and a bias."""
        weight = self.builder.tensor((inner, width), weight=True)
        bias = self.builder.tensor((width,), weight=True)
        product = self.op("matmul", [x, weight], (self.rows, width), 2.0 * self.rows * inner * width)
        return self.op("add", [product, bias], (self.rows, width))

    def dense(self) -> None:
        """Expansion, activation, contraction, residual: 6 ops."""
        wide = self.width * int(self.rng.choice((1, 2, 4)))
        hidden = self.project(self.x, self.width, wide)
        hidden = self.op(str(self.rng.choice(("relu", "gelu", "silu"))), [hidden], (self.rows, wide))
        self.x = self.op("add", [self.x, self.project(hidden, wide, self.width)], (self.rows, self.width))

    def norm(self) -> None:
        """Layer normalisation in primitive ops: 8 ops."""
        shape, column = (self.rows, self.width), (self.rows, 1)
        mean = self.op("mean", [self.x], column)
        centred = self.op("sub", [self.x, mean], shape)
        variance = self.op("mean", [self.op("mul", [centred, centred], shape)], column)
        inverse = self.op("rsqrt", [self.op("add", [variance], column)], column)
        scale, shift = (self.builder.tensor((self.width,), weight=True) for _ in range(2))
        scaled = self.op("mul", [centred, inverse], shape)
        self.x = self.op("affine", [scaled, scale, shift], shape)

    def branches(self) -> None:
        """2 to 8 parallel branches of 1 to 4 ops, joined by additions or by a concatenation and a projection."""
        ends = [self._branch() for _ in range(int(self.rng.integers(2, 9)))]
        if self.rng.random() < 0.5:
            wide = self.width * len(ends)
            self.x = self.project(self.op("concat", ends, (self.rows, wide)), wide, self.width)
        else:
            self.x = ends[0]
            for end in ends[1:]:
                self.x = self.op("add", [self.x, end], (self.rows, self.width))

    def _branch(self) -> int:
        x = self.project(self.x, self.width, self.width) if self.rng.random() < 0.5 else self.x
        for _ in range(int(self.rng.integers(1, 3))):
            x = self.unary(x)
        return x

    def attention(self) -> None:
        """One head over the rows: 3 projections, scores, softmax, values, projection, residual: 14 ops."""
        query, key, value = (self.project(self.x, self.width, self.width) for _ in range(3))
        key = self.op("transpose", [key], (self.width, self.rows))
        product = 2.0 * self.rows * self.rows * self.width
        scores = self.op("matmul", [query, key], (self.rows, self.rows), product)
        scores = self.op("mul", [scores], (self.rows, self.rows))
        weights = self.op("softmax", [scores], (self.rows, self.rows))
        mixed = self.op("matmul", [weights, value], (self.rows, self.width), product)
        mixed = self.project(mixed, self.width, self.width)
        self.x = self.op("add", [self.x, mixed], (self.rows, self.width))

    def gated(self) -> None:
        """A gate as in LSTM, WaveNet and gated linear units: 8 ops."""
        gate = self.op("sigmoid", [self.project(self.x, self.width, self.width)], (self.rows, self.width))
        value = self.op("tanh", [self.project(self.x, self.width, self.width)], (self.rows, self.width))
        mixed = self.op("mul", [gate, value], (self.rows, self.width))
        self.x = self.op("add", [self.x, mixed], (self.rows, self.width))

    def chain(self) -> None:
        """3 to 12 elementwise ops, some of which read an earlier result of the chain again."""
        seen = [self.x]
        for _ in range(int(self.rng.integers(3, 13))):
            if self.rng.random() < 0.6:
                seen.append(self.unary(seen[-1]))
            else:
                seen.append(self.binary(seen[-1], seen[int(self.rng.integers(len(seen)))]))
        self.x = seen[-1]

    def maybe_skip(self) -> None:
        """Every third time an earlier tensor of the same shape is added, one of the last eight."""
        if self.skips and self.rng.random() < 0.3:
            earlier = self.skips[-int(self.rng.integers(1, min(len(self.skips), 8) + 1))]
            self.x = self.op("add", [self.x, earlier], (self.rows, self.width))
        self.skips.append(self.x)

    def resize(self) -> None:
        """A new stage: other width, and half or twice the rows within 32 to 1,024 (pooling or upsampling)."""
        width = 2 ** int(self.rng.integers(6, 10))
        self.x = self.project(self.x, self.width, width)
        rows = int(min(max(self.rows * self.rng.choice((0.5, 1, 2)), 32), 1024))
        if rows != self.rows:
            self.x = self.op("pool_max" if rows < self.rows else "upsample", [self.x], (rows, width))
        self.rows, self.width, self.skips = rows, width, []


# block -> (ops at most, share of the draws)
_BLOCKS: tuple[tuple[Callable[[_Net], None], int, float], ...] = (
    (_Net.dense, 6, 0.2),
    (_Net.norm, 8, 0.2),
    (_Net.branches, 39, 0.25),
    (_Net.attention, 14, 0.1),
    (_Net.gated, 8, 0.1),
    (_Net.chain, 12, 0.15),
)
_BETWEEN = 4  # ops at most between two blocks


def layered_graph(ops: int, rng: Generator, name: str) -> Graph:
    """A graph of exactly `ops` ops: blocks as long as one fits, then elementwise ops."""
    if ops < 1:
        raise GraphError(f"a layered graph needs at least one op, not {ops}")
    net = _Net(GraphBuilder(name, "layered"), rng)
    while block := _choose(ops - net.ops - _BETWEEN, rng):
        block(net)
        net.maybe_skip()
        if rng.random() < 0.1:
            net.resize()
    while ops > net.ops:
        net.x = net.unary(net.x) if rng.random() < 0.7 else net.binary(net.x, net.input(net.rows, net.width))
    net.builder.output(net.x)
    return net.builder.build()


def _choose(room: int, rng: Generator) -> Callable[[_Net], None] | None:
    """A block of at most `room` ops, or None when none fits."""
    fitting = [(block, share) for block, most, share in _BLOCKS if most <= room]
    if not fitting:
        return None
    shares = np.array([share for _, share in fitting])
    return fitting[int(rng.choice(len(fitting), p=shares / shares.sum()))][0]
