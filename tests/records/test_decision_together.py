"""Ops that share a device: a decision file says where every op runs, and its choices alone give the price."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.operators import Category
from graphopt.datasets.layered import layered_graph
from graphopt.problems.problem import Problem
from graphopt.records.decision_file import load, save
from graphopt.tasks.task import AssignTask
from graphopt.utils import registry

TASKS = {
    "placement": {}, "placement fused": {"fuse": True}, "placement_scheduling": {}, "joint": {}, "scheduling": {},
    "fusion": {}, "fusion priority": {"decision": "priority"},
}  # fmt: skip


@cache
def colocated(seed: int, groups: int) -> Graph:
    """A layered graph whose ops share devices in random groups; the first of a group that is no view leads it."""
    rng = np.random.default_rng(seed)
    graph = layered_graph(60, rng, f"g{seed}")
    group = rng.integers(0, groups, graph.num_ops)
    together = np.arange(graph.num_ops, dtype=np.int32)
    for members in (np.flatnonzero(group == g) for g in range(groups)):
        leaders = [m for m in members if graph.category[m] != Category.VIEW]
        if leaders:
            together[members] = leaders[0]
    return dataclasses.replace(graph, together=together)


def solved(graph: Graph, task_name: str, objective: str, keys: bool, seed: int) -> tuple[Problem, dict[str, Any]]:
    """A problem whose answer is a random one, even where the default is better; and its configuration."""
    name = task_name.partition(" ")[0]
    config = {"machine": registry.option("machine", "gpu4_pcie"), "seed": 0,
              "task": registry.option("task", name) | TASKS[task_name],
              "cost": registry.option("cost", "simulator") | {"objective": objective, "threads": 1}}  # fmt: skip
    machine = construct(config["machine"], "machine")
    task: AssignTask = construct(config["task"], "task", {"machine": machine})
    cost = construct(config["cost"], "cost", {"machine": machine, "task": task})
    problem, rng = Problem(graph, task, cost, evals=1), np.random.default_rng(seed)
    if keys:
        drawn = rng.random((1, task.key_count(graph)), np.float32)
        problem.cost_keys(drawn)
        problem.best_plan = task.realise_keys(graph, drawn)
    else:
        counts = [head.count for head in task.heads]
        problem.best = rng.integers(0, counts, (graph.num_ops, len(counts))).astype(np.int16)
    problem.best_cost = float(cost.price(problem.plans()).cost[0])
    return problem, {**config, "judge": config["cost"]}


@pytest.mark.parametrize("objective", ["runtime", "max_load", "peak_memory"])
@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("keys", [False, True])
def test_choices_are_what_happens(tmp_path: Path, task_name: str, objective: str, keys: bool) -> None:
    for seed, groups in enumerate((60, 20, 8, 3)):
        graph = colocated(seed, groups)
        problem, config = solved(graph, task_name, objective, keys, seed)
        task, plan = problem.task, problem.plans()
        save(tmp_path / "a.npz", problem=problem, judged=problem.best_cost, row={}, config=config)
        file = load(tmp_path / "a.npz")
        said = dict(zip(file.heads, file.choices.T))
        runs = ~plan.inline[0]
        if "device" in said:
            assert np.array_equal(said["device"][runs], plan.device[0][runs])
        if "inline" in said:
            free = task.mask(graph)[:, list(file.heads).index("inline")]
            assert np.array_equal(said["inline"][free].astype(bool), plan.inline[0][free])
        if set(file.described) == set(file.heads):
            again = task.realise(graph, file.choices[None])
            assert float(problem._cost.price(again).cost[0]) == problem.best_cost
        if objective == "max_load" and "fusion" not in task_name:  # orders do not matter, so choices are all there is
            again = task.realise(graph, file.choices[None])
            assert float(problem._cost.price(again).cost[0]) == problem.best_cost
