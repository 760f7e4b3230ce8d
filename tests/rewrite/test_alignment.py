"""Which ops a rewritten program no longer has: those that the rewriting replaced, not all that lie below."""

from collections.abc import Sequence

import numpy as np
import pytest
from random_programs import leaf, op, random_program

from graphopt.rewrite.ir.alignment import differing_terms
from graphopt.rewrite.ir.terms import Program, Terms, reachable, substitute
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.parsing import load_rules


def stack(terms: Terms, weights: bool, fused: Sequence[int] = ()) -> Program:
    """relu(x @ w) + x, six times; fused: layers whose relu is in the product. weights: of each its own, else the
    input."""
    x = first = leaf(terms, "x", 4, 4)
    for layer in range(6):
        by = leaf(terms, f"w{layer}", 4, 4, kind="weight") if weights else first
        made = op(terms, "matmul", "relu" if layer in fused else "none", of=[x, by])
        x = op(terms, "add", of=[made if layer in fused else op(terms, "relu", of=[made]), x])
    return Program(terms, (x,), ("y",), (first,))


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("fused", [(0,), (1, 4), (2, 3, 5), ()])
def test_of_alike_layers_those_that_changed_differ(weights: bool, fused: tuple[int, ...]) -> None:
    terms = Terms()
    program, rewritten = stack(terms, weights), stack(terms, weights, fused)
    ops = [term for term in program.live() if terms.runs[term]]  # product, relu, sum of each layer
    gone, come = differing_terms(program, rewritten)
    assert gone == [ops[3 * layer + part] for layer in fused for part in (0, 1)]
    assert [terms.operation[term].params for term in come] == [("relu",)] * len(fused)
    assert differing_terms(rewritten, program) == (come, gone)


def test_single_rewrites_differ_in_no_more_than_what_they_name() -> None:
    """At most the terms that a rule's left side matches go, and no more ops come than the right side makes."""
    rng, rules, tried = np.random.default_rng(0), load_rules("handwritten"), 0
    for _ in range(200):
        program = random_program(rng, 12)
        matcher, live = Matcher(rules, program.terms), program.live()
        assert differing_terms(program, program) == ([], [])
        for match in list(matcher.matches(live))[:4]:
            made = matcher.apply(match)
            if made is None:
                continue
            outputs = substitute(program.terms, program.outputs, live, dict(zip(match.roots, made, strict=True)))
            gone, come = differing_terms(program, program.with_outputs(outputs))
            before, after = (sum(program.terms.runs[t] for t in reachable(program.terms, o))
                             for o in (program.outputs, outputs))  # fmt: skip
            assert len(gone) - len(come) == before - after and len(gone) <= 8
            tried += 1
    assert tried > 60
