"""Programs as graphs, with what Inductor decides by itself; what `torch.compile` makes of functions and modules."""

import pytest
import torch
from torch import Tensor, nn

from graphopt.core.compiler import compiler_choice
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.program_file import FxProgram
from graphopt.hardware.inductor.captured import as_graph, capture_compiled, capture_step
from graphopt.hardware.inductor.lowering import Request
from tests.hardware.programs import adam, lowered, only, two_reader_program


def graph_of(program: FxProgram) -> Graph:
    return as_graph(program, name="g", family="f")


def said(graph: Graph) -> dict[str, bool]:
    return {name: of["stored"] for name, of in zip(graph.op_names, graph.attributes) if "stored" in of}


def test_ops_with_a_choice_say_what_the_compiler_does() -> None:
    program = two_reader_program()
    exp, add = only(program, "aten.exp.default"), only(program, "aten.add.Tensor")
    graph = graph_of(program)
    assert said(graph) == {exp: True, add: False, only(program, "aten.sub.Tensor"): False}  # no output, nor the sum
    asked = compiler_choice(graph)
    assert asked is not None and asked.inline.sum() == 2 and graph.program is program


def test_a_choice_is_one() -> None:
    """Whatever has the attribute can be stored and can be inlined, and nothing else can be inlined."""
    norm = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU())
    program = capture_compiled(norm, torch.randn(4, 8))["backward"]
    free = set(said(graph_of(program)))
    calls = [node.name for node in program.gm.graph.nodes if node.op == "call_function"]
    assert 5 < len(free) < len(calls)
    assert not free & lowered(program, dict.fromkeys(calls, Request.INLINE)).stored
    assert free <= lowered(program, dict.fromkeys(free, Request.STORE)).stored


def test_updates_in_place_are_ops() -> None:
    graph = graph_of(capture_step(adam, [torch.randn(50) for _ in range(3)]))
    assert sum(name.startswith("copy_") for name in graph.op_names) == 2
    assert graph.is_output.sum() == 2 and not graph.is_weight.any()


def test_a_step_takes_its_own_gradients() -> None:
    def step(x: Tensor, w: Tensor) -> list[Tensor]:
        w = w.detach().requires_grad_(True)
        return list(torch.autograd.grad((x @ w).tanh().sum(), w))

    graph = graph_of(capture_step(step, [torch.randn(4, 8), torch.randn(8, 3)]))
    assert graph.is_output.sum() == 1 and len(graph.op_names) > 4


def test_a_function_without_gradients_is_one_graph_and_later_parts_are_numbered() -> None:
    def broken(x: Tensor) -> Tensor:
        x = x.exp()
        torch._dynamo.graph_break()
        return x.sum()

    made = capture_compiled(lambda x: [x.exp().sum(-1)], [torch.randn(4, 8)])
    assert list(made) == ["inference"]
    assert [spec.shape for spec in made["inference"].inputs] == [(4, 8)]
    assert list(capture_compiled(broken, [torch.randn(4, 8)])) == ["inference", "inference.1"]


def test_what_cannot_be_captured_is_one_sentence() -> None:
    with pytest.raises(GraphError) as error:
        capture_step(lambda x: [x[x > 0]], [torch.randn(4)])
    assert "\n" not in str(error.value)
    with pytest.raises(GraphError, match="no graph"):
        capture_compiled(lambda x: 3, [torch.randn(4)])
