"""Where rules come from: enumeration, and rules that hold under conditions."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphopt.rewrite.generate import generate
from graphopt.rewrite.generation.enumeration import ADD, JOIN, MATMUL, RELU, World, grow, moves, parts, start
from graphopt.rewrite.generation.generalising import case_of, generalised, pattern_of
from graphopt.rewrite.generation.partial import MUTATIONS, mutants, wrong_intervals
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation
from graphopt.rewrite.rules.parsing import load_rules, parse_rules
from graphopt.rewrite.rules.rule import canonical, nodes
from graphopt.rewrite.verify import verify

# --- Generation: what small worlds must give, and that the packaged file is what it says it is.

SMALL = World("small", {"x": (4, 4), "y": (4, 4)}, (*moves(1, 2, RELU), *moves(2, 2, ADD, *JOIN)), 2)
CHUNKS = 12
GENERATED = load_rules("generated", "generated_apart")


def test_pairs_are_equal_on_other_draws_and_representatives_are_not() -> None:
    known = start(SMALL, np.random.default_rng(0))
    pairs = [pair for _ in range(2) for pair in grow(SMALL, known)]
    rng = np.random.default_rng(5)
    leaves = {leaf: rng.integers(-4, 5, (4, 4)) for leaf in known.by_size[0]}
    for pair in pairs:
        left, right = reference.run(known.terms, pair, leaves)
        assert np.array_equal(left, right)
    values = reference.run(known.terms, list(known.values), leaves)
    assert len({(v.shape, v.tobytes()) for v in values}) == len(values)


def test_sizes_are_counted_as_by_hand() -> None:
    """Of one input: x; relu, two concats, the sum; with y in place of x as well, and both."""
    known = start(SMALL, np.random.default_rng(0))
    equal = list(grow(SMALL, known))
    assert len(known.by_size[1]) == 2 + 3 + 8  # relus; sums of xx, xy, yy; concats of all pairs along two axes
    assert len(equal) == 1  # y + x


def test_a_small_world_gives_its_algebra_and_nothing_derived() -> None:
    kept = generate((SMALL,), 2)
    found = {str(canonical(rule)) for rule in kept.rules}
    for text in ("a: (add ?x ?y) => (add ?y ?x)", "a: (relu (relu ?x)) => (relu ?x)"):
        (rule,) = parse_rules(text)
        assert str(canonical(rule)) in found
    assert all(verify(rule) for rule in kept.rules)
    assert not any("(add ?x ?x)" in str(rule) and "(add ?y ?x)" in str(rule) for rule in kept.rules)


def test_the_command_writes_the_same_in_every_process(tmp_path: Path) -> None:
    written = []
    for seed in ("1", "2"):
        output = tmp_path / f"rules{seed}.txt"
        command = [sys.executable, "-m", "graphopt", "rules", "generate", "--depth", "1", "--output", str(output)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        written.append(output.read_text() + output.with_stem(f"rules{seed}_apart").read_text())
    assert written[0] == written[1]
    assert "(add ?y ?x) <=> (add ?x ?y)" in written[0]


def test_conditions_are_found_where_a_rule_needs_them() -> None:
    """A product with a sum is the sum of products only if the sum does not broadcast in the inner dimensions."""
    terms = Terms()
    x, y, z = (terms.add(Operation("input", (name, (4, 4), "float32"))) for name in "xyz")
    left = terms.add(MATMUL, (x, terms.add(ADD, (y, z))))
    right = terms.add(ADD, (terms.add(MATMUL, (x, y)), terms.add(MATMUL, (x, z))))
    case = case_of(terms, (left,), (right,))
    assert case is not None
    rule = generalised(case, "a", np.random.default_rng(0))
    assert rule is not None and rule.conditions
    assert verify(rule, seed=99) >= 20


def test_growing_for_ever_is_no_rule() -> None:
    terms = Terms()
    x = terms.add(Operation("input", ("x", (4, 4), "float32")))
    once = terms.add(RELU, (x,))
    twice = terms.add(RELU, (once,))
    assert case_of(terms, (once,), (twice,)) is None
    assert case_of(terms, (twice,), (once,)) is not None


def test_halves_are_moves_too() -> None:
    world = World("parts", {"x": (4, 2)}, (*parts(0), *moves(2, 3, JOIN[0])), 3)
    known = start(world, np.random.default_rng(0))
    x = known.by_size[0][0]
    pairs = [pair for _ in range(3) for pair in grow(world, known)]
    wholes = {str(pattern_of(known.terms, term)) for term, equal in pairs if equal == x}
    assert "(concat 0 (item 0 (split 0 [2,2] ?x)) (item 1 (split 0 [2,2] ?x)))" in wholes


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_generated_rules_are_true(chunk: int) -> None:
    for rule in GENERATED[chunk::CHUNKS]:
        assert verify(rule, seed=7, cases=12) >= 4


def test_generated_rules_speak_of_the_vocabulary() -> None:
    rules = GENERATED
    operators = {node.operator for rule in rules for node in nodes((*rule.sources, *rule.targets))}
    assert operators >= {"matmul", "conv", "add", "mul", "relu", "tanh", "sigmoid", "concat", "split", "transpose",
                         "pool_max", "pool_avg", "enlarge", "reshape"}  # fmt: skip
    assert any(len(rule.sources) == 2 for rule in rules)
    assert len({canonical(rule) for rule in rules}) == len(rules)


# --- Corrected mutants against the originals, everywhere; and where mutants are wrong, by hand.

CONVS = [  # batch, channels, height, width, kernels, kernel, stride, groups, activation, bias
    (3, 2, 8, 8, 4, (3, 3), 1, 1, "none", False),
    (2, 4, 8, 12, 4, (3, 3), 2, 2, "relu", False),
    (4, 2, 12, 8, 3, (5, 3), 1, 1, "relu", True),
    (1, 3, 16, 16, 2, (3, 3), 1, 1, "none", False),
    (2, 2, 8, 8, 2, (1, 1), 1, 1, "none", True),
    (2, 4, 8, 8, 4, (1, 7), 1, 4, "tanh", False),
]


def conv_of(case: tuple) -> tuple[ProgramBuilder, int]:
    batch, channels, height, width, kernels, kernel, stride, groups, activation, bias = case
    b = ProgramBuilder()
    x = b.input((batch, channels, height, width))
    return b, b.conv(x, kernels, kernel, stride=stride, groups=groups, activation=activation, bias=bias)


@pytest.mark.parametrize("case", CONVS, ids=str)
def test_corrected_mutants_are_equal_everywhere(case: tuple) -> None:
    b, conv = conv_of(case)
    found = list(mutants(b.terms, conv))
    assert found
    for mutant in found:
        program = b.build(conv, mutant.term)
        for seed in range(3):
            one, other = reference.run(
                b.terms, program.outputs, reference.random_leaves(program, np.random.default_rng(seed))
            )
            np.testing.assert_array_equal(one, other, err_msg=mutant.name)


def test_rows_at_seams_are_wrong_and_no_others() -> None:
    """Kernels of 3 x 3 see one row of the neighbour: the first of all images but one, the last of all but one."""
    conv, shapes = Operation("conv", ((1, 1), (1, 1, 1, 1), "none")), ((3, 8, 10, 6), (4, 8, 3, 3))
    wrong = {m.name: wrong_intervals(m, conv, shapes) for m in MUTATIONS if m.operator == "conv"}
    assert wrong == {
        "batch_into_rows": ((0, 1), (9, 10)),
        "batch_into_columns": ((0, 1), (5, 6)),
        "rows_into_batch": ((4, 6),),
        "columns_into_batch": ((2, 4),),
    }


def test_what_sees_no_neighbour_is_right_everywhere() -> None:
    conv, shapes = Operation("conv", ((1, 1), (0, 0, 0, 0), "none")), ((3, 8, 10, 6), (4, 8, 1, 1))
    assert {wrong_intervals(m, conv, shapes) for m in MUTATIONS if m.operator == "conv"} == {()}


def test_images_that_do_not_end_where_the_next_begins_have_no_mutant() -> None:
    """Without padding, a 3 x 3 kernel makes 8 rows of 10: rows of the next image are not where they should be."""
    conv, shapes = Operation("conv", ((1, 1), (0, 0, 0, 0), "none")), ((3, 8, 10, 10), (4, 8, 3, 3))
    assert {wrong_intervals(m, conv, shapes) for m in MUTATIONS if m.operator == "conv"} == {None}


def test_products_of_a_batch_with_one_matrix() -> None:
    b = ProgramBuilder()
    product = b.linear(b.input((3, 4, 5)), 2, "relu")
    (mutant,) = mutants(b.terms, product)
    program = b.build(product, mutant.term)
    one, other = reference.run(b.terms, program.outputs, reference.random_leaves(program, np.random.default_rng(0)))
    np.testing.assert_array_equal(one, other)
    assert [b.terms.operation[t].name for t in program.live()].count("matmul") == 2
