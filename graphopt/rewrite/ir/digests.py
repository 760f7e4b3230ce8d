"""Digests of terms that are linear in the digests of their operands.

The digest of a term is a vector (u, v) modulo a prime: D(op(a, b)) = k + A D(a) + B D(b), with a random vector k per
operation and a random matrix per operation and place. Matrices do not commute, so the way to a subterm counts, not only
the operations on it. Equal terms have equal digests; different ones coincide with a probability of about size / 2^61.

Since it is linear, putting M for a subterm r changes the digest of a whole program by C(r) (D(M) - D(r)). C(r), the sum
over all ways from the outputs to r of the products on the way, is found in one pass for all r.
"""

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import Any

from graphopt.rewrite.ir.terms import Program, Terms

PRIME = (1 << 61) - 1
Vector = tuple[int, int]
Matrix = tuple[int, int, int, int]  # by rows


class Digests:
    """Digests of the terms of a store. Draws are fixed, so digests depend on the order of operations in it alone."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._of: list[Vector] = []
        self._constants: list[Vector] = []  # per kind of operation
        self._places: list[list[Matrix]] = []  # per kind, per input
        self._outputs: list[Vector] = []  # rows, per output
        self._random, self._rows = Random(0), Random(1)

    def of(self, term: int) -> Vector:
        known, kinds, inputs = self._of, self.terms.kind, self.terms.inputs
        while len(known) <= term:
            kind, below = kinds[len(known)], inputs[len(known)]
            u, v = self._constant(kind)
            for i, (a, b, c, d) in zip(below, self.places(kind, len(below))):
                x, y = known[i]
                u += a * x + b * y
                v += c * x + d * y
            known.append((u % PRIME, v % PRIME))
        return known[term]

    def _constant(self, kind: int) -> Vector:
        while len(self._constants) <= kind:
            self._constants.append((self._random.randrange(PRIME), self._random.randrange(PRIME)))
            self._places.append([])
        return self._constants[kind]

    def places(self, kind: int, count: int) -> list[Matrix]:
        """The matrices of at least so many inputs of a kind of operation."""
        if kind >= len(self._places):
            self._constant(kind)
        places = self._places[kind]
        while len(places) < count:
            a, b, c, d = (self._random.randrange(PRIME) for _ in range(4))
            places.append((a, b, c, d))
        return places

    def rows(self, count: int) -> list[Vector]:
        """The row that each output's digest is multiplied by."""
        while len(self._outputs) < count:
            self._outputs.append((self._rows.randrange(PRIME), self._rows.randrange(PRIME)))
        return self._outputs

    def program(self, outputs: Sequence[int]) -> int:
        """The digest of outputs in their order."""
        pairs = zip(self.rows(len(outputs)), map(self.of, outputs))
        return sum(a * x + b * y for (a, b), (x, y) in pairs) % PRIME

    def weights(self, outputs: Sequence[int], live: Sequence[int]) -> dict[int, Vector]:
        """C(r) of every live term: the factor of a change of its digest in the digest of the program."""
        weights: dict[int, Vector] = dict.fromkeys(live, (0, 0))
        for output, (a, b) in zip(outputs, self.rows(len(outputs))):
            u, v = weights[output]
            weights[output] = (u + a, v + b)
        kinds, inputs = self.terms.kind, self.terms.inputs
        for term in reversed(live):
            below = inputs[term]
            if not below:
                continue
            u, v = weights[term]
            u, v = u % PRIME, v % PRIME
            weights[term] = (u, v)
            for i, (a, b, c, d) in zip(below, self.places(kinds[term], len(below))):
                x, y = weights[i]
                weights[i] = (x + u * a + v * c, y + u * b + v * d)
        return weights


def portable(program: Program) -> str:
    """Equal for equal programs, in any store, here and elsewhere."""
    terms, of = program.terms, dict[int, str]()
    for term in program.live():
        operation = terms.operation[term]
        of[term] = _short([operation.name, operation.params, *(of[i] for i in terms.inputs[term])])
    return _short([of[output] for output in program.outputs])


def _short(value: list[Any]) -> str:
    return sha256(repr(value).encode()).hexdigest()[:12]
