"""Where loops read: each access is known by the places that it touches at a few chosen points of its loops.

Two accesses that touch the same places at all of these are taken to be the same. So expressions are never simplified:
an index is composed with another by evaluating it at the places that the other found, and remembered.

Shape legend: D dimensions of a loop, S = (1 + D) (1 + DRAWN) points: zero and drawn ones, and a step from each along
each dimension.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from graphopt.inductor.loop_program import Index

DRAWN = 4
STRAY = 1 << 40  # elements: a step that is not the same everywhere
Places = NDArray[np.int64]
Sizes = tuple[int, ...]


@lru_cache(maxsize=4096)
def points(sizes: Sizes) -> Places:
    """[D, S] of loops over `sizes`, all larger than 1."""
    count = len(sizes)
    drawn = np.random.default_rng(count).random((count, DRAWN)) * (np.array(sizes, np.float64)[:, None] - 1)
    starts = np.concatenate([np.zeros((count, 1), np.int64), drawn.astype(np.int64)], 1)
    steps = np.concatenate([np.zeros((count, 1), np.int64), np.eye(count, dtype=np.int64)], 1)
    every: Places = starts[:, :, None] + steps[:, None, :]
    return every.reshape(count, (1 + count) * (1 + DRAWN))


def place(index: Index, at: Places, found: Places) -> Places:
    """[S] where an index points. at: [D, S] values of the loop's variables; found: [S] what stands for indices that are
    themselves read from memory."""
    kind, *parts = index
    if kind == "number":
        return np.full(at.shape[1], parts[0], np.int64)
    if kind == "loop":
        return np.asarray(at[parts[0]])
    if kind == "found":
        return np.asarray((found * 40503 + parts[0] * 9973) % (1 << 20))
    values = [place(part, at, found) for part in parts]
    if kind in ("add", "mul"):
        return np.asarray((np.add if kind == "add" else np.multiply).reduce(values))
    first, second = values
    return np.asarray(first // np.maximum(second, 1) if kind == "div" else first % np.maximum(second, 1))


def unflattened(flat: Places, sizes: Sizes, stride: Sizes) -> Places:
    """[D, S] the loop's variables at places [S] of the buffer that it writes."""
    out, left = np.zeros((len(sizes), flat.shape[-1]), np.int64), flat
    for d in sorted(range(len(sizes)), key=lambda d: -stride[d]):
        step = max(stride[d], 1)
        out[d] = left // step % sizes[d]
        left = left - out[d] * step
    return out


def steps_of(touched: Places, dimensions: int) -> tuple[int, ...]:
    """[D] steps of an access along each dimension, STRAY where they differ."""
    groups = touched.reshape(-1, 1 + dimensions)
    steps = groups[:, 1:] - groups[:, :1]
    return tuple(np.where((steps == steps[:1]).all(0), steps[0], STRAY).tolist())


def is_linear(touched: Places, sizes: Sizes) -> bool:
    steps = touched[1 : 1 + len(sizes)] - touched[0]
    return bool((touched[0] + steps @ points(sizes) == touched).all())
