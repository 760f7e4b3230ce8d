"""Windowed search: windows measure what they say, moves stay in them, and moves in parallel beat moves one by one."""

import numpy as np
import pytest

from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.errors import Unsolved
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import Problem
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.walks.windowed import Windowed, Windows, _Moves
from graphopt.tasks.joint import Joint
from graphopt.tasks.keys import KeyRole
from graphopt.utils import registry

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def machine() -> Machine:
    """Eight GPUs on links on which list schedules leave room."""
    node = registry.option("machine", "gpu8_nvlink") | {"link_bandwidth": 30e9, "link_latency": 5e-6}
    made: Machine = construct(node, "machine")
    return made


def optimizer(name: str) -> Windowed:
    made: Windowed = construct(registry.option("algo", name), "algo", {})
    return made


def cost(objective: str) -> Simulator:
    return Simulator(name="s", machine=machine(), objective=objective, threads=1)  # type: ignore[arg-type]


def layered(ops: int, seed: int) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"layered{seed}")


def open_problem(graph: Graph, evals: int = 100) -> Problem:
    task = Joint(name="t", machine=machine(), levels=16, fuse=False, **CAPS)
    return Problem(graph, task, cost("runtime"), evals=evals, seed=0)


def test_an_evaluation_says_when_ops_end() -> None:
    problem = open_problem(layered(300, 0), evals=20)
    for keys in heuristic_keys(problem)[:5]:
        price, ends = problem.cost_and_ends(keys)
        assert price == problem.cost_keys(keys[None])[0] == ends.max()
    assert problem.evals == 10


def test_durations_of_windows_add_up_to_the_makespan() -> None:
    rng = np.random.default_rng(1)
    ends = rng.random(500) * (rng.random(500) < 0.8)
    for size in (1, 7, 100, 1000):
        windows = Windows.of(ends, size, rng)
        sizes = np.diff(windows.bounds)
        assert sizes.max() <= size and sizes.sum() == np.count_nonzero(ends) == np.count_nonzero(windows.of_op >= 0)
        assert windows.durations(ends).sum() == pytest.approx(ends.max())
        assert (windows.durations(ends) >= 0).all()
        for w, (low, high) in enumerate(zip(windows.bounds, windows.bounds[1:], strict=False)):
            assert (windows.of_op[windows.order[low:high]] == w).all()


@pytest.mark.parametrize("swap", [0.0, 1.0])
def test_a_move_stays_in_its_window(swap: float) -> None:
    problem = open_problem(layered(300, 2))
    layout, rng = problem.task.layout(problem.graph), np.random.default_rng(3)
    keys = heuristic_keys(problem)[0]
    _, ends = problem.cost_and_ends(keys)
    algo = optimizer("windowed")
    algo.swap = swap
    windows = Windows.of(ends, 40, rng)
    moved = _Moves(algo, problem).everywhere(keys, windows, rng)
    changed = np.flatnonzero(moved != keys)
    assert set(layout.role[changed]) == {KeyRole.PRIORITY if swap else KeyRole.AFFINITY}
    touched = windows.of_op[layout.op[changed]]
    assert (touched >= 0).all() and len(set(touched)) >= (len(windows.bounds) - 1) // 2
    if not swap:
        per_window = np.bincount(touched) / 2  # two affinities of an op
        assert per_window.max() <= algo.largest_block


def test_better_than_one_move_at_a_time() -> None:
    """At equal evaluations, from the same list schedules."""
    task = Joint(name="t", machine=machine(), levels=16, fuse=False, **CAPS)
    found = []
    for seed in range(3):
        graph, price = layered(3000, 10 + seed), cost("runtime")
        ours, theirs = (
            solve(optimizer(name), graph, task, price, evals=300, seed=seed)[0]
            for name in ("windowed", "regal_local_heuristic")
        )
        assert ours.evals <= 300 and ours.best_cost == price.price(ours.plans()).cost[0]
        found.append(ours.best_cost / theirs.best_cost)
    assert max(found) < 1.0 and np.mean(found) < 0.99


def test_it_asks_for_time() -> None:
    task = Joint(name="t", machine=machine(), levels=16, fuse=False, **CAPS)
    with pytest.raises(Unsolved, match=r"cost\.objective=runtime"):
        solve(optimizer("windowed"), layered(60, 0), task, cost("peak_memory"), evals=50)
