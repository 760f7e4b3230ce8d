"""Equality saturation on terms: congruence, proofs with a known answer, limits."""

from itertools import permutations

import pytest
from programs import leaf, op

from graphopt.rewrite.parsing import parse_rules
from graphopt.rewrite.saturation import Equalities, Limits, Prover
from graphopt.rewrite.terms import Terms
from graphopt.rewrite.vocabulary import Operation

SUMS = parse_rules("""
    commute: (add ?x ?y) => (add ?y ?x)
    associate: (add (add ?x ?y) ?z) => (add ?x (add ?y ?z))
""")


def proof(rules: str, terms: Terms, left: int, right: int, limits: Limits) -> int | None:
    equalities = Equalities()
    classes = equalities.add_terms(terms, (left, right))
    return Prover(parse_rules(rules)).steps([(classes[left], classes[right])], equalities, limits)


def test_equal_inputs_make_equal_results_through_all_users() -> None:
    terms, equalities = Terms(), Equalities()
    x, y = leaf(terms, "x", 2, 2), leaf(terms, "y", 2, 2)
    towers = [op(terms, "tanh", of=(op(terms, "relu", of=(op(terms, "add", of=(i, x)),)),)) for i in (x, y)]
    classes = equalities.add_terms(terms, towers)
    assert equalities.find(classes[towers[0]]) != equalities.find(classes[towers[1]])
    equalities.merge(classes[x], classes[y])
    equalities.rebuild()
    assert equalities.find(classes[towers[0]]) == equalities.find(classes[towers[1]])
    assert len(list(equalities.classes())) == 4


def test_classes_of_different_types_are_never_one() -> None:
    equalities = Equalities()
    a, b = (equalities.add(Operation("input", (name, shape, "float32"))) for name, shape in (("a", (2,)), ("b", (3,))))
    assert not equalities.merge(a, b) and equalities.find(a) != equalities.find(b)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_sums_of_four_are_equal_in_any_order(order: tuple[int, ...]) -> None:
    terms, equalities = Terms(), Equalities()
    parts = [leaf(terms, name, 2) for name in "abcd"]
    left = op(terms, "add", of=(op(terms, "add", of=parts[:2]), op(terms, "add", of=parts[2:])))
    a, b, c, d = (parts[i] for i in order)
    right = op(terms, "add", of=(a, op(terms, "add", of=(b, op(terms, "add", of=(c, d))))))
    classes = equalities.add_terms(terms, (left, right))
    rounds = Prover(SUMS).steps([(classes[left], classes[right])], equalities, Limits(6, 2000))
    assert rounds is not None and rounds <= 5


def test_what_does_not_follow_is_not_proved() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    left, right = op(terms, "add", of=(x, y)), op(terms, "add", of=(x, x))
    rules = "\n".join(map(str, SUMS))
    assert proof(rules, terms, left, right, Limits()) is None


def test_computed_parameters_of_sources_are_conditions() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 3), leaf(terms, "y", 2, 1)
    both = op(terms, "concat", 1, of=(x, y))
    rule = "first: (item 0 (split $a {sizes($a, ?x, ?y)} (concat $a ?x ?y))) => ?x"
    for sizes, rounds in (((3, 1), 1), ((1, 3), None)):
        part = op(terms, "item", 0, of=(op(terms, "split", 1, sizes, of=(both,)),))
        assert proof(rule, terms, part, x, Limits()) == rounds


def test_growth_ends_at_the_limits() -> None:
    terms, equalities = Terms(), Equalities()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    classes = equalities.add_terms(terms, (op(terms, "relu", of=(x,)), y))
    grow = Prover(parse_rules("grow: (relu ?x) => (relu (relu (add ?x ?x)))"))
    assert grow.steps([(classes[x], classes[y])], equalities, Limits(100, 50)) is None
    assert 50 < len(equalities) < 60
