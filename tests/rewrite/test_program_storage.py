"""Programs as JSON and back."""

import json
from typing import Any

import numpy as np
import pytest
from random_programs import random_program

from graphopt.errors import UserError
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.program_files import FORMAT, from_json, to_json
from graphopt.rewrite.ir.reference import random_leaves, run
from graphopt.rewrite.ir.terms import Program


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


@pytest.mark.parametrize("shape", [[10**12], [10**6, 10**6], [2**62, 4]])
def test_a_stored_program_asks_for_no_enormous_tensor(shape: list[int]) -> None:
    line = ["weight", ["w", shape, "float32"], []]
    stored = {"format": FORMAT, "terms": [line], "outputs": [0], "output_names": ["y"], "inputs": [], "opaque": {}}
    with pytest.raises(UserError, match="has a tensor of more than"):
        from_json(stored)
    many = [["weight", [f"w{i}", [2**14, 2**14], "float32"], []] for i in range(17)]
    with pytest.raises(UserError, match="elements together"):
        from_json({**stored, "terms": many})


@pytest.mark.parametrize("key", ["format", "terms", "outputs", "output_names", "inputs", "opaque"])
@pytest.mark.parametrize(
    "value", [None, 3, "x", [3], [["x"]], {"a": 1}, [["weight", {"a": 1}, []]], [["weight", [], [0]]]]
)
def test_fields_of_other_types_are_one_sentence(key: str, value: Any) -> None:
    line = ["weight", ["w", [2], "float32"], []]
    stored = {"format": FORMAT, "terms": [line], "outputs": [0], "output_names": ["y"], "inputs": [], "opaque": {}}
    try:
        from_json({**stored, key: value})
    except UserError as error:
        assert "\n" not in str(error)
