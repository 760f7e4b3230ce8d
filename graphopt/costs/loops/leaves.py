"""A stored value as Inductor's scheduler first sees it: one loop, its dimensions put in order and merged where all
accesses allow it, and what it reads and writes (torch 2.13, `simplify_and_reorder`, `pick_loop_order`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from math import prod

from graphopt.costs.loops.loop_bodies import Access, Bodies, Body
from graphopt.costs.loops.places import Sizes

Pattern = tuple[tuple[int, int], ...] | int
"""How an access runs through a buffer: (stride, size) of each dimension, merged; or a number that stands for itself."""
Touch = tuple[int, Pattern]  # a buffer, and how


@dataclass(frozen=True, slots=True)
class Leaf:
    """outer, inner: sizes of the loops over elements and over what is summed. shape: before they were merged. bytes: of
    the elements touched in each way. levels: of each merged loop the innermost dimension. steps: of what is written,
    then of each read, along each dimension; STRAY where it is uneven.
    """

    loop: int
    body: Body
    outer: Sizes
    inner: Sizes
    shape: Sizes
    reads: frozenset[Touch]
    write: Touch
    bytes: dict[Touch, int]
    levels: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


def leaf_of(bodies: Bodies, loop: int, body: Body) -> Leaf:
    of, space, written = bodies.loops[loop], bodies.space(loop), bodies.written(loop)
    every = [written, *sorted(body.reads)]
    steps = [bodies.steps(access.places, space)[0] for access in every]
    first = len(of.shape)
    outer, out_levels = _merged(_order(range(first), steps, space), steps, space)
    inner, in_levels = _merged(_order(range(first, len(space)), steps, space), steps, space)
    touched = [(access.buffer, _pattern(bodies, access, space)) for access in every]
    sizes = {t: _elements(t[1], prod(space)) * bodies.buffer(t[0]).item for t in touched}
    return Leaf(loop, body, outer, inner, of.shape, frozenset(touched[1:]), touched[0], sizes,
                out_levels + in_levels, tuple(steps))  # fmt: skip


def _order(dimensions: Sequence[int], steps: list[tuple[int, ...]], space: Sizes) -> list[int]:
    """Outermost first: inside comes what most accesses step through in small strides."""

    def inside(a: int, b: int) -> int:
        a_in = sum(s[b] == 0 or abs(s[a]) < abs(s[b]) for s in steps)
        b_in = sum(s[a] == 0 or abs(s[b]) < abs(s[a]) for s in steps)
        return 1 if a_in > b_in else -1 if b_in > a_in else a - b

    return sorted(dimensions, key=cmp_to_key(inside))


def _merged(order: list[int], steps: list[tuple[int, ...]], space: Sizes) -> tuple[Sizes, tuple[int, ...]]:
    """Sizes of loops, neighbours of which are one where each access steps on evenly, and the innermost dimension of
    each."""
    sizes: list[int] = []
    levels: list[int] = []
    for d in order:
        if sizes and all(s[levels[-1]] == s[d] * space[d] for s in steps):
            sizes[-1], levels[-1] = sizes[-1] * space[d], d
        else:
            sizes.append(space[d])
            levels.append(d)
    return tuple(sizes), tuple(levels)


def _pattern(bodies: Bodies, access: Access, space: Sizes) -> Pattern:
    steps, linear = bodies.steps(access.places, space)
    if not linear:
        return access.places
    pairs: list[tuple[int, int]] = []
    for stride, size in zip(steps, space):
        if pairs and pairs[-1][0] == stride * size:
            pairs[-1] = (stride, pairs[-1][1] * size)
        else:
            pairs.append((stride, size))
    while pairs and pairs[-1][0] == 0:
        pairs.pop()
    return tuple(pairs)


def _elements(pattern: Pattern, most: int) -> int:
    return most if isinstance(pattern, int) else prod(size for stride, size in pattern if stride)
