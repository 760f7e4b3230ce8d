"""What programs compute: by torch, by ONNX Runtime, and after random rewriting."""

import sys
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from math import lcm
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper
from onnx_models import FLOAT, model_of, value
from random_programs import random_program

from graphopt.core.errors import ConfigError
from graphopt.rewrite.equivalence import (
    EquivalenceError,
    check_equivalence,
    compared,
    distinguishing_weights,
    run_onnx,
    with_probes,
)
from graphopt.rewrite.io.onnx_import import import_onnx
from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.execution import Executor, apply
from graphopt.rewrite.ir.program_builder import ProgramBuilder, RandomWeights, with_random_weights
from graphopt.rewrite.ir.terms import Program, reachable, substitute
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Operation
from graphopt.rewrite.rules.matching import Matcher
from graphopt.rewrite.rules.parsing import load_rules

# --- Torch computes what the exact semantics says.

RNG = np.random.default_rng


def agree(program: Program, rng: np.random.Generator) -> None:
    leaves = reference.random_leaves(program, rng)
    for term in program.inputs:  # also those that the outputs do not need
        leaves.setdefault(term, rng.integers(-4, 5, program.terms.shape(term)))
    names = {program.terms.operation[t].params[0]: value for t, value in leaves.items() if t not in program.inputs}
    ready = Executor(Program(program.terms, program.outputs, program.output_names, program.inputs,
                             {n: v.astype(np.float32) for n, v in names.items()}), double=True)  # fmt: skip
    given = [leaves[t].astype(np.float32) for t in program.inputs]
    found, once = ready(given), Executor(ready.program, double=True, once=True)(given)
    assert all(map(np.array_equal, found, once))
    for ours, exact in zip(found, reference.run(program.terms, program.outputs, leaves), strict=True):
        assert ours.dtype == np.float64
        assert np.array_equal(ours, exact) or np.abs(exact).max() > 2**50


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_on_integers(seed: int) -> None:
    for part in range(25):
        rng = RNG([seed, part])
        agree(random_program(rng, 12), rng)


class Fresh(Mapping[str, Any]):
    """Weights that are made anew when they are read, counting those that are held."""

    def __init__(self, shape: tuple[int, ...], names: list[str]) -> None:
        self.shape, self.names, self.held, self.most = shape, names, 0, 0

    def __getitem__(self, name: str) -> Any:
        made = np.full(self.shape, 0.5, np.float64)
        self.held += 1
        self.most = max(self.most, self.held)
        weakref.finalize(made, self._gone)
        return made

    def _gone(self) -> None:
        self.held -= 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@pytest.mark.parametrize(("once", "most"), [(True, 1), (False, 5)])
def test_what_runs_once_holds_a_weight_at_a_time(once: bool, most: int) -> None:
    b = ProgramBuilder()
    x, weights = b.input((2, 2)), [b.weight(2, 2) for _ in range(5)]
    program = b.build(reduce(b.matmul, weights, x))
    names = [program.terms.operation[weight].params[0] for weight in weights]
    fresh = Fresh((2, 2), names)
    [found] = Executor(replace(program, weights=fresh), double=True, once=once)([np.ones((2, 2))])
    assert found.tolist() == [[1.0, 1.0], [1.0, 1.0]] and fresh.most == most and fresh.held in (0, most)


@pytest.mark.parametrize("seed", range(4))
def test_a_program_stays_on_its_device(seed: int) -> None:
    """`meta` tells shapes without computing, and refuses to meet tensors of a CPU, as a GPU does."""
    rng = RNG(seed)
    program = random_program(rng, 12)
    leaves = reference.random_leaves(program, rng)
    names = {program.terms.operation[t].params[0]: v for t, v in leaves.items() if t not in program.inputs}
    weights = {name: value.astype(np.float32) for name, value in names.items()}
    inputs = [np.zeros(program.terms.shape(t), np.float32) for t in program.inputs]
    ready = Program(program.terms, program.outputs, program.output_names, program.inputs, weights)
    here, there = (Executor(ready, device=device) for device in ("cpu", "meta"))
    made = there.results(there.given(inputs))
    assert [(x.device.type, tuple(x.shape)) for x in made] == [("meta", np.shape(x)) for x in here(inputs)]


def test_the_random_programs_cover_the_exact_vocabulary() -> None:
    met = {o.name for seed in range(200) for o in random_program(RNG(seed), 12).terms.operation}
    inexact = {"pool_avg", "mean_kernel", "tanh", "sigmoid", "rsqrt", "batch_norm", "opaque", "softmax", "layer_norm"}
    assert met | inexact == set(VOCABULARY)


@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (2, 3)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("pads", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 1, 1, 0)])
def test_means_over_windows(kernel: Any, strides: Any, pads: Any) -> None:
    """The exact semantics scales them by the least common multiple of all counts."""
    x = RNG(0).integers(-9, 10, (2, 3, 6, 7))
    scale = reduce(lcm, range(1, kernel[0] * kernel[1] + 1))
    found = apply(Operation("pool_avg", (kernel, strides, pads)), [torch.from_numpy(x.astype(np.float64))])
    assert np.allclose(found.numpy() * scale, reference.pool("pool_avg", x, kernel, strides, pads), rtol=1e-12)


