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
| larger(a, b), divides(n, m) | elementwise maximum of two lists; whether n divides m > 0 |
| kernel(?w), groups(?x, ?w) | height and width of a conv kernel; number of groups of a conv |
| per_group(?x, ?w) | output channels of each group of a conv |
| offsets(pads, ?w) | where a window lies around its position: convs with equal ones look at the same places |
| same_pads(?w) | the pads that keep the size of a tensor, for strides of 1; () where there are none |
| column(?v), row(?v) | the shapes [n, 1, 1, 1] and [1, n, 1, 1] of n elements |
| channelwise(?c, n) | whether ?c holds one factor for each of n channels of four-dimensional tensors |
| window(k, ?x) | the shape of kernels that look at each channel of ?x alone through a window k |
| flat_rows(?w) | the shape of a matrix with as many rows, all else in its columns |
| inverse(p), compose(p, q), place(p, axis) | permutations: undone; p, then q; where an axis comes from |
| keeps_order(p, ?x) | whether a permutation leaves the axes of more than one element in their order |
| at(a, i), with_at(a, i, n) | an item of a list, -1 beyond it; the list with another one there |
| plus(n, m), less(n, m) | sum and difference |
| added(a, b), largest(a) | elementwise sum of two lists; the largest item, 0 of none |
| refined(a, i, b), joined(a, i) | sizes with the i-th cut into those of b; with the i-th and the next as one |
| filled(?c, n) | whether every element is known to be n |
| fits(?c, ?x) | whether broadcasting ?c to ?x leaves the shape of ?x |
| straight(?x), swapped(?x) | the permutation that changes nothing; the one that swaps the last two axes |
"""

from collections.abc import Callable
from math import prod
from typing import Any, NewType

from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Shape

Term = NewType("Term", int)  # its id: the value of a `?x`


def shape(terms: Terms, x: Term) -> Shape:
    return terms.types[x][0].shape


def rank(terms: Terms, x: Term) -> int:
    return len(terms.types[x][0].shape)


def dim(terms: Terms, x: Term, axis: int) -> int:
    of_x = terms.types[x][0].shape
    return of_x[axis] if -len(of_x) <= axis < len(of_x) else 0


def static(terms: Terms, x: Term) -> bool:
    return terms.static[x]


def sizes(terms: Terms, axis: int, *xs: Term) -> Shape:
    return tuple(dim(terms, x, axis) for x in xs)


def without(terms: Terms, axis: int, x: Term) -> Shape:
    of_x = terms.types[x][0].shape
    return (len(of_x), *of_x[:axis], *of_x[axis + 1 :])


def without_last(terms: Terms, x: Term) -> Shape:
    of_x = terms.types[x][0].shape
    return (len(of_x), *of_x[:-1])


def axis_of(terms: Terms, x: Term, axis: int) -> int:
    return len(terms.types[x][0].shape) + axis


def length(terms: Terms, a: Shape) -> int:
    return len(a)


def same_shape(terms: Terms, x: Term, y: Term) -> bool:
    return terms.types[x][0].shape == terms.types[y][0].shape


def differ(terms: Terms, x: Term, y: Term) -> bool:
    return x != y


def kernel(terms: Terms, w: Term) -> Shape:
    return terms.types[w][0].shape[2:4]


def groups(terms: Terms, x: Term, w: Term) -> int:
    per_group = dim(terms, w, 1)
    return dim(terms, x, 1) // per_group if per_group else 0


def larger(terms: Terms, a: Shape, b: Shape) -> Shape:
    return tuple(max(pair) for pair in zip(a, b))


def divides(terms: Terms, n: int, m: int) -> bool:
    return m > 0 and m % n == 0


def per_group(terms: Terms, x: Term, w: Term) -> int:
    count = groups(terms, x, w)
    return dim(terms, w, 0) // count if count else 0


def offsets(terms: Terms, pads: Shape, w: Term) -> Shape:
    return tuple(2 * pad - side for pad, side in zip(pads, kernel(terms, w) * 2))


def same_pads(terms: Terms, w: Term) -> Shape:
    sides = kernel(terms, w)
    return tuple(side // 2 for side in sides * 2) if all(side % 2 for side in sides) else ()


def column(terms: Terms, v: Term) -> Shape:
    return (prod(shape(terms, v)), 1, 1, 1)


def row(terms: Terms, v: Term) -> Shape:
    return (1, prod(shape(terms, v)), 1, 1)


def channelwise(terms: Terms, c: Term, n: int) -> bool:
    return shape(terms, c) in ((n, 1, 1), (1, n, 1, 1))


def window(terms: Terms, k: Shape, x: Term) -> Shape:
    return (dim(terms, x, 1), 1, *k)


def flat_rows(terms: Terms, w: Term) -> Shape:
    return (dim(terms, w, 0), prod(shape(terms, w)[1:]))


def inverse(terms: Terms, p: Shape) -> Shape:
    return tuple(p.index(axis) for axis in range(len(p)))


def compose(terms: Terms, p: Shape, q: Shape) -> Shape:
    return tuple(p[axis] for axis in q)


def place(terms: Terms, p: Shape, axis: int) -> int:
    return p[axis] if axis < len(p) else -1


def keeps_order(terms: Terms, p: Shape, x: Term) -> bool:
    of_x = shape(terms, x)
    moved = [axis for axis in p if axis < len(of_x) and of_x[axis] > 1]
    return moved == sorted(moved)


def at(terms: Terms, a: Shape, i: int) -> int:
    return a[i] if -len(a) <= i < len(a) else -1


def with_at(terms: Terms, a: Shape, i: int, n: int) -> Shape:
    place = i % max(len(a), 1)
    return (*a[:place], n, *a[place + 1 :])


def plus(terms: Terms, n: int, m: int) -> int:
    return n + m


def less(terms: Terms, n: int, m: int) -> int:
    return n - m


def added(terms: Terms, a: Shape, b: Shape) -> Shape:
    return tuple(map(sum, zip(a, b)))


def largest(terms: Terms, a: Shape) -> int:
    return max(a, default=0)


def refined(terms: Terms, a: Shape, i: int, b: Shape) -> Shape:
    return (*a[:i], *b, *a[i + 1 :])


def joined(terms: Terms, a: Shape, i: int) -> Shape:
    return (*a[:i], sum(a[i : i + 2]), *a[i + 2 :])


def filled(terms: Terms, c: Term, n: int) -> bool:
    operation = terms.operation[c]
    return operation.name == "fill" and bool(operation.params[0] == n)


def fits(terms: Terms, c: Term, x: Term) -> bool:
    of_c, of_x = shape(terms, c), shape(terms, x)
    return len(of_c) <= len(of_x) and all(a in (1, b) for a, b in zip(of_c[::-1], of_x[::-1]))


def straight(terms: Terms, x: Term) -> Shape:
    return tuple(range(rank(terms, x)))


def swapped(terms: Terms, x: Term) -> Shape:
    axes = straight(terms, x)
    return (*axes[:-2], *axes[:-3:-1])


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        shape, rank, dim, static, sizes, without, without_last, axis_of, length, same_shape, differ, larger, divides,
        kernel, groups, per_group, offsets, same_pads, column, row, channelwise, window, flat_rows,
        inverse, compose, place, straight, swapped, keeps_order, at, with_at, plus, less, added, largest, refined,
        joined, filled, fits,
    )
}  # fmt: skip

# The names that compiled rules can use: none of Python's own functions but these.
NAMES: dict[str, Any] = {**FUNCTIONS, "__builtins__": {"len": len}}
