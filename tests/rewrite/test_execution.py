"""Torch computes what the exact semantics says."""

from functools import reduce
from math import lcm
from typing import Any

import numpy as np
import pytest
import torch
from random_programs import random_program

from graphopt.rewrite.ir import reference
from graphopt.rewrite.ir.execution import Executor, apply
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.ir.random_weights import RandomWeights, with_random_weights
from graphopt.rewrite.ir.terms import Program, Terms
from graphopt.rewrite.ir.vocabulary import VOCABULARY, Operation

RNG = np.random.default_rng


def agree(program: Program, rng: np.random.Generator) -> None:
    leaves = reference.random_leaves(program, rng)
    for term in program.inputs:  # also those that the outputs do not need
        leaves.setdefault(term, rng.integers(-4, 5, program.terms.shape(term)))
    names = {program.terms.operation[t].params[0]: value for t, value in leaves.items() if t not in program.inputs}
    ready = Executor(Program(program.terms, program.outputs, program.output_names, program.inputs,
                             {n: v.astype(np.float32) for n, v in names.items()}), double=True)  # fmt: skip
    found = ready([leaves[t].astype(np.float32) for t in program.inputs])
    for ours, exact in zip(found, reference.run(program.terms, program.outputs, leaves), strict=True):
        assert ours.dtype == np.float64
        assert np.array_equal(ours, exact) or np.abs(exact).max() > 2**50


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_on_integers(seed: int) -> None:
    for part in range(25):
        rng = RNG([seed, part])
        agree(random_program(rng, 12), rng)


def test_the_random_programs_cover_the_exact_vocabulary() -> None:
    met = {o.name for seed in range(200) for o in random_program(RNG(seed), 12).terms.operation}
    inexact = {"pool_avg", "mean_kernel", "tanh", "sigmoid", "rsqrt", "batch_norm", "opaque"}
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


def test_single_precision_stays_single_and_is_close() -> None:
    for seed in range(20):
        program = random_program(RNG(seed), 8, exact=False)
        given = [RNG(seed).standard_normal(program.terms.shape(t)).astype(np.float32) for t in program.inputs]
        wide = Executor(program, double=True)(given)
        for ours, exact in zip(Executor(program)(given), wide, strict=True):
            assert ours.dtype == np.float32
            assert np.abs(ours - exact).max() <= 1e-4 * np.abs(exact).max() + 1e-30


def test_what_depends_on_weights_alone_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.rewrite.ir import execution

    b = ProgramBuilder()
    x = b.input((2, 4))
    program = b.build(b.matmul(x, b.unary("relu", b.unary("tanh", b.weight(4, 4)))))
    ready, calls = Executor(program), list[str]()
    original = execution.apply
    monkeypatch.setattr(execution, "apply", lambda o, i: calls.append(o.name) or original(o, i))
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


def test_variances_are_positive() -> None:
    terms = Terms()
    x = terms.add(Operation("input", ("x", (2, 3), "float32")))
    vectors = [terms.add(Operation("weight", (f"v{i}", (3,), "float32"))) for i in range(4)]
    y = terms.add(Operation("batch_norm", (0.0,)), (x, *vectors))
    kept = {f"v{i}": np.zeros(3, np.float32) for i in range(4)}
    program = with_random_weights(Program(terms, (y,), ("y",), (x,), kept), 0)
    assert program.weights["v3"].min() > 0
