"""Rewrites priced without being made, against the programs they lead to."""

from zlib import crc32

import numpy as np
import pytest
from random_programs import random_program

from graphopt.rewrite.ir.digests import Digests
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Outputs, Program, reachable, substitute
from graphopt.rewrite.rules.loading import load_rules
from graphopt.rewrite.rules.matching import Match, Matcher
from graphopt.rewrite.rules.neighbours import Neighbours
from graphopt.rewrite.rules.parsing import parse_rules
from graphopt.rewrite.rules.rule import RuleSet

# Beside real rules: what is put in contains the root, coincides with others, is an input, swaps two terms.
ODD = parse_rules("""
    twice: (relu ?x) => (relu (relu ?x))
    once: (relu (relu ?x)) => (relu ?x)
    argument: (relu ?x) => ?x
    first: (add ?x ?y) => ?x
    both: (relu ?x), (add ?y ?z) => (add (relu ?x) (relu ?x)), (add ?z ?y)
    same: (relu ?x), (relu ?y) => (relu ?x), (relu ?x) where same_shape(?x, ?y)
    inside: (mul ?x ?y), (add ?x ?y) => (add ?x ?y), (relu (add ?x ?y))
    commute: (add ?x ?y) => (add ?y ?x)
    grow: (add ?x ?y) => (add (add ?x ?y) (relu ?y))
""")


def price(program: Program, term: int) -> float:
    """As costs are: of what a term is and of the types that it reads. Random: other terms, other sums."""
    terms = program.terms
    kind = (str(terms.operation[term]), [terms.types[i] for i in terms.inputs[term]])
    return 0.0 if terms.static[term] else float(crc32(repr(kind).encode()))


def made_by(matcher: Matcher, program: Program, outputs: Outputs) -> dict[Outputs, Match]:
    """Every other program that one rule at one place makes, by its outputs."""
    live = reachable(program.terms, outputs)
    found: dict[Outputs, Match] = {}
    for match in matcher.matches(live):
        made = matcher.apply(match)
        if made is not None:
            found.setdefault(substitute(program.terms, outputs, live, dict(zip(match.roots, made))), match)
    found.pop(outputs, None)
    return found


def check(program: Program, rules: RuleSet, neighbours: Neighbours, outputs: Outputs) -> list[Outputs]:
    """Compares all steps of a program with the programs themselves, which it returns."""
    made = made_by(Matcher(rules, program.terms), program, outputs)
    steps = list(neighbours.around(outputs, lambda t: price(program, t)).steps())
    assert [(m.rule, m.roots) for m in made.values()] == [(s.match.rule, s.match.roots) for s in steps]
    for after, step in zip(made, steps):
        rule = step.match.rule.name
        assert step.digest == neighbours.digest(after), rule
        assert step.cost == sum(price(program, t) for t in reachable(program.terms, after)), rule
        assert step.ops == program.with_outputs(after).num_ops(), rule
        assert neighbours.apply(outputs, step.match) == after
    return list(made)


@pytest.mark.parametrize("seed", range(40))
def test_steps_are_what_their_programs_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 14)
    rules = (*ODD, *(load_rules() if seed % 2 else ()))
    neighbours = Neighbours(rules, program.terms)
    outputs = program.outputs
    for _ in range(6):
        next_ones = [o for o in check(program, rules, neighbours, outputs) if len(reachable(program.terms, o)) < 60]
        if not next_ones:
            return
        outputs = next_ones[int(rng.integers(len(next_ones)))]


def test_users_that_become_equal_are_counted_once() -> None:
    b = ProgramBuilder()
    x, y = b.input((2, 2)), b.input((2, 2))
    left, right = b.unary("tanh", b.add(x, y)), b.unary("tanh", b.add(y, x))
    program = b.build(b.mul(left, right))
    rules = parse_rules("commute: (add ?x ?y) => (add ?y ?x)")
    neighbours = Neighbours(rules, program.terms)
    steps = list(neighbours.around(program.outputs, lambda t: 1.0).steps())
    assert [s.ops for s in steps] == [3, 3]  # one sum, one tanh, a product
    check(program, rules, neighbours, program.outputs)


def test_digests_tell_apart_what_only_order_distinguishes() -> None:
    b = ProgramBuilder()
    x, y, z, w = (b.input((2, 2)) for _ in range(4))
    programs = [b.add(b.add(x, y), b.add(z, w)), b.add(b.add(x, z), b.add(y, w)), b.add(b.add(y, x), b.add(z, w)),
                b.unary("relu", b.unary("tanh", x)), b.unary("tanh", b.unary("relu", x)), b.add(x, y),
                b.add(y, x)]  # fmt: skip
    digests = Digests(b.terms)
    assert len({digests.program((p,)) for p in programs}) == len(programs)
    assert digests.program((x, y)) != digests.program((y, x))
