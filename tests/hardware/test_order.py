"""An order acted on in the user's module."""

import numpy as np
import pytest
import torch
from hardware.small_programs import INPUTS, Branches, branches, plans

from graphopt.core.graph import GraphError
from graphopt.core.live_storage import orders_of, peaks
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.hardware.apply.order import apply_order
from graphopt.hardware.execution.session import Session


@pytest.mark.parametrize("backward", [False, True])
def test_the_module_computes_the_same_bits_in_another_order(backward: bool) -> None:
    module = Branches()
    graph = branches(backward, module)
    priorities = np.stack([np.random.default_rng(0).random(graph.num_ops), -np.arange(float(graph.num_ops))])
    random, own = (apply_order(module, plans(graph, priority[None])) for priority in priorities)
    results = []
    for applied in (random, own):
        torch.manual_seed(5)
        results.append(applied.module(*INPUTS))
    assert all(torch.equal(a, b) for a, b in zip(*results) if a is not None)
    assert own.before == own.after == random.before
    table = Session(graph, "cpu", 1).table
    order = orders_of(table, np.random.default_rng(0).random((1, graph.num_ops)))
    assert random.after == int(peaks(table, order)[0])


def test_it_is_the_module_with_its_weights_of_now() -> None:
    module = Branches().eval()
    graph = branches(False, module)
    applied = apply_order(module, plans(graph, np.zeros((1, graph.num_ops)))).module
    with torch.no_grad():
        module.back.bias += 1
        assert torch.allclose(applied(*INPUTS)[0], module(*INPUTS))


def test_gradients_are_autograds() -> None:
    module = Branches()
    module.drop.p = 0.0
    graph = branches(True, module)
    applied = apply_order(module, plans(graph, np.random.default_rng(0).random((1, graph.num_ops)))).module
    output, *gradients = applied(*INPUTS)
    module.train()(*INPUTS).backward(torch.ones_like(output))
    for own, parameter in zip(gradients, module.parameters(), strict=True):
        assert torch.allclose(own, parameter.grad, atol=1e-5)


def test_another_module_or_other_inputs_are_a_sentence() -> None:
    module = Branches()
    graph = branches(False, module)
    with pytest.raises(GraphError, match="not captured from this module"):
        apply_order(torch.nn.Linear(3, 3), plans(graph, np.zeros((1, graph.num_ops))))
    applied = apply_order(module, plans(graph, np.zeros((1, graph.num_ops)))).module
    with pytest.raises(GraphError, match="other shapes"):
        applied(INPUTS[0][:4], INPUTS[1][:4])


class Rows(torch.nn.Module):
    """Makes its input contiguous, of which nothing is left in a program that was captured from a contiguous one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().as_strided((2, 48), (48, 1)).sin()


def test_inputs_of_another_memory_layout_are_refused() -> None:
    x, module = torch.randn(2, 3, 4, 4), Rows()
    graph = capture(module, (x,), name="rows", family="rows", backward=False, keep_program=True)
    applied = apply_order(module, plans(graph, np.zeros((1, graph.num_ops)))).module
    assert torch.equal(applied(x)[0], module(x))
    with pytest.raises(GraphError, match="other shapes, types or memory layouts"):
        applied(x.contiguous(memory_format=torch.channels_last))


def test_gradients_may_arrive_in_any_memory_layout() -> None:
    module = torch.nn.Conv2d(3, 3, 1)
    x = torch.randn(2, 3, 4, 4)
    graph = capture(module, (x,), name="conv", family="conv", backward=True, keep_program=True)
    applied = apply_order(module, plans(graph, np.zeros((1, graph.num_ops)))).module
    seed = torch.randn(2, 3, 4, 4)
    turned = seed.contiguous(memory_format=torch.channels_last)
    for a, b in zip(applied(x, seeds=[seed]), applied(x, seeds=[turned]), strict=True):
        assert a is None or torch.equal(a, b)
