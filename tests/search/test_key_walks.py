"""Local searches on random keys: REGAL's, windows of time, and moves of what decides the price."""

from typing import Any

import numpy as np
import pytest
from cells import joint, opened, option

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.walks.hot_local import SimulatedRuns
from graphopt.search.walks.key_moves import KINDS, Descent, Moves, RandomKeyMoves, WeightedMoves
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


# --- Local search that moves what decides the price: weighted moves, what a simulated run says, starts, budgets.


ROLES = {"device": KeyRole.AFFINITY, "block": KeyRole.AFFINITY, "swap": KeyRole.PRIORITY, "shift": KeyRole.PRIORITY,
         "transfer": KeyRole.TRANSFER}  # fmt: skip


def problem_of(objective: str = "peak_memory", evals: int = 100) -> AssignProblem:
    return open_problem(60, devices=2, evals=evals, objective=objective)


def hot_local(modelled: int) -> Any:
    return option("algo", "hot_local", walk=registry.option("algo", "hot_local")["walk"] | {"modelled": modelled})


def solved(problem: AssignProblem, modelled: int, evals: int) -> Any:
    return solve(hot_local(modelled), problem.graph, problem.task, problem._cost, evals=evals)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_weighted_move_changes_the_op_that_it_was_drawn_for(kind: str) -> None:
    problem, rng = problem_of(), np.random.default_rng(3)
    layout, moves = problem.layout, WeightedMoves(problem, Moves(**(NONE | {kind: 1.0})))
    keys, number = rng.random(len(layout), np.float32), KINDS.index(kind)
    assert moves.base.sum() == pytest.approx(1.0) and not np.delete(moves.base, number, 0).any()
    one = int(rng.choice(np.flatnonzero(moves.base[number])))
    weight = np.zeros_like(moves.base)
    weight[number, one] = 2.0
    drawn = moves.drawn(weight, 50, rng)
    assert (drawn.kind == number).all() and (drawn.op == one).all()
    changed = moves.made(keys, drawn, rng) != keys
    assert changed.any() and set(layout.role[changed.any(0)]) == {ROLES[kind]}
    assert all(one in layout.op[row] for row in changed if row.any())
    assert moves.made(keys, drawn, rng, together=True).shape == (1, len(keys))


@pytest.mark.parametrize("objective", ["peak_memory", "runtime"])
@pytest.mark.parametrize(("ops", "devices"), [(60, 2), (20, 62)])
def test_what_decides_a_price(ops: int, devices: int, objective: str) -> None:
    """The chain spans the run. What lives at the peak, and its readers there, found op by op."""
    problem = open_problem(ops, devices, objective=objective)
    runs, needs = SimulatedRuns(problem), SchedulingInstance(problem.graph, problem.task).needs
    edges = [*zip(needs.source.tolist(), np.repeat(np.arange(ops), np.diff(needs.ptr)).tolist(), strict=True)]
    for keys in heuristic_keys(problem):
        plan = problem.task.realise_keys(problem.graph, keys[None])
        run, device, found = runs._model.simulate(plan), plan.device[0].tolist(), set(np.flatnonzero(runs.decide(keys)))
        if objective == "runtime":
            chain = np.isin(run.kernel_op, [*found])
            assert run.kernel_start[chain].min() == 0.0 and run.kernel_end[chain].max() == run.makespan
            continue
        full = int(run.peak_bytes.argmax())
        moment, step = run.memory_bytes[:, full].argmax(), np.zeros(ops)
        step[run.kernel_op] = run.kernel_step[:, 0]
        live = set[int]()
        for op in range(ops):
            here, readers = device[op] == full, [b for a, b in edges if a == op]
            until = [step[b] for b in readers if here or device[b] == full] or [np.inf if here else -1]
            if problem.graph.result_bytes[op] and step[op] <= moment <= max(until):
                live.add(op)
        assert found == live | {b for a, b in edges if a in live and device[b] == full}


@pytest.mark.parametrize("objective", ["peak_memory", "runtime"])
def test_it_starts_from_the_best_heuristic_and_spends_the_budget(objective: str) -> None:
    problem = problem_of(objective, evals=400)
    least = problem.cost_keys(heuristic_keys(problem)).min()
    found = solved(problem, 0, 400)
    assert found.evals == 400 and found.best_cost <= least and found.best_cost < problem.initial_cost


def test_simulated_runs_are_no_evaluations() -> None:
    problem = problem_of()
    for evals in (0, 1, 30):
        found = solved(problem, 300, evals)
        assert found.evals == evals and found.best_cost < problem.initial_cost
    assert solved(problem, 0, 0).best_cost == problem.initial_cost
