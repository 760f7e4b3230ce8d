"""`expert`: layers by their weights, in runs of alike work; and searches that start from the best heuristic."""

import itertools

import numpy as np
import pytest
from cells import placement, simulator
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.expert import Expert, by_layers, cut, layers
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_decisions
from graphopt.search.walks.local import Annealing, LocalSearch

GPU = Device(name="gpu", vector_flops=1e13, contraction_flops=6e13, bandwidth=1.5e12, launch=3e-6)
FOUR = Machine(name="four", devices=(GPU,) * 4, link_bandwidth=20e9, link_latency=1e-5)
TASK, COST = placement(FOUR), simulator(FOUR)


def recurrent(depth: int, steps: int, *, backward: bool = False) -> tuple[Graph, dict[str, int]]:
    """An unrolled recurrent network: layer l at step t reads layer l - 1 at t and itself at t - 1. With `backward`, ops
    that go back through layers and steps. Also the layer of every op that is no lookup."""
    b, of = GraphBuilder("recurrent", "recurrent"), {}
    table, weights = b.tensor((1000, 64), weight=True), [b.tensor((64, 64), weight=True) for _ in range(depth)]
    state, shown = [b.tensor((8, 64)) for _ in range(depth)], {}
    for t in range(steps):
        index = b.tensor((8,), dtype="int64")
        x = b.tensor((8, 64))
        b.op("gather", [table, index], [x], name=f"lookup{t}")
        for layer in range(depth):
            added, product, x_next = (b.tensor((8, 64)) for _ in range(3))
            b.op("add", [x, state[layer]], [added], name=f"add{layer}_{t}")
            b.op("matmul", [added, weights[layer]], [product], flops=1e9, name=f"product{layer}_{t}")
            b.op("tanh", [product], [x_next], name=f"tanh{layer}_{t}")
            of[f"product{layer}_{t}"] = of[f"tanh{layer}_{t}"] = layer
            state[layer] = x = shown[layer, t] = x_next
    if backward:
        for t in reversed(range(steps)):
            for layer in reversed(range(depth)):
                through, grad = b.tensor((8, 64)), b.tensor((8, 64))
                b.op("mul", [x, shown[layer, t]], [through], name=f"through{layer}_{t}")
                b.op("matmul", [through, weights[layer]], [grad], flops=1e9, name=f"grad{layer}_{t}")
                of[f"grad{layer}_{t}"] = layer
                x = grad
    b.output(x)
    return b.build(), of


@pytest.mark.parametrize("backward", [False, True])
def test_every_step_of_a_layer_is_of_that_layer_and_its_gradients_too(backward: bool) -> None:
    graph, of = recurrent(4, 5, backward=backward)
    found = dict(zip(graph.op_names, layers(graph).tolist(), strict=True))
    assert {name: found[name] for name in of} == of
    assert all(layer == -1 for name, layer in found.items() if name.startswith("lookup"))


def test_alike_layers_get_a_device_each() -> None:
    graph, of = recurrent(4, 5, backward=True)
    device = dict(zip(graph.op_names, by_layers(SchedulingInstance(graph, TASK)).tolist(), strict=True))
    assert {name: device[name] for name in of} == of
    assert {device[f"lookup{t}"] for t in range(5)} == {0}


def test_it_answers_without_a_price_and_with_one_evaluation() -> None:
    graph, _ = recurrent(4, 5)
    unpriced, _ = solve(Expert(name="expert"), graph, TASK, COST, evals=0)
    priced, _ = solve(Expert(name="expert"), graph, TASK, COST, evals=5)
    assert unpriced.evals == 0 and priced.evals == 1
    assert np.array_equal(unpriced.best[:, 0], by_layers(SchedulingInstance(graph, TASK)))
    assert priced.best_cost == min(priced.initial_cost, unpriced.best_cost) < priced.initial_cost


@settings(max_examples=60, deadline=None)
@given(time=st.lists(st.integers(0, 9), max_size=7), parts=st.integers(1, 4))
def test_the_cut_into_runs_is_the_best(time: list[int], parts: int) -> None:
    device = cut(np.array(time, float), parts)
    assert (np.diff(device) >= 0).all() and len(device) == len(time)
    best = min(
        max(sum(time[a:b]) for a, b in itertools.pairwise((0, *ends, len(time))))
        for ends in itertools.combinations_with_replacement(range(len(time) + 1), parts - 1)
    )
    assert max([sum(np.array(time)[device == d]) for d in range(parts)], default=0) == best


@pytest.mark.parametrize("search", [
    LocalSearch(name="hill", start="heuristic", hops=0, deltas=False),
    Annealing(name="annealing", start="heuristic", hot=0.05, cold=0.03, deltas=False),
])  # fmt: skip
def test_a_search_from_the_best_heuristic_bills_them_and_goes_on(search: LocalSearch | Annealing) -> None:
    graph, _ = recurrent(4, 6, backward=True)
    problem = TASK.open(graph, COST, evals=10**6)
    starts = heuristic_decisions(problem)
    best = float(COST.price(TASK.realise(graph, starts)).cost.min())
    assert best < problem.initial_cost and len({row.tobytes() for row in starts}) == len(starts)
    begun, _ = solve(search, graph, TASK, COST, evals=len(starts))
    gone_on, _ = solve(search, graph, TASK, COST, evals=len(starts) + 400)
    assert begun.best_cost == best and gone_on.best_cost <= best
    assert begun.evals == len(starts) and gone_on.evals == len(starts) + 400
