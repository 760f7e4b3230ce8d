"""Matching: against a plain recursive matcher, and case by case for several outputs."""

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from programs import leaf, op

from graphopt.rewrite.ir.terms import Program, Terms, reachable, substitute
from graphopt.rewrite.rules.compiling import bound_names
from graphopt.rewrite.rules.expressions import Literal, Parameter, Variable
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.patterns import Pattern

RULES = """
    fuse: (relu (add ?x ?y)) => (add (relu ?x) (relu ?y))
    same: (add ?x (mul ?x ?y)) => (mul ?x ?y)
    turn: (transpose $p (transpose $p ?x)) => ?x
    flat: (add (relu ?x) (add ?x (relu ?y))) => (add ?x ?y)
    pair: (relu ?x), (mul ?x ?y) => (mul ?x ?y), (relu ?x)
    apart: (relu ?x), (relu ?y) => (relu ?y), (relu ?x)
"""


def recursive(terms: Terms, pattern: Pattern, term: int, binding: dict[str, Any]) -> bool:
    """The meaning of a pattern, without any compilation."""
    if isinstance(pattern, Variable):
        return binding.setdefault(str(pattern), term) == term
    operation, inputs = terms.operation[term], terms.inputs[term]
    if (operation.name, len(inputs)) != (pattern.operator, len(pattern.inputs)):
        return False
    for param, value in zip(pattern.params, operation.params):
        if isinstance(param, Literal) and param.value != value:
            return False
        if isinstance(param, Parameter) and binding.setdefault(str(param), value) != value:
            return False
    return all(recursive(terms, p, i, binding) for p, i in zip(pattern.inputs, inputs))


def random_terms(rng: np.random.Generator, size: int) -> Terms:
    terms = Terms()
    leaf(terms, "a", 2, 2), leaf(terms, "b", 2, 2)
    while len(terms) < size:
        x, y = (int(i) for i in rng.integers(len(terms), size=2))
        match rng.integers(4):
            case 0:
                op(terms, "add", of=(x, y))
            case 1:
                op(terms, "mul", of=(x, y))
            case 2:
                op(terms, "relu", of=(x,))
            case 3:
                op(terms, "transpose", (1, 0) if rng.random() < 0.7 else (0, 1), of=(x,))
    return terms


@pytest.mark.parametrize("seed", range(20))
def test_matches_are_those_of_a_plain_matcher(seed: int) -> None:
    terms = random_terms(np.random.default_rng(seed), 40)
    rules = [rule for rule in parse_rules(RULES) if rule.name != "apart"]
    expected = set()
    for rule in rules:
        for roots in permutations(range(len(terms)), len(rule.sources)):
            binding: dict[str, Any] = {}
            if all(recursive(terms, s, r, binding) for s, r in zip(rule.sources, roots)):
                needs = {b for name, b in binding.items() if name[0] == "?"}
                if len(roots) == 1 or not set(roots) & set(reachable(terms, needs)):
                    expected.add((rule.name, roots, tuple(sorted(binding.items()))))
    found = [(m.rule.name, m.roots, tuple(sorted(m.binding.items()))) for m in Matcher(rules, terms).matches(range(40))]
    assert len(set(found)) == len(found)
    assert set(found) == expected


def test_pairs_come_once_where_sources_may_change_places() -> None:
    terms = Terms()
    roots = [op(terms, "relu", of=(leaf(terms, name, 2, 2),)) for name in "abc"]
    matches = Matcher(parse_rules(RULES), terms).matches(range(len(terms)))
    pairs = [m.roots for m in matches if m.rule.name == "apart"]
    assert pairs == [(roots[0], roots[1]), (roots[0], roots[2]), (roots[1], roots[2])]


def test_terms_that_are_dead_or_static_do_not_match() -> None:
    terms = Terms()
    x, w = leaf(terms, "x", 2, 2), leaf(terms, "w", 2, 2, kind="weight")
    dead = op(terms, "relu", of=(op(terms, "add", of=(x, x)),))
    output = op(terms, "mul", of=(x, op(terms, "relu", of=(op(terms, "add", of=(w, w)),))))
    matcher = Matcher(parse_rules(RULES), terms)
    assert [m.rule.name for m in matcher.matches(reachable(terms, [dead]))] == ["fuse"]
    assert matcher.matches(reachable(terms, [output])) == []


def test_only_new_terms_are_visited_after_a_rewrite() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
    inner = op(terms, "relu", of=(op(terms, "add", of=(x, y)),))
    far = op(terms, "relu", of=(op(terms, "add", of=(y, y)),))
    program = Program(terms, (op(terms, "mul", of=(inner, far)),), ("out",), (x, y))
    matcher = Matcher(parse_rules(RULES), terms)
    before = matcher.matches(program.live())
    (at_inner,) = (m for m in before if m.roots == (inner,))
    made = matcher.apply(at_inner)
    assert made is not None and made == matcher.apply(at_inner)
    after = program.with_outputs(substitute(terms, program.outputs, program.live(), {inner: made[0]}))
    assert [m for m in matcher.matches(after.live()) if m.roots == (far,)] == [m for m in before if m.roots == (far,)]


def test_conditions_join_and_types_decide() -> None:
    (rule,) = parse_rules(
        "merge: (relu ?x), (relu ?y) => (item 0 (split 1 {sizes(1, ?x, ?y)} (relu (concat 1 ?x ?y)))),"
        " (item 1 (split 1 {sizes(1, ?x, ?y)} (relu (concat 1 ?x ?y)))) where without(1, ?x) = without(1, ?y)"
    )
    terms = Terms()
    shapes = ((2, 3), (2, 4), (5, 3))
    relus = [op(terms, "relu", of=(leaf(terms, f"i{k}", *shape),)) for k, shape in enumerate(shapes)]
    matcher = Matcher([rule], terms)
    (match,) = matcher.matches(range(len(terms)))
    assert match.roots == (relus[0], relus[1])
    made = matcher.apply(match)
    assert made is not None and [terms.shape(m) for m in made] == [(2, 3), (2, 4)]


def test_no_pair_where_one_needs_the_other() -> None:
    terms = Terms()
    x = leaf(terms, "x", 2, 2)
    op(terms, "relu", of=(op(terms, "mul", of=(op(terms, "relu", of=(x,)), x)),))
    assert [m for m in Matcher(parse_rules(RULES), terms).matches(range(len(terms))) if m.rule.name == "apart"] == []


def test_a_target_of_another_type_is_no_rewrite() -> None:
    (rule,) = parse_rules("wrong: (add ?x ?y) => ?x")
    terms = Terms()
    narrow = op(terms, "add", of=(leaf(terms, "x", 1, 3), leaf(terms, "y", 2, 3)))
    matcher = Matcher([rule], terms)
    (match,) = matcher.matches([narrow])
    assert matcher.apply(match) is None


def test_bindings_are_named() -> None:
    (rule,) = parse_rules("a: (transpose $p ?x) => (transpose $p ?x)")
    assert bound_names(rule) == ("?x", "$p")
