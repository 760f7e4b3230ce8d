"""Loops as they are read from one lowering, against what the lowering of each plan makes."""

import random
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.costs.loops.estimate import Estimate, Rules
from graphopt.costs.loops.loop_bodies import Loop
from graphopt.graphs.library.own_programs import PROGRAMS
from graphopt.graphs.readers.pytorch.program_file import FxProgram, packed_program
from graphopt.hardware.costs.calibrated import Calibrated
from graphopt.hardware.inductor.captured import as_graph, capture_step, whole_step
from graphopt.hardware.inductor.loop_reader import loop_program
from graphopt.hardware.inductor.lowering import Request, lower, own_choices
from tests.costs.test_inductor_prices import task
from tests.hardware.programs import two_reader_program
from tests.toy import toy_graph

PRESET = "epyc_zen5_avx512_torch213"


def normalised(x: Tensor, w: Tensor) -> list[Tensor]:
    """Values per row, per column and per element, with a gradient-like sum over rows."""
    scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    y = torch.tanh(x * scale * w) + x * scale
    return [y, (y * x).sum(0), torch.softmax(y * w.exp(), -1)]


@lru_cache
def normalised_program() -> tuple[FxProgram, dict[str, bool]]:
    program = capture_step(normalised, [torch.randn(96, 64), torch.randn(64)])
    return program, own_choices(program)


def test_loops_are_those_of_stored_values() -> None:
    program = two_reader_program()
    made = loop_program(program, list(own_choices(program)))
    loops = [step for step in made.steps if isinstance(step, Loop)]
    assert {name for loop in loops for name in loop.ops} == {"add", "exp", "mul", "sub", "reduction.sum"}
    assert {(loop.shape, loop.reduced) for loop in loops} == {((64, 48), ()), ((64,), (48,))}
    assert sum(made.buffers[loop.buffer].kept for loop in loops) == 2


@pytest.mark.parametrize("seed", range(8))
def test_plans_are_predicted_as_they_are_lowered(seed: int) -> None:
    """Which values are stored, after Inductor's own rules where nothing is asked, and how many loops there are."""
    program, own = normalised_program()
    rng = random.Random(seed)
    asked = {name: not stored for name, stored in own.items() if rng.random() < (0.1, 0.5)[seed % 2]}
    made = lower(program, {n: Request.STORE if store else Request.INLINE for n, store in asked.items()}, {})
    found = Estimate(loop_program(program, list(own))).made(asked, frozenset(), Rules())
    assert found.stored == made.stored & set(own)
    assert abs(len(found.nests) - made.features["nests"]) <= 1 and found.kernels == made.features["kernels"]


def graph_of(name: str) -> Graph:
    program = capture_step(*whole_step(*PROGRAMS[name]()))
    return replace(as_graph(program, name=name, family=name), program=packed_program(program))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if number % 4 == 0 else pytest.mark.slow)
        for number, name in enumerate(sorted(PROGRAMS))
    ],
)
def test_every_own_program_has_a_price(name: str) -> None:
    graph, fusion = graph_of(name), task()
    cost = Calibrated(name="calibrated", preset=PRESET)
    decisions = np.repeat(fusion.initial(graph)[None], 3, 0)
    decisions[1, :, 0] = 1
    decisions[2, :, 0] = 0
    prices = cost.price(fusion.realise(graph, decisions)).cost
    assert (prices > 1e-6).all() and (prices < 10.0).all()
    assert (cost.price(fusion.realise(graph, decisions[:1])).cost == prices[:1]).all()


def test_graphs_of_no_compiler_are_refused() -> None:
    from tests.costs.test_inductor_prices import task

    graph = toy_graph(4)
    with pytest.raises(UserError, match="dataset=lowered"):
        Calibrated(name="calibrated", preset=PRESET).price(task(None).realise(graph, task(None).initial(graph)[None]))
