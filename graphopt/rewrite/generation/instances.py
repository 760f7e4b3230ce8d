"""Concrete cases of a rule: shapes and parameters for which its sources exist and its conditions hold.

A draw (sampling.py) leaves equations between sizes, which are solved in small positive integers. What they cannot say
is checked in the end by the compiled rule itself, so whatever comes out is a true match.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from graphopt.rewrite.generation.sampling import LinearForm, Misfit, Sampler, solve
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation, Shape, ShapeError
from graphopt.rewrite.rules.compiling import bound_names, builder, matcher, names_of, test_of
from graphopt.rewrite.rules.rule import Call, Expression, Literal, Rule

LARGEST = 3000  # elements of a tensor
FRUITLESS = 500  # tries


@dataclass(frozen=True)
class Instance:
    """Sources and targets of a rule over leaves of known shapes, and what the names stand for.

    misfit: why the targets cannot stand for the sources, of which the rule's conditions should have warned; or empty.
    """

    terms: Terms
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    misfit: str
    values: tuple[Any, ...]  # of bound_names(rule)
    shapes: dict[str, Shape]
    params: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{name} = {value}" for name, value in (self.shapes | self.params).items())


def instances(rule: Rule, rng: np.random.Generator, tries: int, granted: bool = False) -> Iterator[Instance]:
    """Cases that the rule admits, different ones, as many as so many tries give; none after many tries without any.

    granted: only those in which both sides exist, whether or not their types agree, and sums and products are of
    tensors of one shape, as rules of other systems take for granted.
    """
    seen = set()
    for tried in range(tries):
        found = _instance(rule, rng, broadcasting=not granted, both=granted)
        if found is not None and str(found) not in seen and (found.targets or not granted):
            seen.add(str(found))
            yield found
        if tried > FRUITLESS and not seen:
            return


def _instance(rule: Rule, rng: np.random.Generator, *, broadcasting: bool, both: bool) -> Instance | None:
    """One draw, in which both sides exist where that is wanted."""
    sampler = Sampler(rule, rng, broadcasting=broadcasting)
    try:
        forms = [sampler.visit(source, None) for source in rule.sources]
        if both:  # equations that the target exists; were its shape made the source's, a wrong stride would only be met
            for form, target in zip(forms, rule.targets):  # where it makes no difference
                sampler.visit(target, len(form))
        sampler.use_conditions()
    except Misfit:
        return None
    sizes = solve(sampler.equations, sampler.unknowns, rng)
    if sizes is None:
        return None
    shapes = {name: tuple(form.value(sizes) for form in forms) for name, forms in sampler.shapes.items()}
    if any(prod(shape) > LARGEST for shape in shapes.values()):
        return None
    return built(rule, shapes, {name: _resolved(value, sizes) for name, value in sampler.params.items()})


def built(rule: Rule, shapes: dict[str, Shape], params: dict[str, Any]) -> Instance | None:
    """The case of a rule for given shapes of `?x` and values of `$s`; None where the rule does not apply."""
    terms = Terms()
    calls = [condition for condition in rule.conditions if isinstance(condition, Call)]
    static = {str(call.arguments[0]) for call in calls if call.function == "static"}
    full = {str(call.arguments[0]): call.arguments[1] for call in calls if call.function == "filled"}
    leaves = {name: terms.add(_leaf(name, shape, name in static, full.get(name))) for name, shape in shapes.items()}
    bound = leaves | params
    sources_only = Rule(rule.name, rule.sources, rule.sources)
    names = bound_names(rule)
    try:
        sources = builder(sources_only)(terms)(*[bound.get(name) for name in names])
        values = [bound[name] for name in names]
        if not _matches(rule, terms, sources, bound) or not test_of(names, rule.conditions, terms)(*values):
            return None
    except (ShapeError, KeyError, IndexError, ValueError, TypeError):
        return None
    targets, misfit = _targets(rule, terms, sources, values)
    if any(prod(result.shape) > LARGEST for types in terms.types for result in types):
        return None
    return Instance(terms, sources, targets, misfit, tuple(values), shapes, params)


def _leaf(name: str, shape: Shape, static: bool, full: Expression | None) -> Operation:
    """What stands for a `?x` of that shape."""
    if isinstance(full, Literal):
        return Operation("fill", (full.value, shape))
    return Operation("weight" if static else "input", (name, shape, "float32"))


def _targets(rule: Rule, terms: Terms, sources: tuple[int, ...], values: list[Any]) -> tuple[tuple[int, ...], str]:
    """The targets, and why they do not fit."""
    try:
        targets = builder(rule)(terms)(*values)
    except ShapeError as error:
        return (), str(error)
    except (IndexError, ValueError, TypeError) as error:  # a function of a parameter that is no number, or too short
        return (), f"its targets cannot be computed ({type(error).__name__})"
    for source, target in zip(sources, targets):
        old, new = terms.type_of(source), terms.type_of(target)
        if old != new:
            return targets, f"{new.dtype} {new.shape} instead of {old.dtype} {old.shape}"
    return targets, ""


def _matches(rule: Rule, terms: Terms, sources: Sequence[int], bound: dict[str, Any]) -> bool:
    for index, (source, root) in enumerate(zip(rule.sources, sources)):
        values = matcher(rule, index)(terms)(root)
        if values is None or values != tuple(bound[name] for name in names_of(source)):
            return False
    return True


def _resolved(value: Any, sizes: dict[int, int]) -> Any:
    if isinstance(value, LinearForm):
        return value.value(sizes)
    return tuple(_resolved(v, sizes) for v in value) if isinstance(value, tuple | list) else value
