"""Graphs by hand in few words, random graphs on which fusion has every kind of decision to make, and devices on which
every price term counts."""

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Device

ROWS, COLUMNS = 16, 32
LIMITS = (KernelLimits(64, 16, 8), KernelLimits(12, 8, 4), KernelLimits(6, 5, 2), KernelLimits(2, 3, 1))
_UNARY = ("relu", "neg", "exp", "tanh", "sqrt", "copy")
_BINARY = ("add", "mul", "sub", "div", "maximum")

PLAIN = Device(launch=1.0, vector_flops=256.0, contraction_flops=2048.0, bandwidth=512.0)
RICH = Device(
    launch=0.25, vector_flops=300.0, contraction_flops=5000.0, bandwidth=700.0, strided_factor=3.0, reread_factor=0.1,
    spill_inputs=4, spill_factor=0.1, cache_bytes=5000.0, cache_speedup=2.5, saturation=700.0, prologue_factor=1.3,
)  # fmt: skip
GPU = Device(
    launch=3e-6, vector_flops=10e12, contraction_flops=60e12, bandwidth=1.5e12, strided_factor=3.0, reread_factor=0.1,
    spill_inputs=8, spill_factor=0.1, cache_bytes=40e6, cache_speedup=2.5, saturation=65536.0, prologue_factor=1.3,
)  # fmt: skip
XLA = Device(
    fusion_model="xla_gpu", contraction_flops=60e12, launch=1e-6, bandwidth=768e9, clock=1.41e9, cores=84,
    fpus_per_core=128, l2_bytes=6.3e6,
)  # fmt: skip
DEVICES = (PLAIN, RICH, GPU, XLA)


class Net(GraphBuilder):
    """A builder whose ops make one result of a given shape (by default [4, 8]) and return it."""

    def __call__(
        self, kind: str, *inputs: int, name: str, shape: tuple[int, ...] = (4, 8), flops: float | None = None
    ) -> int:
        result = self.tensor(shape)
        self.op(kind, inputs, [result], name=name, flops=flops)
        return result

    def x(self, *shape: int) -> int:
        """A graph input."""
        return self.tensor(shape or (4, 8))

    def done(self, *outputs: int) -> Graph:
        for tensor in outputs:
            self.output(tensor)
        return self.build()


