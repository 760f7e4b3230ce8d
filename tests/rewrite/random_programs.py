"""Random programs for property tests, and terms by hand."""

from collections.abc import Callable, Sequence

import numpy as np

from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import ACTIVATIONS, Operation, ShapeError

# --- Small programs for tests of rewriting.


def leaf(terms: Terms, name: str, *shape: int, kind: str = "input") -> int:
    return terms.add(Operation(kind, (name, shape, "float32")))


def op(terms: Terms, name: str, *params: object, of: Sequence[int]) -> int:
    return terms.add(Operation(name, params), of)


# --- Small random programs over the vocabulary, for property tests.

Draw = np.random.Generator


def random_program(rng: Draw, size: int, exact: bool = True) -> Program:
    """About `size` ops on an image, a matrix and weights; exact: only what is exact on integers."""
    terms = Terms()
    inputs = (_leaf(terms, "input", "x", (2, 4, 6, 6)), _leaf(terms, "input", "m", (4, 6)))
    pool = [*inputs, *(_leaf(terms, "weight", f"w{i}", s) for i, s in enumerate(_WEIGHTS))]
    makers = _EXACT if exact else _EXACT + _INEXACT
    made: list[int] = []
    for _ in range(20 * size):
        try:
            new = makers[rng.integers(len(makers))](terms, pool, rng)
        except ShapeError:
            continue
        if max(terms.shape(new), default=1) <= 64:
            pool.append(new)
            made.append(new)
        if len(made) >= size:
            break
    used = {i for t in made for i in terms.inputs[t]}
    outputs = tuple(dict.fromkeys(t for t in made if t not in used))
    rng_weights = {f"w{i}": rng.integers(-3, 4, s).astype(np.float32) for i, s in enumerate(_WEIGHTS)}
    rng_weights["indices"] = np.zeros(3, np.int64)  # there whatever is gathered from
    return Program(terms, outputs, tuple(f"y{i}" for i in range(len(outputs))), inputs, rng_weights)


_WEIGHTS = ((4, 4, 3, 3), (8, 2, 3, 1), (4, 4, 1, 1), (4, 1, 3, 3), (6, 6), (6, 4), (8,), (4,), (4, 1, 1))


def _leaf(terms: Terms, name: str, label: str, shape: tuple[int, ...]) -> int:
    return terms.add(Operation(name, (label, shape, "float32")))


def _pick(pool: list[int], rng: Draw) -> int:
    return pool[int(rng.integers(len(pool)))]


def _pair(rng: Draw) -> tuple[int, int]:
    return int(rng.integers(1, 3)), int(rng.integers(1, 3))


def _pads(rng: Draw) -> tuple[int, ...]:
    return tuple(int(p) for p in rng.integers(0, 2, 4))


def _matmul(terms: Terms, pool: list[int], rng: Draw) -> int:
    act = ("none", "relu")[int(rng.integers(2))]
    return terms.add(Operation("matmul", (act,)), (_pick(pool, rng), _pick(pool, rng)))


def _conv(terms: Terms, pool: list[int], rng: Draw) -> int:
    operation = Operation("conv", (_pair(rng), _pads(rng), ("none", "relu")[int(rng.integers(2))]))
    inputs = [_pick(pool, rng), _pick(pool, rng)]
    if rng.random() < 0.5:
        fits = [t for t in pool if terms.shape(t) == terms.shape(inputs[1])[:1]]
        inputs += [_pick(fits, rng)] if fits else []
    return terms.add(operation, tuple(inputs))


def _elementwise(terms: Terms, pool: list[int], rng: Draw) -> int:
    return terms.add(Operation(("add", "mul")[int(rng.integers(2))]), (_pick(pool, rng), _pick(pool, rng)))


def _relu(terms: Terms, pool: list[int], rng: Draw) -> int:
    return terms.add(Operation("relu"), (_pick(pool, rng),))


def _concat(terms: Terms, pool: list[int], rng: Draw) -> int:
    first = _pick(pool, rng)
    alike = [t for t in pool if len(terms.shape(t)) == len(terms.shape(first))]
    return terms.add(
        Operation("concat", (int(rng.integers(len(terms.shape(first)) or 1)),)), (first, _pick(alike, rng))
    )


