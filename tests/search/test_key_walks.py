"""Local searches on random keys: REGAL's, and windows of time."""

from typing import Any

import numpy as np
import pytest
from cells import joint, opened, option, simulator

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.graphs.layered import layered_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.walks.key_moves import Descent, Moves, RandomKeyMoves
from graphopt.search.walks.windowed import Windows, _Moves

# --- Local search on keys: moves do what they say, published instances, plateaus, and where it starts.

NONE = {"device": 0.0, "block": 0.0, "swap": 0.0, "shift": 0.0, "transfer": 0.0, "choice": 0.0}


def open_problem(ops: int, devices: int = 3, evals: int = 100, fuse: bool = False, objective: str = "runtime",
                 seed: int = 1) -> AssignProblem:  # fmt: skip
    machine = Machine(name="m", devices=(Device(),) * devices, link_bandwidth=1e3)
    graph = layered_graph(ops, np.random.default_rng(seed), "g")
    return opened(graph, joint(machine, fuse=fuse), objective, evals)


@pytest.mark.parametrize(
    ("kind", "role", "changed"),
    [
        ("device", KeyRole.AFFINITY, (2,)),  # two affinities of one op are exchanged
        ("block", KeyRole.AFFINITY, tuple(range(2, 130, 2))),  # of each op that moves
        ("swap", KeyRole.PRIORITY, (0, 2)),  # 0: an op with itself
        ("shift", KeyRole.PRIORITY, (1,)),
        ("transfer", KeyRole.TRANSFER, (1,)),
        ("choice", KeyRole.CHOICE, (1,)),
    ],
)
def test_a_move_changes_what_it_says(kind: str, role: KeyRole, changed: tuple[int, ...]) -> None:
    problem = open_problem(60, fuse=True)
    layout, free = problem.task.layout(problem.graph), problem.task.mask(problem.graph)
    keys = np.random.default_rng(2).random(len(layout), np.float32)
    moved = RandomKeyMoves(problem, Moves(**(NONE | {kind: 1.0}))).around(keys, 200, np.random.default_rng(3))
    needs = SchedulingInstance(problem.graph, problem.task).needs
    reader = np.repeat(np.arange(problem.graph.num_ops), np.diff(needs.ptr))
    beside = {n: {*needs.source[reader == n], *reader[needs.source == n]} for n in range(problem.graph.num_ops)}
    before, after = (problem.task.realise_keys(problem.graph, rows) for rows in (keys[None], moved))
    heads = {"device": 0, "block": 0, "swap": 1, "shift": 1, "choice": 2}
    for i, row in enumerate(moved):
        different = np.flatnonzero(row != keys)
        assert len(different) in changed
        assert (layout.role[different] == role).all()
        if kind in heads:
            assert free[layout.op[different], heads[kind]].all()
        if kind in ("device", "block"):
            moved_ops = np.flatnonzero(after.device[i] != before.device[0])
            assert len(moved_ops) == len(different) // 2
            assert len({*before.device[0, moved_ops]}) == len({*after.device[i, moved_ops]}) == 1
        if kind == "block":
            target = after.device[i, moved_ops[0]]
            assert any(before.device[0, other] == target for op in moved_ops for other in beside[op])
        if kind in ("device", "block", "swap"):
            assert sorted(row[different]) == sorted(keys[different])


def test_every_op_and_every_device_is_reached() -> None:
    problem = open_problem(30)
    keys = np.random.default_rng(2).random(problem.task.key_count(problem.graph), np.float32)
    moves = RandomKeyMoves(problem, Moves(**(NONE | {"device": 1.0})))
    plans = problem.task.realise_keys(problem.graph, moves.around(keys, 3000, np.random.default_rng(3)))
    runs = np.flatnonzero(problem.task.mask(problem.graph)[:, 0])
    assert {(n, d) for n in runs for d in range(3)} == {(n, int(d)) for n in runs for d in set(plans.device[:, n])}


def search(**changes: Any) -> Any:
    return option("algo", "regal_local", start="heuristic", **changes)


def test_the_heuristic_start_costs_one_evaluation_per_heuristic_and_is_never_lost() -> None:
    problem = open_problem(100, seed=4)
    heuristics = heuristic_keys(problem)
    costs = problem.cost_keys(heuristics)
    solved, _ = solve(search(), problem.graph, problem.task, problem._cost, evals=len(heuristics))
    assert (solved.evals, solved.best_cost) == (len(heuristics), min(costs.min(), problem.initial_cost))
    further, _ = solve(search(), problem.graph, problem.task, problem._cost, evals=len(heuristics) + 400)
    assert further.best_cost < solved.best_cost


@pytest.mark.parametrize("batch", [1, 7])
def test_it_takes_the_best_of_a_batch_walks_plateaus_and_starts_again_from_the_best(batch: int) -> None:
    """On a price that tells ones from zeros only: rounds of all but one key do not matter."""
    problem = open_problem(30, evals=10**6, seed=5)
    algo = search(batch=batch, patience=20, kick=3)
    moves = RandomKeyMoves(problem, Moves(**(NONE | {"shift": 1.0})))
    priorities = np.flatnonzero(problem.task.layout(problem.graph).role == KeyRole.PRIORITY)
    current: list[float] = [1e9]
    seen = 0

    class Enough(Exception):
        pass

    def price(keys: np.ndarray) -> np.ndarray:
        nonlocal seen
        seen += len(keys)
        if seen > 6000:
            raise Enough
        cost = np.floor(4 * keys[:, priorities]).sum(1)
        current.append(min(current[-1], float(cost.min())))
        return cost

    keys = np.full(problem.task.key_count(problem.graph), 0.99, np.float32)
    with pytest.raises(Enough):
        list(algo.descent(Descent(keys, 3.0 * len(priorities)), price, moves, np.random.default_rng(0)))
    assert current[-1] <= 3


# --- Windowed search: windows measure what they say, moves stay in them, and moves in parallel beat moves one by one.


CLUSTER: Machine = option("machine", "gpu8_nvlink", link_bandwidth=30e9, link_latency=5e-6)
"""Eight GPUs on links on which list schedules leave room."""


def optimizer(name: str) -> Any:
    return option("algo", name, start="heuristic")


def layered(ops: int, seed: int) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"layered{seed}")


def test_an_evaluation_says_when_ops_end() -> None:
    problem = opened(layered(300, 0), joint(CLUSTER), evals=20)
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
    problem = opened(layered(300, 2), joint(CLUSTER))
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
    task, price, found = joint(CLUSTER), simulator(CLUSTER), []
    for seed in range(3):
        graph = layered(3000, 10 + seed)
        ours, theirs = (
            solve(optimizer(name), graph, task, price, evals=300, seed=seed)[0] for name in ("windowed", "regal_local")
        )
        assert ours.evals <= 300 and ours.best_cost == price.price(ours.solution().plans).cost[0]
        found.append(ours.best_cost / theirs.best_cost)
    assert max(found) < 1.0 and np.mean(found) < 0.99
