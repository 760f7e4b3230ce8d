"""Random sequences of rules on random programs: what they compute, on exact integers, never changes."""

from itertools import islice

import numpy as np
import pytest
from random_programs import random_program

from graphopt.rewrite.generation.instances import instances
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.terms import Program, Terms, reachable, substitute
from graphopt.rewrite.ir.vocabulary import Operation, ShapeError
from graphopt.rewrite.rules.loading import load_rules
from graphopt.rewrite.rules.matching import Matcher

RULES = load_rules()
LARGEST = 40


def rewritten(program: Program, steps: int, rng: np.random.Generator) -> int:
    """Applies random rules one after another and compares what is computed after each; how many."""
    matcher = Matcher(RULES, program.terms)
    leaves = reference.random_leaves(program, rng)
    before = reference.run(program.terms, program.outputs, leaves)
    outputs, applied = program.outputs, 0
    for _ in range(steps):
        live = reachable(program.terms, outputs)
        matches = matcher.matches(live)
        if not matches or len(live) > LARGEST:
            break
        rules = sorted({match.rule.name for match in matches})
        name = rules[int(rng.integers(len(rules)))]  # rare rules as often as frequent ones
        chosen = [match for match in matches if match.rule.name == name]
        match = chosen[int(rng.integers(len(chosen)))]
        made = matcher.apply(match)
        if made is None:
            continue
        outputs = substitute(program.terms, outputs, live, dict(zip(match.roots, made)))
        after = reference.run(program.terms, outputs, leaves)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), str(match.rule)
        applied += 1
    return applied


@pytest.mark.parametrize("seed", range(8))
def test_rules_in_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    applied = sum(rewritten(random_program(rng, 10, exact=False), 8, rng) for _ in range(120))
    assert applied > 150


def wrapped(terms: Terms, roots: tuple[int, ...], rng: np.random.Generator) -> Program:
    """A program that uses the roots: each goes through a few more operations, or is an output."""
    pool = list(roots)
    for _ in range(4):
        x, y = (pool[int(i)] for i in rng.integers(len(pool), size=2))
        operation = Operation(str(rng.choice(["relu", "add", "mul", "concat"])))
        if operation.name == "concat":
            operation = Operation("concat", (int(rng.integers(2)),))
        try:
            pool.append(terms.add(operation, (x,) if operation.name == "relu" else (x, y)))
        except ShapeError:
            continue
    used = {i for term in pool for i in terms.inputs[term]}
    outputs = tuple(term for term in dict.fromkeys(pool) if term not in used)
    return Program(terms, outputs, tuple(map(str, outputs)), ())


@pytest.mark.parametrize("part", range(8))
def test_every_rule_first_then_others(part: int) -> None:
    """The sources of each rule as a program, with users; the rule itself is among those that may be applied."""
    rng = np.random.default_rng(part)
    applied = 0
    for rule in RULES[part::8]:
        for case in islice(instances(rule, rng, 200), 4):
            applied += rewritten(wrapped(case.terms, case.sources, rng), 6, rng)
    assert applied > 8 * len(RULES[part::8])