@pytest.mark.parametrize("pads", [(0, 0, 1, 2), (1, 0, 2, 1), (2, 1, 0, 0)])
@pytest.mark.parametrize("name", ["pool_avg", "pool_max"])
def test_a_window_larger_than_what_it_covers(name: str, pads: Any) -> None:
    x, kernel, strides = RNG(0).integers(-9, 10, (2, 3, 3, 7)), (4, 3), (4, 2)
    scale = reduce(lcm, range(1, 13)) if name == "pool_avg" else 1
    found = apply(Operation(name, (kernel, strides, pads)), [torch.from_numpy(x.astype(np.float64))])
    assert np.allclose(found.numpy() * scale, reference.pool(name, x, kernel, strides, pads), rtol=1e-12)


@pytest.mark.parametrize("name", ["pool_avg", "pool_max"])
def test_a_window_of_thousands_takes_no_memory(name: str) -> None:
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    found = apply(Operation(name, ((10**6, 10**6), (10**6, 10**6), (0, 0, 10**6 - 3, 10**6 - 4))), [x])
    assert found.tolist() == [[[[5.5 if name == "pool_avg" else 11.0]]]]


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_smooth_activations_stand_alone_and_in_products(name: str) -> None:
    x = torch.linspace(-3, 3, 9, dtype=torch.float64).reshape(3, 3)
    known = np.tanh(x.numpy()) if name == "tanh" else 1 / (1 + np.exp(-x.numpy()))
    eye = torch.eye(3, dtype=torch.float64)
    kernel = torch.ones((1, 1, 1, 1), dtype=torch.float64)
    for operation, inputs in (
        (Operation(name), [x]),
        (Operation("matmul", (name,)), [x, eye]),
        (Operation("conv", ((1, 1), (0, 0, 0, 0), name)), [x[None, None], kernel]),
    ):
        assert np.allclose(apply(operation, inputs).numpy().reshape(3, 3), known, rtol=1e-14)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_batch_norm_is_its_formula(rank: int) -> None:
    rng = RNG(1)
    x, (scale, bias, mean) = rng.standard_normal((2, 3, 4, 5)[:rank]), rng.standard_normal((3, 3))
    variance = rng.uniform(0.5, 2, 3)
    wide = (3, *(1,) * (rank - 2))
    known = (x - mean.reshape(wide)) * (scale / np.sqrt(variance + 0.25)).reshape(wide) + bias.reshape(wide)
    inputs = [torch.from_numpy(a) for a in (x, scale, bias, mean, variance)]
    assert np.allclose(apply(Operation("batch_norm", (0.25,)), inputs).numpy(), known, rtol=1e-12)


def test_what_depends_on_weights_alone_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.rewrite.ir import execution

    b = ProgramBuilder()
    x = b.input((2, 4))
    program = b.build(b.matmul(x, b.unary("relu", b.unary("tanh", b.weight(4, 4)))))
    ready, calls = Executor(program), list[str]()
    original = execution.apply
    monkeypatch.setattr(execution, "apply", lambda o, i, dtype: calls.append(o.name) or original(o, i, dtype))
    ready([np.ones((2, 4), np.float32)])
    assert calls == ["matmul"]


def test_wrong_inputs_are_named() -> None:
    b = ProgramBuilder()
    program = b.build(b.unary("relu", b.input((2, 4))))
    with pytest.raises(ValueError, match="takes 1 inputs, not 2"):
        Executor(program)([np.ones((2, 4))] * 2)
    with pytest.raises(ValueError, match=r"'input0' has the shape \(2, 4\), not \(4,\)"):
        Executor(program)([np.ones(4)])


def test_random_weights_repeat_and_keep_signals_in_range() -> None:
    b = ProgramBuilder()
    x = b.input((1, 16, 16, 16))
    for _ in range(30):
        x = b.conv(x, 16, 3, activation="relu", bias=True)
    program = b.build(x)
    (y,) = Executor(program)([RNG(0).standard_normal((1, 16, 16, 16))])
    assert 1e-2 < np.abs(y).mean() < 1e2
    assert isinstance(program.weights, RandomWeights)
    assert np.array_equal(program.weights["weight3"], program.weights["weight3"])
    assert not np.array_equal(program.weights["weight0"], program.weights["weight2"])
    other = with_random_weights(program, 1)
    assert not np.array_equal(other.weights["weight3"], program.weights["weight3"])
    assert set(other.weights) == set(program.weights)


# --- The check of rewritten programs: what is equal passes, what is a little wrong does not.


