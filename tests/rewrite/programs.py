"""Small programs for tests of rewriting."""

from collections.abc import Sequence

from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation


def leaf(terms: Terms, name: str, *shape: int, kind: str = "input") -> int:
    return terms.add(Operation(kind, (name, shape, "float32")))


def op(terms: Terms, name: str, *params: object, of: Sequence[int]) -> int:
    return terms.add(Operation(name, params), of)
