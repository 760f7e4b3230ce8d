"""Small programs for the tests, and what they compute once compiled."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._inductor.codecache import PyCodeCache

from graphopt.graphs.readers.pytorch.program_file import FxProgram, make_inputs
from graphopt.hardware.inductor.captured import capture_step
from graphopt.hardware.inductor.lowering import Lowered, Request, compile_source, lower


def two_readers(x: Tensor, w: Tensor) -> list[Tensor]:
    """`exp` has two readers, so Inductor stores it; `add` has one, so it does not; the sums are stored."""
    heavy = (x + 1.0).exp()
    return [heavy * w, (heavy - w).sum(-1)]


def steep(x: Tensor) -> list[Tensor]:
    """Inlined everywhere, its expression doubles at each of 40 steps."""
    for _ in range(40):
        x = x * (x - 0.5)
    return [x]


def adam(p: Tensor, g: Tensor, m: Tensor) -> list[Tensor]:
    """Writes into its inputs."""
    m.mul_(0.9).add_(g, alpha=0.1)
    p.sub_(1e-3 * m / (m.abs().sqrt() + 1e-8))
    return []


def two_reader_program() -> FxProgram:
    return capture_step(two_readers, [torch.randn(64, 48), torch.randn(48)])


def only(program: FxProgram, target: str) -> str:
    """Name of the one node that calls an operator."""
    (name,) = (node.name for node in program.gm.graph.nodes if str(node.target) == target)
    return str(name)


def lowered(program: FxProgram, requests: Mapping[str, Request] | None = None, **knobs: int) -> Lowered:
    return lower(program, requests or {}, knobs)


def results(program: FxProgram, made: Lowered) -> list[Tensor]:
    """What the compiled source returns, and its inputs after that."""
    inputs = make_inputs(program.inputs, 0, program.device)
    path = compile_source(made)
    module: Any = PyCodeCache.load_by_key_path(path.stem, str(path))
    return [*module.call(list(inputs)), *inputs]


def eager(program: FxProgram) -> list[Tensor]:
    inputs = make_inputs(program.inputs, 0)
    return [*program.gm(*inputs), *inputs]


def assert_same(mine: list[Tensor], theirs: list[Tensor]) -> None:
    """To the bit."""
    assert all(a.equal(b) for a, b in zip(mine, theirs, strict=True))


def assert_close(mine: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)
