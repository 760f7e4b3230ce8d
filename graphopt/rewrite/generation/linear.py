"""Sizes that are not known yet: linear forms over unknown positive integers, and small random solutions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd

import numpy as np

SIZES = (1, 2, 2, 3, 3, 4, 5)  # what free sizes are drawn from


@dataclass(frozen=True, slots=True)
class Form:
    """constant + sum of coefficient x unknown."""

    constant: int = 0
    coefficients: Mapping[int, int] = field(default_factory=dict)

    def __add__(self, other: "Form | int") -> "Form":
        if isinstance(other, int):
            return Form(self.constant + other, self.coefficients)
        merged = dict(self.coefficients)
        for unknown, coefficient in other.coefficients.items():
            merged[unknown] = merged.get(unknown, 0) + coefficient
        return Form(self.constant + other.constant, {u: c for u, c in merged.items() if c})

    def __mul__(self, factor: int) -> "Form":
        return Form(self.constant * factor, {u: c * factor for u, c in self.coefficients.items()} if factor else {})

    def __sub__(self, other: "Form | int") -> "Form":
        return self + other * -1

    def without(self, unknown: int, instead: "Form") -> "Form":
        """The form with a form in place of an unknown."""
        factor = self.coefficients.get(unknown, 0)
        if not factor:
            return self
        rest = Form(self.constant, {u: c for u, c in self.coefficients.items() if u != unknown})
        return rest + instead * factor

    def reduced(self) -> "Form":
        """A form that is zero for the same values: divided by what divides it."""
        divisor = gcd(self.constant, *self.coefficients.values())
        return Form(self.constant // divisor, {u: c // divisor for u, c in self.coefficients.items()})

    def value(self, values: Mapping[int, int]) -> int:
        return self.constant + sum(c * values[u] for u, c in self.coefficients.items())


def solve(equations: Sequence[Form], unknowns: int, rng: np.random.Generator) -> dict[int, int] | None:
    """Values >= 1 of unknowns 0 .. unknowns-1 that make all forms zero; None where none was found."""
    images = _eliminated(list(equations))
    if images is None:
        return None
    free = [u for u in range(unknowns) if u not in images]
    for _ in range(8):
        values = dict(zip(free, (int(s) for s in rng.choice(SIZES, len(free)))))
        for unknown, image in reversed(images.items()):
            values[unknown] = image.value(values)
        if all(value >= 1 for value in values.values()):
            return values
    return None


def _eliminated(equations: list[Form]) -> dict[int, Form] | None:
    """Unknowns as forms of those that come later or stay free; None where the equations contradict each other."""
    images: dict[int, Form] = {}
    while equations:
        equation = equations.pop()
        if not equation.coefficients:
            if equation.constant:
                return None
            continue
        equation = equation.reduced()
        pivot = _pivot(equation)
        if pivot is None:
            return None
        rest = Form(equation.constant, {u: c for u, c in equation.coefficients.items() if u != pivot})
        images[pivot] = rest * -equation.coefficients[pivot]
        equations = [other.without(pivot, images[pivot]) for other in equations]
    return images


def _pivot(equation: Form) -> int | None:
    """An unknown with a coefficient of 1 or -1; one that the others add up to where there is one."""
    units = [u for u, c in equation.coefficients.items() if abs(c) == 1]
    for unknown in units:
        sign = equation.coefficients[unknown]
        if all(c * sign < 0 for u, c in equation.coefficients.items() if u != unknown):
            return unknown
    return units[0] if units else None
