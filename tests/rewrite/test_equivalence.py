"""The check of rewritten programs: what is equal passes, what is a little wrong does not."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from onnx import helper
from onnx_models import FLOAT, model_of, value

from graphopt.errors import ConfigError
from graphopt.rewrite.equivalence import EquivalenceError, check_equivalence, differences, run_onnx
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.terms import Program
from graphopt.rewrite.ir.vocabulary import Operation


def two_products(b: ProgramBuilder) -> tuple[int, int, int]:
    x, v, w = b.input((4, 8)), b.weight(8, 3), b.weight(8, 5)
    return x, v, w


def merged(split: tuple[int, int] = (3, 5), scale: float | None = None) -> tuple[Program, Program]:
    """x v and x w apart, and as one product that is split; the latter wrong if it is scaled or cut elsewhere."""
    b = ProgramBuilder()
    x, v, w = two_products(b)
    apart = b.build(b.unary("relu", b.matmul(x, v)), b.unary("tanh", b.matmul(x, w)))
    both = b.matmul(x, b.concat(1, v, w))
    if scale is not None:
        both = b.mul(both, b.op("fill", scale, (1, 1)))
    parts = b.op("split", 1, split, inputs=[both])
    first, second = (b.op("item", i, inputs=[parts]) for i in (0, 1))
    return apart, apart.with_outputs((b.unary("relu", first), b.unary("tanh", second)))


def test_a_right_rewrite_agrees_to_rounding() -> None:
    apart, together = merged()
    found = check_equivalence(apart, together)
    assert found.trials == 1 and found.worst < 1e-14
    assert differences(apart, together) == []


def test_a_slightly_wrong_rewrite_is_an_error() -> None:
    apart, together = merged(scale=1.0001)
    with pytest.raises(EquivalenceError, match=r"output 'output0' differs from the original's by 0\.0001"):
        check_equivalence(apart, together)
    assert check_equivalence(apart, together, tolerance=1e-3).worst == pytest.approx(1e-4, rel=0.2)
    assert len(differences(apart, together)) == 1


def test_parts_of_another_size_are_an_error() -> None:
    apart, together = merged(split=(5, 3))
    with pytest.raises(EquivalenceError, match="differ in number, shape or type"):
        check_equivalence(apart, together)


def test_a_relu_too_many_is_an_error() -> None:
    b = ProgramBuilder()
    y = b.linear(b.input((4, 8)), 8)
    program = b.build(y)
    with pytest.raises(EquivalenceError, match="differs"):
        check_equivalence(program, program.with_outputs((b.unary("relu", y),)))


def test_numbers_that_are_not_finite_are_no_agreement() -> None:
    b = ProgramBuilder()
    x = b.input((2, 2))
    for _ in range(12):
        x = b.mul(x, b.mul(x, b.op("fill", 1e30, (2, 2))))
    program = b.build(x)
    with pytest.raises(EquivalenceError, match="is not finite on random inputs"):
        check_equivalence(program, program)


def test_equal_weights_hide_nothing() -> None:
    """x a + x b = x b + x b where all weights are one, as in models that come without weights."""
    b = ProgramBuilder()
    x, v, w = b.input((2, 4)), b.weight(4, 4), b.weight(4, 4)
    ones = {name: np.ones((4, 4), np.float32) for name in ("weight0", "weight1")}
    program = replace(b.build(b.add(b.matmul(x, v), b.matmul(x, w))), weights=ones)
    with pytest.raises(EquivalenceError, match="differs"):
        check_equivalence(program, program.with_outputs((b.add(b.matmul(x, w), b.matmul(x, w)),)))


def test_a_softmax_that_saturates_hides_nothing() -> None:
    nodes = [helper.make_node("Mul", ["x", "c"], ["l"]), helper.make_node("Softmax", ["l"], ["y"])]
    model = model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))], {"c": np.float32([1e4])})
    program = import_onnx(model)
    assert check_equivalence(program, program).trials == 2
    terms = program.terms
    (y,) = program.outputs
    (softmax,) = terms.inputs[y]
    (logits,) = terms.inputs[softmax]
    twice = terms.add(Operation("add"), (logits, logits))
    wrong = terms.add(Operation("item", (0,)), (terms.add(terms.operation[softmax], (twice,)),))
    with pytest.raises(EquivalenceError, match=r"'input of Softmax"):
        check_equivalence(program, program.with_outputs((wrong,)))


def test_infinities_of_a_mask_agree_in_the_same_places() -> None:
    b = ProgramBuilder()
    x = b.input((2, 2))
    mask = b.op("fill", float("-inf"), (2, 1))
    first, second = b.concat(1, x, mask), b.concat(1, mask, x)
    program = b.build(first)
    assert check_equivalence(program, program).worst == 0
    with pytest.raises(EquivalenceError, match="differs"):
        check_equivalence(program, program.with_outputs((second,)))


def test_opaque_operations_are_run_on_both_sides() -> None:
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), helper.make_node("Mul", ["s", "s"], ["y"])]
    program = import_onnx(model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))]))
    terms = program.terms
    (square,) = program.outputs
    (softmax, _) = terms.inputs[square]
    assert check_equivalence(program, program).worst == 0
    wrong = program.with_outputs((terms.add(Operation("add"), (softmax, softmax)),))
    with pytest.raises(EquivalenceError):
        check_equivalence(program, wrong)


def test_a_missing_runtime_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", FLOAT, (2,))], [value("y", FLOAT, (2,))])
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[onnx\]'"):
        run_onnx(model, {"x": np.zeros(2, np.float32)})


def test_opaque_operations_run_without_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """By ONNX's own reference implementation."""
    from graphopt.rewrite.io import onnx_call
    from graphopt.rewrite.ir.execution import Executor

    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    onnx_call._runner.cache_clear()
    nodes = [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    program = import_onnx(model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))]))
    (y,) = Executor(program)([np.arange(6, dtype=np.float32).reshape(2, 3)])
    assert np.allclose(y, np.repeat([[1 / (1 + np.e**3)], [1 / (1 + np.e**-3)]], 3, axis=1), rtol=1e-5)
    onnx_call._runner.cache_clear()
