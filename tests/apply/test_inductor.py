"""Fusion decisions in the user's own program: generated code is otherwise where that is asked, outputs are equal."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import run_and_get_code

from graphopt.apply.compile_backend import decided
from graphopt.costs.inductor import Asked
from graphopt.inductor.captured import capture_compiled
from graphopt.inductor.lowering import digest_of
from graphopt.readers.pytorch.program_file import FxProgram, key_of, packed_program, unpacked_program


class Tiny(nn.Module):
    """`sin` has one reader forward, so that Inductor inlines it; backward `cos` has one."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, 48))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.sin(x * self.w) * 2.0).sum(-1)


X = torch.linspace(-3.0, 3.0, 64 * 48).reshape(64, 48)


@pytest.fixture(scope="module")
def programs() -> dict[str, FxProgram]:
    return capture_compiled(Tiny(), X)


def named(program: FxProgram, target: str) -> str:
    (name,) = (node.name for node in program.gm.graph.nodes if str(node.target) == target)
    return str(name)


def step(backend: str | Callable[..., Any]) -> tuple[list[Tensor], list[str]]:
    """(output and gradient, sources of forward and backward)."""
    torch._dynamo.reset()
    module = Tiny()

    def run() -> list[Tensor]:
        out = torch.compile(module, backend=backend)(X)
        out.backward(torch.linspace(1.0, 2.0, 64))
        assert module.w.grad is not None
        return [out.detach(), module.w.grad]

    with torch._inductor.config.patch(fx_graph_cache=False), torch._functorch.config.patch(enable_autograd_cache=False):
        return run_and_get_code(run)


def buffers(source: str) -> int:
    return source.count("= empty_strided_cpu(")


def test_a_key_is_that_of_the_file(programs: dict[str, FxProgram]) -> None:
    assert set(programs) == {"forward", "backward"}
    keys = [key_of(program.gm, program.phase) for program in programs.values()]
    read = [unpacked_program(packed_program(program), "here") for program in programs.values()]
    assert [key_of(program.gm, program.phase) for program in read] == keys and len(set(keys)) == 2


def test_what_is_decided_is_carried_out_forward_and_backward(programs: dict[str, FxProgram]) -> None:
    forward, backward = programs["forward"], programs["backward"]
    asked = {key_of(forward.gm, "forward"): Asked({named(forward, "aten.sin.default"): "cut"}, {"reads_threshold": 1}),
             key_of(backward.gm, "backward"): Asked({named(backward, "aten.cos.default"): "store"}, {})}  # fmt: skip
    carried = set[str]()
    usual, sources = step("inductor")
    made, changed = step(decided(asked, carried))
    assert carried == set(asked)
    assert [buffers(c) - buffers(s) for c, s in zip(changed, sources, strict=True)] == [1, 1]
    assert all(torch.equal(a, b) for a, b in zip(usual, made, strict=True))


def test_without_a_decision_the_code_is_inductors() -> None:
    made, usual = (step(backend)[1] for backend in (decided({"other": Asked({"sin": "store"}, {})}), "inductor"))
    assert [digest_of(source) for source in made] == [digest_of(source) for source in usual]
