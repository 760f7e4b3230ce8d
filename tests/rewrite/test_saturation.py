"""Proofs by equality saturation with a known answer, and limits."""

from itertools import permutations

import pytest
from programs import leaf, op

from graphopt.rewrite.egraphs.saturation import Prover, SaturationLimits
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.rules.parsing import parse_rules

SUMS = parse_rules("""
    commute: (add ?x ?y) => (add ?y ?x)
    associate: (add (add ?x ?y) ?z) => (add ?x (add ?y ?z))
""")


def proof(rules: str, terms: Terms, left: int, right: int, limits: SaturationLimits) -> int | None:
    return Prover(parse_rules(rules)).steps(terms, [(left, right)], limits)


@pytest.mark.parametrize("order", permutations(range(4)))
def test_sums_of_four_are_equal_in_any_order(order: tuple[int, ...]) -> None:
    terms = Terms()
    parts = [leaf(terms, name, 2) for name in "abcd"]
    left = op(terms, "add", of=(op(terms, "add", of=parts[:2]), op(terms, "add", of=parts[2:])))
    a, b, c, d = (parts[i] for i in order)
    right = op(terms, "add", of=(a, op(terms, "add", of=(b, op(terms, "add", of=(c, d))))))
    rounds = Prover(SUMS).steps(terms, [(left, right)], SaturationLimits(6, 2000))
    assert rounds is not None and rounds <= 5


def test_what_does_not_follow_is_not_proved() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    left, right = op(terms, "add", of=(x, y)), op(terms, "add", of=(x, x))
    rules = "\n".join(map(str, SUMS))
    assert proof(rules, terms, left, right, SaturationLimits()) is None


def test_computed_parameters_of_sources_are_conditions() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2, 3), leaf(terms, "y", 2, 1)
    both = op(terms, "concat", 1, of=(x, y))
    rule = "first: (item 0 (split $a {sizes($a, ?x, ?y)} (concat $a ?x ?y))) => ?x"
    for sizes, rounds in (((3, 1), 1), ((1, 3), None)):
        part = op(terms, "item", 0, of=(op(terms, "split", 1, sizes, of=(both,)),))
        assert proof(rule, terms, part, x, SaturationLimits()) == rounds


def test_a_pair_is_proved_only_where_its_parts_are() -> None:
    """Two pairs at once; of different types, which no rule makes equal, whatever it says."""
    terms = Terms()
    x, y, z = leaf(terms, "x", 2), leaf(terms, "y", 2), leaf(terms, "z", 1, 2)
    sums = [op(terms, "add", of=of) for of in ((x, y), (y, x), (x, z), (z, x))]
    prover = Prover(SUMS)
    assert prover.steps(terms, list(zip(sums[::2], sums[1::2])), SaturationLimits()) == 1
    assert prover.steps(terms, [(sums[0], sums[1]), (sums[0], sums[2])], SaturationLimits()) is None
    wrong = Prover(parse_rules("wrong: (add ?x ?y) => ?x"))
    assert wrong.steps(terms, [(sums[0], x)], SaturationLimits()) == 1
    assert wrong.steps(terms, [(sums[2], x)], SaturationLimits()) is None


def test_what_depends_on_weights_alone_is_proved_too() -> None:
    terms = Terms()
    v, w = (leaf(terms, name, 2, kind="weight") for name in "vw")
    assert (
        Prover(SUMS).steps(terms, [(op(terms, "add", of=(v, w)), op(terms, "add", of=(w, v)))], SaturationLimits()) == 1
    )


def test_growth_ends_at_the_limits() -> None:
    terms = Terms()
    x, y = leaf(terms, "x", 2), leaf(terms, "y", 2)
    grow = Prover(parse_rules("grow: (relu ?x) => (relu (relu (add ?x ?x)))"))
    assert grow.steps(terms, [(op(terms, "relu", of=(x,)), y)], SaturationLimits(100, 50)) is None
    assert 50 <= len(terms) < 60
