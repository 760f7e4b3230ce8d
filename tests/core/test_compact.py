"""Compact plans cost what the plans cost, to the last bit; what they leave out does not matter."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.config.construct import construct
from graphopt.core.compact import compact, expand, same, sent
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.oracles import check
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.datasets.random_graphs import random_graph
from graphopt.datasets.regal import in_units
from graphopt.tasks.task import AssignTask
from graphopt.utils import registry

MACHINES = ("gpu2", "gpu4_pcie", "sequential_send")  # the last one sends once for all destinations
TASKS = ("placement_scheduling", "joint", "scheduling", "placement", "fusion")


@cache
def parts(machine: str, task: str) -> tuple[Any, AssignTask, list[Simulator]]:
    made = construct(registry.option("machine", machine), "machine")
    costs = [
        construct(registry.option("cost", "simulator") | {"objective": o, "threads": 1}, "cost", {"machine": made})
        for o in ("runtime", "peak_memory")
    ]
    return made, construct(registry.option("task", task), "task", {"machine": made}), costs


@cache
def graphs() -> tuple[Graph, ...]:
    random = random_graph("watts_strogatz", 40, 1.0, np.random.default_rng(0), "ws")
    return (*(layered_graph(30, np.random.default_rng(s), f"l{s}") for s in range(2)), in_units(random, 2e4, 1.2e7))


def key_made(task: AssignTask, graph: Graph, seed: int, levels: int) -> Plans:
    """A plan of random keys; few levels make many ties."""
    keys = np.random.default_rng(seed).integers(0, levels, (1, task.key_count(graph))) / levels
    return task.realise_keys(graph, keys)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MACHINES), st.sampled_from(TASKS), st.integers(0, 2), st.integers(0, 10**6),
       st.sampled_from((2, 5, 2**24)))  # fmt: skip
def test_compact_plans_cost_the_same(machine: str, task_name: str, which: int, seed: int, levels: int) -> None:
    made, task, costs = parts(machine, task_name)
    plan = key_made(task, graphs()[which], seed, levels)
    stored = compact(plan, made.num_devices)
    again = expand(plan.graph, stored)
    assert check(again, made) == []
    for cost in costs:
        assert cost.price(again).cost[0] == cost.price(plan).cost[0]
    assert same(compact(again, made.num_devices), stored)
    assert all(array.dtype.itemsize <= 2 for array in stored.values())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("task_name", ["placement_scheduling", "joint"])
def test_what_is_sent_is_what_the_simulator_sends(machine: str, task_name: str) -> None:
    made, task, costs = parts(machine, task_name)
    for seed, graph in enumerate(graphs()):
        plan = key_made(task, graph, seed, 2**24)
        trace = costs[0].simulate(plan)
        found = np.argwhere(sent(graph, plan.device[0], plan.inline[0], made.num_devices))
        pairs = {(int(tensor), int(target)) for tensor, target in found}
        if made.transfer.multicast:
            assert {t for t, _ in pairs} == set(trace.transfer_tensor.tolist())
        else:
            assert pairs == set(zip(trace.transfer_tensor.tolist(), trace.transfer_target.tolist()))


def test_ranks_by_hand() -> None:
    b = GraphBuilder("fork")
    x, y, z, view, out, other = (b.tensor((4,)) for _ in range(6))
    b.op("relu", [x], [y], name="a")
    b.op("relu", [x], [z], name="b")
    b.op("reshape", [y], [view], name="v")
    b.op("add", [view, z], [out], name="c")
    b.op("relu", [z], [other], name="d")
    graph = b.build()
    op = {name: i for i, name in enumerate(graph.op_names)}
    device, inline = np.zeros((1, 5), np.int16), np.zeros((1, 5), bool)
    device[0, [op["c"], op["v"]]], inline[0, op["v"]] = 1, True
    priority = np.zeros((1, 5))
    priority[0, [op[name] for name in "abvcd"]] = 0.5, -3.0, 9.0, 0.5, 7.0
    transfer = np.random.default_rng(0).random((1, graph.num_tensors, 2))
    tensors = {name: int(graph.results(op[name])[0]) for name in "abvcd"}
    transfer[0, tensors["a"], 1], transfer[0, tensors["b"], 1] = 0.9, 0.2
    stored = compact(Plans(graph, device, priority, inline, transfer), 2)
    assert [int(stored["priority"][op[name]]) for name in "abvcd"] == [2, 1, 0, 2, 3]
    assert [int(stored["device"][op[name]]) for name in "abvcd"] == [0, 0, 0, 1, 0]
    ranks = {(int(t), int(d)): int(stored["transfer"][t, d]) for t, d in np.argwhere(stored["transfer"])}
    assert ranks == {(tensors["a"], 1): 2, (tensors["b"], 1): 1}  # the first through the view


def test_plans_without_own_transfers_stay_so() -> None:
    made, task, _ = parts("gpu2", "placement")
    plan = key_made(task, graphs()[0], 3, 10)
    stored = compact(plan, made.num_devices)
    assert "transfer" not in stored and expand(plan.graph, stored).transfer is None
    other = compact(dataclasses.replace(plan, device=1 - plan.device), made.num_devices)
    assert not same(stored, other)