class _Grower:
    """A graph under construction, with pools of tensors by shape: matrices, columns, transposed ones."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.b = rng, GraphBuilder("random")
        self.full = [self.b.tensor((ROWS, COLUMNS)) for _ in range(3)]
        self.column = [self.b.tensor((ROWS, 1))]
        self.turned: list[int] = []
        self.bias = self.b.tensor((COLUMNS,), weight=True)
        self.unread: set[int] = set()

    def pick(self, pool: list[int]) -> int:
        """Mostly a recent tensor, so that chains grow; at times an old one, so that skips do."""
        at = pool[max(0, len(pool) - 1 - int(self.rng.exponential(4)))]
        self.unread.discard(at)
        return at

    def op(self, kind: str, inputs: list[int], *shapes: tuple[int, ...], flops: float | None = None) -> list[int]:
        results = [self.b.tensor(shape) for shape in shapes]
        self.b.op(kind, inputs, results, flops=flops)
        self.unread.update(results)
        return results

    def unary(self) -> None:
        self.full += self.op(str(self.rng.choice(_UNARY)), [self.pick(self.full)], (ROWS, COLUMNS))

    def binary(self) -> None:
        other = [self.full, self.full, self.column, [self.bias]][self.rng.integers(4)]
        self.full += self.op(str(self.rng.choice(_BINARY)), [self.pick(self.full), self.pick(other)], (ROWS, COLUMNS))

    def on_columns(self) -> None:
        inputs = [self.pick(self.column) for _ in range(self.rng.integers(1, 3))]
        self.column += self.op("add" if len(inputs) == 2 else "exp", inputs, (ROWS, 1))

    def reduce(self) -> None:
        self.column += self.op(str(self.rng.choice(["sum", "amax", "mean"])), [self.pick(self.full)], (ROWS, 1))

    def normalise(self) -> None:
        self.full += self.op(str(self.rng.choice(["softmax", "cumsum"])), [self.pick(self.full)], (ROWS, COLUMNS))

    def statistics(self) -> None:
        """A reduction with two results."""
        self.column += self.op("norm_stats", [self.pick(self.full)], (ROWS, 1), (ROWS, 1))

    def multiply(self) -> None:
        """By a weight, or by a transposed result: then the product is [rows, rows], and a second one comes back."""
        left = self.pick(self.full)
        if self.turned and self.rng.random() < 0.5:
            flops = 2.0 * ROWS * ROWS * COLUMNS
            scores = self.op("matmul", [left, self.pick(self.turned)], (ROWS, ROWS), flops=flops)
            if self.rng.random() < 0.5:
                scores = self.op("exp", scores, (ROWS, ROWS))
            self.unread -= {*scores}
            self.full += self.op("matmul", [*scores, self.pick(self.full)], (ROWS, COLUMNS), flops=flops)
        else:
            weight = self.b.tensor((COLUMNS, COLUMNS), weight=True)
            flops = 2.0 * ROWS * COLUMNS * COLUMNS * float(self.rng.choice([1, 20]))
            self.full += self.op("matmul", [left, weight], (ROWS, COLUMNS), flops=flops)

    def turn(self) -> None:
        self.turned += self.op("transpose", [self.pick(self.full)], (COLUMNS, ROWS))

    def on_turned(self) -> None:
        if self.turned:
            made = self.op("relu", [self.pick(self.turned)], (COLUMNS, ROWS))
            self.turned += made
            back = str(self.rng.choice(["transpose", "reshape"]))
            self.full += self.op(back, made, (ROWS, COLUMNS))

    def view(self) -> None:
        if self.turned and self.rng.random() < 0.5:
            self.turned += self.op("reshape", [self.pick(self.turned)], (COLUMNS, ROWS))
        self.full += self.op("reshape", [self.pick(self.full)], (ROWS, COLUMNS))

    def halves(self) -> None:
        """A split into two views and their sum, put together again."""
        a, b = self.op("split", [self.pick(self.full)], (ROWS, COLUMNS // 2), (ROWS, COLUMNS // 2))
        total = self.op("add", [a, b], (ROWS, COLUMNS // 2))
        self.full += self.op("concat", [*total, a], (ROWS, COLUMNS))
        self.unread -= {a, b, *total}

    def spread(self) -> None:
        """A broadcast view of a column."""
        self.full += self.op("broadcast", [self.pick(self.column)], (ROWS, COLUMNS))

    def gather(self) -> None:
        self.full += self.op("gather", [self.pick(self.full), self.pick(self.column)], (ROWS, COLUMNS))

    def opaque(self) -> None:
        self.full += self.op("opaque", [self.pick(self.full), self.pick(self.column)], (ROWS, COLUMNS))


_STEPS = {
    "unary": 6, "binary": 7, "on_columns": 2, "reduce": 2, "normalise": 1, "statistics": 0.7, "multiply": 1.5,
    "turn": 1, "on_turned": 1, "view": 0.7, "halves": 0.7, "spread": 0.7, "gather": 0.5, "opaque": 0.5,
}  # fmt: skip


def random_graph(seed: int, steps: int) -> Graph:
    """About `steps` ops: elementwise chains and skips, reductions with broadcast back, contractions, views, layouts,
    opaque ops. The last results are outputs; of the other unread ones about half are, the rest are dead."""
    rng = np.random.default_rng(seed)
    grower = _Grower(rng)
    weights = np.array(list(_STEPS.values()), float)
    for step in rng.choice(list(_STEPS), steps, p=weights / weights.sum()):
        getattr(grower, step)()
    grower.full += grower.op("add", [grower.pick(grower.full), grower.pick(grower.full)], (ROWS, COLUMNS))
    grower.b.output(grower.full[-1])
    for tensor in sorted(grower.unread - {grower.full[-1]}):
        if rng.random() < 0.5:
            grower.b.output(tensor)
    return grower.b.build()


def random_requests(graph: Graph, seed: int, rows: int, share: float) -> np.ndarray:
    """[rows, N] uint8 requests, each op with probability `share`; about a tenth of them ask not to be duplicated."""
    rng = np.random.default_rng(seed)
    asked = rng.random((rows, graph.num_ops)) < share
    return (asked * np.where(rng.random(asked.shape) < 0.1, 2, 1)).astype(np.uint8)