def _split(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    axis = int(rng.integers(max(len(terms.shape(x)), 1)))
    size = terms.shape(x)[axis]
    cut = int(rng.integers(0, size + 1))
    parts = terms.add(Operation("split", (axis, (cut, size - cut))), (x,))
    return terms.add(Operation("item", (int(rng.integers(2)),)), (parts,))


def _transpose(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    return terms.add(Operation("transpose", (tuple(int(i) for i in rng.permutation(len(terms.shape(x)))),)), (x,))


def _reshape(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    shape = terms.shape(x)
    new = (shape[0], int(np.prod(shape[1:]))) if rng.random() < 0.5 else (*shape[::-1], 1)[:4]
    return terms.add(Operation("reshape", (tuple(int(d) for d in new),)), (x,))


def _gather(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    axis = int(rng.integers(max(len(terms.shape(x)), 1)))
    indices = terms.add(Operation("weight", ("indices", (3,), "int64")))
    return terms.add(Operation("gather", (axis,)), (x, indices))


def _pad(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    before, after = (tuple(int(n) for n in rng.integers(0, 2, len(terms.shape(x)))) for _ in range(2))
    return terms.add(Operation("pad", (before, after)), (x,))


def _pool_max(terms: Terms, pool: list[int], rng: Draw) -> int:
    kernel = tuple(int(k) for k in rng.integers(2, 4, 2))
    return terms.add(Operation("pool_max", (kernel, _pair(rng), _pads(rng))), (_pick(pool, rng),))


def _pool_avg(terms: Terms, pool: list[int], rng: Draw) -> int:
    kernel = tuple(int(k) for k in rng.integers(2, 4, 2))
    return terms.add(Operation("pool_avg", (kernel, _pair(rng), _pads(rng))), (_pick(pool, rng),))


def _kernel(terms: Terms, pool: list[int], rng: Draw) -> int:
    w = _pick(pool, rng)
    if rng.random() < 0.5:
        return terms.add(Operation("enlarge", ((3, 5),)), (w,))
    return terms.add(Operation("merge_groups", (int(rng.choice([2, 4])), 2)), (w,))


def _normalised(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    if rng.random() < 0.5:
        return terms.add(Operation("softmax", (int(rng.integers(max(len(terms.shape(x)), 1))),)), (x,))
    fits = [t for t in pool if terms.shape(t) == terms.shape(x)[-1:]]
    return terms.add(Operation("layer_norm", (0.25,)), (x, _pick(fits, rng), _pick(fits, rng))) if fits else x


def _constant(terms: Terms, pool: list[int], rng: Draw) -> int:
    if rng.random() < 0.5:
        return terms.add(Operation("fill", (int(rng.integers(-2, 3)), terms.shape(_pick(pool, rng)))))
    return terms.add(Operation("identity_kernel", ((4, 2, 3, 3),)))


def _smooth(terms: Terms, pool: list[int], rng: Draw) -> int:
    return terms.add(Operation(str(rng.choice(["tanh", "sigmoid"]))), (_pick(pool, rng),))


def _fused(terms: Terms, pool: list[int], rng: Draw) -> int:
    x = _pick(pool, rng)
    weight = terms.add(Operation("weight", ("w2", (4, 4, 1, 1), "float32")))
    return terms.add(Operation("conv", ((1, 1), (0, 0, 0, 0), ACTIVATIONS[int(rng.integers(4))])), (x, weight))


def _batch_norm(terms: Terms, pool: list[int], rng: Draw) -> int:
    vector = terms.add(Operation("weight", ("w7", (4,), "float32")))
    positive = terms.add(Operation("fill", (2, (4,))))
    return terms.add(Operation("batch_norm", (1e-3,)), (_pick(pool, rng), vector, vector, vector, positive))


Maker = Callable[[Terms, list[int], Draw], int]
_EXACT: tuple[Maker, ...] = (_matmul, _conv, _conv, _elementwise, _relu, _concat, _split, _transpose, _reshape,
                             _pool_max, _kernel, _constant, _gather, _pad)  # fmt: skip
_INEXACT: tuple[Maker, ...] = (_pool_avg, _smooth, _fused, _batch_norm, _normalised)
