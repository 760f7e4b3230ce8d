"""What a rewritten program is made of, and the steps that led to it: checked without running anything.

A step is `[rule, [places of its roots]]`. Places count the terms of the program that the step changes, in the order in
which they are met from its outputs, what a term reads before the term. So steps mean the same in every store of terms.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

from graphopt.core.errors import UserError
from graphopt.rewrite.ir.terms import Outputs, Program, Terms, reachable, substitute
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.rule import RuleSet

MOST_STEPS = 10_000
MOST_NUMBERS = 16  # times as many as in all tensors of the original; merged kernels have about six times as many
Step = tuple[str, list[int]]


def check_made_of(original: Program, rewritten: Program, growth: float) -> None:
    """Raises UserError when a program reads inputs, weights or opaque operations that the original does not have, is of
    another form, or is far larger."""
    own = {original.terms.operation[term] for term in (*original.live(), *original.inputs)}
    for term in rewritten.live():
        operation = rewritten.terms.operation[term]
        if operation.name in ("input", "weight", "opaque") and operation not in own:
            raise UserError(f"it has the {operation.name} {str(operation.params[0])[:60]!r} as the original has not")
    if (rewritten.inputs, rewritten.output_names) != (original.inputs, original.output_names):
        raise UserError("its inputs and outputs are not the original's, in their order")
    if [rewritten.terms.types[o] for o in rewritten.outputs] != [original.terms.types[o] for o in original.outputs]:
        raise UserError("its outputs differ in number, shape or type from the original's")
    if rewritten.num_ops() > growth * original.num_ops():
        raise UserError(f"it has {rewritten.num_ops():,} ops, more than {growth:g} times the original's")
    if _numbers(rewritten) > MOST_NUMBERS * _numbers(original):
        raise UserError(f"its tensors have more than {MOST_NUMBERS} times as many numbers as the original's")


def _numbers(program: Program) -> int:
    return sum(prod(made.shape) for term in program.live() for made in program.terms.types[term])


def places(terms: Terms, outputs: Outputs) -> list[int]:
    """The terms of a program in an order that does not depend on the store."""
    order, seen = list[int](), set[int]()
    stack = [(output, False) for output in reversed(outputs)]
    while stack:
        term, done = stack.pop()
        if done:
            order.append(term)
        elif term not in seen:
            seen.add(term)
            stack.append((term, True))
            stack += [(i, False) for i in reversed(terms.inputs[term]) if i not in seen]
    return order


def step_of(terms: Terms, outputs: Outputs, match: Match) -> Step:
    """A rewrite of a program as files have it."""
    place = {term: i for i, term in enumerate(places(terms, outputs))}
    return match.rule.name, [place[root] for root in match.roots]


def check_steps(original: Program, rewritten: Program, rules: RuleSet, steps: Any) -> None:
    """Raises UserError unless the steps lead from one program to the other, which share their terms."""
    if retraced(original, rules, steps) != rewritten.outputs:
        raise UserError("its steps lead to another program")


def retraced(original: Program, rules: RuleSet, steps: Any) -> Outputs:
    """The outputs that the steps of a file lead to. Raises UserError for what is no step by these rules."""
    if not isinstance(steps, list) or len(steps) > MOST_STEPS:
        raise UserError(f"its steps are no list of at most {MOST_STEPS:,}")
    terms, outputs = original.terms, original.outputs
    matchers = {rule.name: Matcher([rule], terms) for rule in rules if rule.name in _named(steps)}
    for number, step in enumerate(steps):
        name, roots = _read(step, places(terms, outputs), number)
        if name not in matchers:
            raise UserError(f"its step {number} is by the rule {name[:60]!r}, which the task does not have")
        live = reachable(terms, outputs)
        found = next((match for match in matchers[name].matches(live) if match.roots == roots), None)
        made = None if found is None else matchers[name].apply(found)
        if made is None:
            raise UserError(f"its step {number}: the rule {name} changes nothing there")
        outputs = substitute(terms, outputs, live, dict(zip(roots, made, strict=True)))
    return outputs


def _named(steps: list[Any]) -> set[str]:
    return {step[0] for step in steps if isinstance(step, list) and step and isinstance(step[0], str)}


def _read(step: Any, order: Sequence[int], number: int) -> tuple[str, tuple[int, ...]]:
    """(rule, roots) of a step. Raises UserError."""
    rule, roots = step if isinstance(step, list) and len(step) == 2 else ("", ())
    fine = isinstance(rule, str) and isinstance(roots, list)
    if not fine or not all(type(place) is int and 0 <= place < len(order) for place in roots):
        raise UserError(f"its step {number} is no rule with the places of terms")
    return rule, tuple(order[place] for place in roots)
