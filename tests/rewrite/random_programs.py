"""Random programs for property tests, and terms by hand."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, Operation, ShapeError

WEIGHTS = ((4, 4, 3, 3), (8, 2, 3, 1), (4, 4, 1, 1), (4, 1, 3, 3), (6, 6), (6, 4), (8,), (4,), (4, 1, 1))
PLAIN = ("none", "relu")


def leaf(terms: Terms, name: str, *shape: int, kind: str = "input") -> int:
    return terms.add(Operation(kind, (name, shape, "float32")))


def op(terms: Terms, name: str, *params: object, of: Sequence[int]) -> int:
    return terms.add(Operation(name, params), of)


class Draw:
    """What the next operation is drawn from."""

    def __init__(self, terms: Terms, pool: list[int], rng: np.random.Generator) -> None:
        self.terms, self.pool, self.rng = terms, pool, rng

    def one(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def ints(self, low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(int(n) for n in self.rng.integers(low, high, count))

    def terms_like(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> list[int]:
        return [term for term in self.pool if fits(self.terms.shape(term))]

    def add(self, name: str, *params: object, of: Sequence[int]) -> int:
        return self.terms.add(Operation(name, params), tuple(of))

    def any(self, count: int = 1) -> list[int]:
        return [self.one(self.pool) for _ in range(count)]

    def axis(self, x: int) -> int:
        return int(self.rng.integers(max(len(self.terms.shape(x)), 1)))

    def conv(self) -> int:
        inputs = self.any(2)
        bias = self.terms_like(lambda shape: shape == self.terms.shape(inputs[1])[:1])
        inputs += [self.one(bias)] if bias and self.rng.random() < 0.5 else []
        return self.add("conv", self.ints(1, 3, 2), self.ints(0, 2, 4), self.one(PLAIN), of=inputs)

    def concat(self) -> int:
        (first,) = self.any()
        alike = self.terms_like(lambda shape: len(shape) == len(self.terms.shape(first)))
        return self.add("concat", self.axis(first), of=(first, self.one(alike)))

    def split(self) -> int:
        (x,) = self.any()
        axis = self.axis(x)
        size = self.terms.shape(x)[axis]
        cut = int(self.rng.integers(0, size + 1))
        return self.add("item", self.one((0, 1)), of=[self.add("split", axis, (cut, size - cut), of=[x])])

    def transpose(self) -> int:
        (x,) = self.any()
        return self.add("transpose", tuple(map(int, self.rng.permutation(len(self.terms.shape(x))))), of=[x])

    def reshape(self) -> int:
        (x,) = self.any()
        shape = self.terms.shape(x)
        new = (shape[0], int(np.prod(shape[1:]))) if self.rng.random() < 0.5 else (*shape[::-1], 1)[:4]
        return self.add("reshape", tuple(int(size) for size in new), of=[x])

    def gather(self) -> int:
        (x,) = self.any()
        return self.add("gather", self.axis(x), of=[x, self.add("weight", "indices", (3,), "int64", of=())])

    def pad(self) -> int:
        (x,) = self.any()
        return self.add("pad", *(self.ints(0, 2, len(self.terms.shape(x))) for _ in range(2)), of=[x])

    def pool_of(self, kind: str) -> int:
        return self.add(f"pool_{kind}", self.ints(2, 4, 2), self.ints(1, 3, 2), self.ints(0, 2, 4), of=self.any())

    def constant(self) -> int:
        if self.rng.random() < 0.5:
            return self.add("fill", int(self.rng.integers(-2, 3)), self.terms.shape(self.any()[0]), of=())
        return self.add("identity_kernel", (4, 2, 3, 3), of=())

    def fused(self) -> int:
        weight = self.add("weight", "w2", (4, 4, 1, 1), "float32", of=())
        return self.add("conv", (1, 1), (0, 0, 0, 0), self.one(ACTIVATIONS), of=[*self.any(), weight])

    def batch_norm(self) -> int:
        vector = self.add("weight", "w7", (4,), "float32", of=())
        return self.add("batch_norm", 1e-3, of=[*self.any(), *[vector] * 3, self.add("fill", 2, (4,), of=())])

    def layer_norm(self) -> int:
        (x,) = self.any()
        fits = self.terms_like(lambda shape: shape == self.terms.shape(x)[-1:])
        return self.add("layer_norm", 0.25, of=[x, self.one(fits), self.one(fits)]) if fits else x

    def softmax(self) -> int:
        (x,) = self.any()
        return self.add("softmax", self.axis(x), of=[x])


Maker = Callable[[Draw], int]
EXACT: tuple[Maker, ...] = (
    lambda d: d.add("matmul", d.one(PLAIN), of=d.any(2)),
    lambda d: d.add(d.one(("add", "mul")), of=d.any(2)),
    lambda d: d.add("relu", of=d.any()),
    lambda d: d.add("enlarge", (3, 5), of=d.any()),
    lambda d: d.add("merge_groups", d.one((2, 4)), 2, of=d.any()),
    lambda d: d.pool_of("max"),
    *(Draw.conv, Draw.conv, Draw.concat, Draw.split, Draw.transpose, Draw.reshape, Draw.constant, Draw.gather),
    Draw.pad,
)
INEXACT: tuple[Maker, ...] = (
    lambda d: d.add(d.one(("tanh", "sigmoid")), of=d.any()),
    lambda d: d.pool_of("avg"),
    *(Draw.fused, Draw.batch_norm, Draw.layer_norm, Draw.softmax),
)


def random_program(rng: np.random.Generator, size: int, exact: bool = True) -> Program:
    """About `size` ops on an image, a matrix and weights; exact: only what is exact on integers."""
    terms = Terms()
    inputs = (leaf(terms, "x", 2, 4, 6, 6), leaf(terms, "m", 4, 6))
    pool = [*inputs, *(leaf(terms, f"w{i}", *shape, kind="weight") for i, shape in enumerate(WEIGHTS))]
    draw, makers, made = Draw(terms, pool, rng), EXACT if exact else EXACT + INEXACT, list[int]()
    for _ in range(20 * size):
        try:
            new = draw.one(makers)(draw)
        except ShapeError:
            continue
        if max(terms.shape(new), default=1) <= 64:
            pool.append(new)
            made.append(new)
        if len(made) >= size:
            break
    used = {i for term in made for i in terms.inputs[term]}
    outputs = tuple(dict.fromkeys(term for term in made if term not in used))
    weights = {f"w{i}": rng.integers(-3, 4, shape).astype(np.float32) for i, shape in enumerate(WEIGHTS)}
    weights["indices"] = np.zeros(3, np.int64)  # there whatever is gathered from
    return Program(terms, outputs, tuple(f"y{i}" for i in range(len(outputs))), inputs, weights)
