"""Corrected mutants against the originals, everywhere; and where mutants are wrong, by hand."""

import numpy as np
import pytest

from graphopt.rewrite.generation.partial import MUTATIONS, mutants, wrong_intervals
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.vocabulary import Operation

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
