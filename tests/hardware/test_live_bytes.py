"""Bytes that live during a run: by hand, and the table against runs in random orders."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hardware.small_programs import INPUTS, branches, plans
from torch import Tensor, nn

from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.live_storage import legal, orders_of, peaks
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.graphs.readers.pytorch.capture import capture
from graphopt.graphs.readers.pytorch.program_file import packed_program
from graphopt.hardware.costs.live_bytes import LiveBytes
from graphopt.hardware.execution.runnable import as_program
from graphopt.hardware.execution.session import Session


class Chain(nn.Module):
    """x [256] -> y = exp(relu(x)), and exp of a view of it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu().exp()
        return y, y.view(16, 16).exp()


def test_bytes_of_a_chain_by_hand() -> None:
    """Of 1024 bytes each: x and relu; then x is gone: relu and y; y and its exponential. Never three."""
    graph = capture(Chain(), torch.zeros(256), name="chain", family="c", backward=False, keep_program=True)
    session = Session(graph, "cpu", 1)
    assert session.table.base == 1024
    assert session.own_peak == 2048
    assert peaks(session.table, session.table.ordered[None]).tolist() == [2048]


class Weighted(nn.Module):
    """The weight stays: x [256] goes after the product, which is 1024 bytes as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).exp().sum()


def test_weights_stay_and_inputs_go() -> None:
    graph = capture(Weighted(), torch.zeros(256), name="weighted", family="w", backward=False, keep_program=True)
    assert Session(graph, "cpu", 1).own_peak == 3 * 1024  # x or its exponential, the weight, the product


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


def test_other_bits_are_an_error() -> None:
    session = Session(branches(False), "cpu", 1)
    session.inputs[0] = session.inputs[0] + 1
    with pytest.raises(RuntimeError, match="other bits"):
        session.run(session.table.ordered)


def test_an_order_before_what_it_reads_is_refused() -> None:
    session = Session(branches(False), "cpu", 1)
    with pytest.raises(GraphError, match="before what it reads"):
        session.run(session.table.ordered[::-1])


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