def merged(split: tuple[int, int] = (3, 5), scale: float | None = None) -> tuple[Program, Program]:
    """x v and x w apart, and as one product that is split; the latter wrong if it is scaled or cut elsewhere."""
    b = ProgramBuilder()
    x, v, w = b.input((4, 8)), b.weight(8, 3), b.weight(8, 5)
    apart = b.build(b.unary("relu", b.matmul(x, v)), b.unary("tanh", b.matmul(x, w)))
    both = b.matmul(x, b.concat(1, v, w))
    if scale is not None:
        both = b.mul(both, b.op("fill", scale, (1, 1)))
    parts = b.op("split", 1, split, inputs=[both])
    first, second = (b.op("item", i, inputs=[parts]) for i in (0, 1))
    return apart, apart.with_outputs((b.unary("relu", first), b.unary("tanh", second)))


def test_a_right_rewrite_agrees_to_rounding() -> None:
    apart, together = merged()
    assert check_equivalence(apart, together) < 1e-14


def test_a_slightly_wrong_rewrite_is_an_error() -> None:
    apart, together = merged(scale=1.0001)
    with pytest.raises(EquivalenceError, match=r"output 'output0' differs from the original's by 0\.0001"):
        check_equivalence(apart, together)
    assert check_equivalence(apart, together, tolerance=1e-3) == pytest.approx(1e-4, rel=0.2)


def test_parts_of_another_size_and_a_relu_too_many_are_errors() -> None:
    with pytest.raises(EquivalenceError, match="differ in number, shape or type"):
        check_equivalence(*merged(split=(5, 3)))
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


@pytest.mark.parametrize(("operator", "named"), [("Softmax", "softmax"), ("Hardmax", "Hardmax")])
def test_what_saturates_hides_nothing(operator: str, named: str) -> None:
    """In the vocabulary, and opaque."""
    nodes = [helper.make_node("Mul", ["x", "c"], ["l"]), helper.make_node(operator, ["l"], ["y"])]
    model = model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))], {"c": np.float32([1e4])})
    program = import_onnx(model)
    assert check_equivalence(program, program) == 0
    terms = program.terms
    (y,) = program.outputs
    item = terms.operation[y].name == "item"
    softmax = terms.inputs[y][0] if item else y
    (logits,) = terms.inputs[softmax]
    wrong = terms.add(terms.operation[softmax], (terms.add(Operation("add"), (logits, logits)),))
    wrong = terms.add(Operation("item", (0,)), (wrong,)) if item else wrong
    first, second = with_probes(program, program.with_outputs((wrong,)))
    with pytest.raises(EquivalenceError, match=rf"'input of {named}"):
        compared(first, second, [RNG(0).standard_normal((2, 3))], 1e-5)


def test_weights_that_could_hide_a_mistake_are_drawn() -> None:
    b, rng = ProgramBuilder(), RNG(0)
    own, sparse = rng.standard_normal((512, 256)), rng.standard_normal((512, 256)) * (rng.random((512, 256)) > 0.2)
    given = {"ones": np.ones((512, 256)), "small": rng.standard_normal((8, 256)), "own": own, "sparse": sparse}
    given = {name: value.astype(np.float32) for name, value in given.items()}
    given |= {"copy": given["own"].copy(), "more": rng.standard_normal((512, 256)).astype(np.float32)}
    x = b.input((4, 256))
    terms = [b.terms.add(Operation("weight", (name, value.shape, "float32"))) for name, value in given.items()]
    program = replace(
        b.build(*(b.matmul(x, b.terms.add(Operation("transpose", ((1, 0),)), (t,))) for t in terms)), weights=given
    )
    found = distinguishing_weights(program, 0)
    assert {name for name in given if np.array_equal(found[name], given[name])} == {"own", "more"}
    drawn = with_random_weights(program, 0)
    assert distinguishing_weights(drawn, 1) is drawn.weights


def test_infinities_of_a_mask_agree_in_the_same_places() -> None:
    b = ProgramBuilder()
    x = b.input((2, 2))
    mask = b.op("fill", float("-inf"), (2, 1))
    first, second = b.concat(1, x, mask), b.concat(1, mask, x)
    program = b.build(first)
    assert check_equivalence(program, program) == 0
    with pytest.raises(EquivalenceError, match="differs"):
        check_equivalence(program, program.with_outputs((second,)))


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
    nodes = [helper.make_node("LogSoftmax", ["x"], ["y"], axis=0)]
    program = import_onnx(model_of(nodes, [value("x", FLOAT, (2, 3))], [value("y", FLOAT, (2, 3))]))
    (y,) = Executor(program)([np.arange(6, dtype=np.float32).reshape(2, 3)])
    assert np.allclose(np.exp(y), np.repeat([[1 / (1 + np.e**3)], [1 / (1 + np.e**-3)]], 3, axis=1), rtol=1e-5)
    onnx_call._runner.cache_clear()


# --- Random sequences of rules on random programs: what they compute, on exact integers, never changes.

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


@pytest.mark.parametrize("seed", range(4))
def test_rules_in_random_programs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    applied = sum(rewritten(random_program(rng, 10, exact=False), 8, rng) for _ in range(100))
    assert applied > 120
