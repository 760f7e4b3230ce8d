"""The functions that rules may call, in conditions and to compute parameters of targets.

Each takes the store of terms and the arguments that the rule's text shows; a `?x` arrives as the id of the term. They
never raise for tensors of an unexpected rank, so conditions may come in any order.

| function | is |
|---|---|
| shape(?x), rank(?x), dim(?x, i) | of the tensor; dim is 0 beyond the rank |
| static(?x) | whether it depends on weights alone |
| sizes(axis, ?x, ?y, ...) | their sizes along the axis, as split takes them |
| without(axis, ?x), without_last(?x) | the shape without that axis: equal ones can be concatenated |
| axis_of(?x, -1), length(a) | an axis counted from the end, counted from 0; the length of a list |
| same_shape(?x, ?y), differ(?x, ?y) | of two tensors; whether they are two terms |
| kernel(?w), groups(?x, ?w) | height and width of a conv kernel; number of groups of a conv |
| larger(a, b), even(a) | elementwise maximum of two lists; whether all elements of a list are even |
| inverse(p), compose(p, q), place(p, axis) | permutations: undone; p, then q; where an axis comes from |
"""

from collections.abc import Callable
from typing import Any

from graphopt.rewrite.terms import Terms
from graphopt.rewrite.vocabulary import Shape


def shape(terms: Terms, x: int) -> Shape:
    return terms.types[x][0].shape


def rank(terms: Terms, x: int) -> int:
    return len(terms.types[x][0].shape)


def dim(terms: Terms, x: int, axis: int) -> int:
    of_x = terms.types[x][0].shape
    return of_x[axis] if -len(of_x) <= axis < len(of_x) else 0


def static(terms: Terms, x: int) -> bool:
    return terms.static[x]


def sizes(terms: Terms, axis: int, *xs: int) -> Shape:
    return tuple(dim(terms, x, axis) for x in xs)


def without(terms: Terms, axis: int, x: int) -> Shape:
    of_x = terms.types[x][0].shape
    return (len(of_x), *of_x[:axis], *of_x[axis + 1 :])


def without_last(terms: Terms, x: int) -> Shape:
    of_x = terms.types[x][0].shape
    return (len(of_x), *of_x[:-1])


def axis_of(terms: Terms, x: int, axis: int) -> int:
    return len(terms.types[x][0].shape) + axis


def length(terms: Terms, a: Shape) -> int:
    return len(a)


def same_shape(terms: Terms, x: int, y: int) -> bool:
    return terms.types[x][0].shape == terms.types[y][0].shape


def differ(terms: Terms, x: int, y: int) -> bool:
    return x != y


def kernel(terms: Terms, w: int) -> Shape:
    return terms.types[w][0].shape[2:4]


def groups(terms: Terms, x: int, w: int) -> int:
    per_group = dim(terms, w, 1)
    return dim(terms, x, 1) // per_group if per_group else 0


def larger(terms: Terms, a: Shape, b: Shape) -> Shape:
    return tuple(max(pair) for pair in zip(a, b))


def even(terms: Terms, a: Shape) -> bool:
    return all(size % 2 == 0 for size in a)


def inverse(terms: Terms, p: Shape) -> Shape:
    return tuple(p.index(axis) for axis in range(len(p)))


def compose(terms: Terms, p: Shape, q: Shape) -> Shape:
    return tuple(p[axis] for axis in q)


def place(terms: Terms, p: Shape, axis: int) -> int:
    return p[axis] if axis < len(p) else -1


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (shape, rank, dim, static, sizes, without, without_last, axis_of, length,
                     same_shape, differ, kernel, groups, larger, even, inverse, compose, place)
}  # fmt: skip
