"""Bytes that live during a run: by hand, and the table against runs in random orders; an order acted on in a module."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hardware.small_programs import INPUTS, Branches, branches, plans
from torch import Tensor, nn

import graphopt
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.live_storage import legal, orders_of, peaks
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.program_file import packed_program
from graphopt.hardware.apply.order import OrderedModule, apply_order
from graphopt.hardware.costs.live_bytes import LiveBytes
from graphopt.hardware.program_run import Session, as_program


class Chain(nn.Module):
    """x [256] -> y = exp(relu(x)), and exp of a view of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu().exp()
        return y, y.view(16, 16).exp()


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).exp().sum()


def captured(module: nn.Module, x: Tensor, backward: bool = False) -> Graph:
    return capture(module, (x,), name="small", family="small", backward=backward, keep_program=True)


def test_bytes_by_hand() -> None:
    """Of 1024 bytes each. Of a chain: x and relu; then x is gone: relu and y; y and its exponential; never three. A
    weight stays: x or its exponential, the weight, the product."""
    session = Session(captured(Chain(), torch.zeros(256)), "cpu", 1)
    assert (session.table.base, session.own_peak) == (1024, 2048)
    assert peaks(session.table, session.table.ordered[None]).tolist() == [2048]
    assert Session(captured(Weighted(), torch.zeros(256)), "cpu", 1).own_peak == 3 * 1024


@pytest.mark.parametrize("backward", [False, True])
def test_the_table_prices_what_runs_count(backward: bool) -> None:
    """In every order, outputs equal bit by bit (else `run` raises)."""
    graph = branches(backward)
    session = Session(graph, "cpu", 1)
    orders = orders_of(session.table, np.random.default_rng(0).random((25, graph.num_ops)))
    assert all(legal(session.table, order) for order in orders)
    priced = peaks(session.table, orders)
    assert [session.run(order) for order in orders] == priced.tolist()
    assert len(set(priced.tolist())) > 1 or not backward


def test_executed_and_computed_prices_are_one() -> None:
    graph = branches(True)
    batch = plans(graph, np.random.default_rng(1).random((4, graph.num_ops)))
    computed, executed = (
        LiveBytes(name="live_bytes", device="cpu", execute=execute, threads=1).price(batch) for execute in (False, True)
    )
    assert computed.cost.tolist() == executed.cost.tolist()


def test_other_bits_are_an_error_and_an_order_before_what_it_reads_is_refused() -> None:
    session = Session(branches(False), "cpu", 1)
    with pytest.raises(GraphError, match="before what it reads"):
        session.run(session.table.ordered[::-1])
    session.inputs[0] = session.inputs[0] + 1
    with pytest.raises(RuntimeError, match="other bits"):
        session.run(session.table.ordered)


def test_a_stored_graph_brings_its_program(tmp_path) -> None:  # type: ignore[no-untyped-def]
    graph = branches(True)
    kept = replace(graph, program=packed_program(as_program(graph.program)))
    save_graph(tmp_path / "g.npz", kept)
    found = load_graph(tmp_path / "g.npz")
    own, stored = (Session(g, "cpu", 1) for g in (graph, found))
    assert found.hash == graph.hash and stored.own_peak == own.own_peak and stored.expected == own.expected


def test_indices_are_within_their_bounds() -> None:
    """The embedding has 10 rows."""
    graph = branches(False)
    spec = next(s for s in as_program(graph.program).inputs if s.dtype == "int64" and s.shape == INPUTS[1].shape)
    assert spec.numbers == (0.0, 9.0)


def test_what_cannot_be_run_is_a_sentence() -> None:
    graph = branches(False)
    cost = LiveBytes(name="live_bytes", device="cpu", execute=False, threads=1)
    with pytest.raises(GraphError, match="has no torch program to run"):
        cost.price(plans(replace(graph, program=None), np.zeros((1, graph.num_ops))))
    apart = plans(graph, np.zeros((1, graph.num_ops)))
    with pytest.raises(UserError, match="one device"):
        cost.price(replace(apart, device=(np.arange(graph.num_ops) % 2)[None].astype(np.int16)))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="needs a GPU"):
            LiveBytes(name="live_bytes", device="cuda", execute=False, threads=1).price(apart)


# --- An order acted on in the user's module.


def as_given(module: nn.Module, graph: Graph) -> OrderedModule:
    return apply_order(module, plans(graph, np.zeros((1, graph.num_ops)))).module


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


def test_what_optimize_finds_is_applied() -> None:
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    answer = graphopt.optimize(
        module, torch.randn(8, 32), task="scheduling", cost="live_bytes", budget=50, backward=True
    )
    applied = apply_order(module, answer.plan)
    assert (applied.before, applied.after) == (answer.default_price, answer.price)
    assert not answer.check()


def test_it_is_the_module_with_its_weights_of_now() -> None:
    module = Branches().eval()
    graph = branches(False, module)
    applied = as_given(module, graph)
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
        as_given(nn.Linear(3, 3), graph)
    applied = as_given(module, graph)
    with pytest.raises(GraphError, match="other shapes"):
        applied(INPUTS[0][:4], INPUTS[1][:4])


class Rows(nn.Module):
    """Makes its input contiguous, of which nothing is left in a program that was captured from a contiguous one."""

    def forward(self, x: Tensor) -> Tensor:
        return x.contiguous().as_strided((2, 48), (48, 1)).sin()


def test_inputs_of_another_memory_layout_are_refused() -> None:
    x, module = torch.randn(2, 3, 4, 4), Rows()
    applied = as_given(module, captured(module, x))
    assert torch.equal(applied(x)[0], module(x))
    with pytest.raises(GraphError, match="other shapes, types or memory layouts"):
        applied(x.contiguous(memory_format=torch.channels_last))


def test_gradients_may_arrive_in_any_memory_layout() -> None:
    module = nn.Conv2d(3, 3, 1)
    x = torch.randn(2, 3, 4, 4)
    applied = as_given(module, captured(module, x, backward=True))
    seed = torch.randn(2, 3, 4, 4)
    turned = seed.contiguous(memory_format=torch.channels_last)
    for a, b in zip(applied(x, seeds=[seed]), applied(x, seeds=[turned]), strict=True):
        assert a is None or torch.equal(a, b)
