"""Programs as JSON and back."""

import json
from typing import Any

import numpy as np
import pytest
from random_programs import random_program

from graphopt.errors import UserError
from graphopt.rewrite.program_builder import ProgramBuilder
from graphopt.rewrite.reference import random_leaves, run
from graphopt.rewrite.storage import from_json, to_json
from graphopt.rewrite.terms import Program


def through_text(program: Program) -> Program:
    return from_json(json.loads(json.dumps(to_json(program))))


@pytest.mark.parametrize("seed", range(20))
def test_a_program_comes_back_as_it_was(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_program(rng, 12)
    back = through_text(program)
    assert to_json(back) == to_json(program)
    assert back.output_names == program.output_names
    assert [back.terms.types[o] for o in back.outputs] == [program.terms.types[o] for o in program.outputs]
    leaves = random_leaves(program, rng)
    by_name = {program.terms.operation[t].params[0]: value for t, value in leaves.items()}
    given = {t: by_name[o.params[0]] for t, o in enumerate(back.terms.operation) if o.params and o.params[0] in by_name}
    for ours, theirs in zip(run(back.terms, back.outputs, given), run(program.terms, program.outputs, leaves)):
        np.testing.assert_array_equal(ours, theirs)


def test_inputs_that_nothing_reads_are_kept() -> None:
    b = ProgramBuilder()
    x, _ = b.input((2, 3)), b.input((5,))
    assert len(through_text(b.build(b.op("relu", inputs=(x,)))).inputs) == 2


@pytest.mark.parametrize(
    "damage",
    [{"format": "other"}, {"terms": [["relu", [], [7]]]}, {"terms": [["nonsense", [], []]]}, {"outputs": [99]}],
)
def test_damage_is_one_sentence(damage: dict[str, Any]) -> None:
    b = ProgramBuilder()
    stored = to_json(b.build(b.op("relu", inputs=(b.input((2, 3)),))))
    with pytest.raises(UserError, match=r"solve the graph again|this version reads"):
        from_json({**stored, **damage})
