"""Local searches on random keys: REGAL's, and windows of time."""

import json

import numpy as np
import pytest
from check_data import check_data

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.utils import registry
from graphopt.costs.simulator import Simulator
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.task_graphs import read_stg
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.placement import Joint
from graphopt.run.config.construct import construct
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.walks.key_moves import Descent, Moves, RandomKeyMoves, RegalLocal
from graphopt.search.walks.windowed import Windowed, Windows, _Moves

# --- Local search on keys: moves do what they say, published instances, plateaus, and where it starts.

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}
NONE = {"device": 0.0, "block": 0.0, "swap": 0.0, "shift": 0.0, "transfer": 0.0, "choice": 0.0}


def machine(devices: int) -> Machine:
    return Machine(name="m", devices=tuple(Device() for _ in range(devices)), link_bandwidth=1e3)


def open_problem(graph: Graph, devices: int = 3, evals: int = 100, fuse: bool = False, seed: int = 0) -> AssignProblem:
    task = Joint(name="t", machine=machine(devices), levels=16, fuse=fuse, **CAPS)
    cost = Simulator(name="s", machine=task.machine, objective="runtime", threads=1)
    return AssignProblem(graph, task, cost, evals=evals, seed=seed)


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
    problem = open_problem(layered_graph(60, np.random.default_rng(1), "g"), fuse=True)
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
    problem = open_problem(layered_graph(30, np.random.default_rng(1), "g"))
    keys = np.random.default_rng(2).random(problem.task.key_count(problem.graph), np.float32)
    moves = RandomKeyMoves(problem, Moves(**(NONE | {"device": 1.0})))
    plans = problem.task.realise_keys(problem.graph, moves.around(keys, 3000, np.random.default_rng(3)))
    runs = np.flatnonzero(problem.task.mask(problem.graph)[:, 0])
    assert {(n, d) for n in runs for d in range(3)} == {(n, int(d)) for n in runs for d in set(plans.device[:, n])}


def search(**changes: object) -> RegalLocal:
    """The algorithm as its yaml file says, but for `changes`."""
    made: RegalLocal = construct(registry.option("algo", "regal_local") | {"start": "heuristic"} | changes, "algo", {})
    return made


def instances() -> list[tuple[Graph, int, int]]:
    """Standard Task Graphs with their number of processors and the known lower bound."""
    known = json.loads(check_data("scheduling/known.json").read_text())
    return [(read_stg(check_data(f"scheduling/{k['file']}")), k["m"], k["lb"]) for k in known]


def excess(graph: Graph, processors: int, bound: int) -> float:
    """Percent above the bound after 5,000 evaluations, from the best heuristic."""
    node = registry.option("machine", "identical")
    node = node | {"devices": {"processor": node["devices"]["processor"] | {"count": processors}}}
    made = construct(node, "machine")
    task = construct(registry.option("task", "placement_scheduling"), "task", {"machine": made})
    cost = Simulator(name="s", machine=made, objective="runtime", threads=1)
    problem, _ = solve(search(), graph, task, cost, evals=5000)
    assert problem.best_cost >= bound
    return 100 * (problem.best_cost / bound - 1)


def test_published_instances_are_solved_nearly_to_their_bounds() -> None:
    """Graphs on 2, 4, 8 and 16 processors, every fifth."""
    assert np.mean([excess(*instance) for instance in instances()[::5]]) <= 0.5


def test_the_heuristic_start_costs_one_evaluation_per_heuristic_and_is_never_lost() -> None:
    graph = layered_graph(100, np.random.default_rng(4), "g")
    problem = open_problem(graph)
    heuristics = heuristic_keys(problem)
    costs = problem.cost_keys(heuristics)
    solved, _ = solve(search(), graph, problem.task, problem._cost, evals=len(heuristics))
    assert (solved.evals, solved.best_cost) == (len(heuristics), min(costs.min(), problem.initial_cost))
    further, _ = solve(search(), graph, problem.task, problem._cost, evals=len(heuristics) + 400)
    assert further.best_cost < solved.best_cost


@pytest.mark.parametrize("batch", [1, 7])
def test_it_takes_the_best_of_a_batch_walks_plateaus_and_starts_again_from_the_best(batch: int) -> None:
    """On a price that tells ones from zeros only: rounds of all but one key do not matter."""
    problem = open_problem(layered_graph(30, np.random.default_rng(5), "g"), evals=10**6)
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


def cluster() -> Machine:
    """Eight GPUs on links on which list schedules leave room."""
    node = registry.option("machine", "gpu8_nvlink") | {"link_bandwidth": 30e9, "link_latency": 5e-6}
    made: Machine = construct(node, "machine")
    return made


def optimizer(name: str) -> Windowed:
    made: Windowed = construct(registry.option("algo", name) | {"start": "heuristic"}, "algo", {})
    return made


def cost(objective: str) -> Simulator:
    return Simulator(name="s", machine=cluster(), objective=objective, threads=1)  # type: ignore[arg-type]


def layered(ops: int, seed: int) -> Graph:
    return layered_graph(ops, np.random.default_rng(seed), f"layered{seed}")


def open_large(graph: Graph, evals: int = 100) -> AssignProblem:
    task = Joint(name="t", machine=cluster(), levels=16, fuse=False, **CAPS)
    return AssignProblem(graph, task, cost("runtime"), evals=evals, seed=0)


def test_an_evaluation_says_when_ops_end() -> None:
    problem = open_large(layered(300, 0), evals=20)
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
    problem = open_large(layered(300, 2))
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
    task = Joint(name="t", machine=cluster(), levels=16, fuse=False, **CAPS)
    found = []
    for seed in range(3):
        graph, price = layered(3000, 10 + seed), cost("runtime")
        ours, theirs = (
            solve(optimizer(name), graph, task, price, evals=300, seed=seed)[0] for name in ("windowed", "regal_local")
        )
        assert ours.evals <= 300 and ours.best_cost == price.price(ours.solution().plans).cost[0]
        found.append(ours.best_cost / theirs.best_cost)
    assert max(found) < 1.0 and np.mean(found) < 0.99
