"""CP-SAT against all plans of small graphs, random plans under every rule, and published optima."""

import itertools
import json
from typing import Any

import numpy as np
import pytest
from cells import identical, joint, opened, option, placement, scheduling, simulator, story
from check_data import check_data
from costs.random_plans import random_graph, random_machine

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.costs.event_arrays import GRID
from graphopt.costs.simulator import Simulator
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.task_graphs import read_stg
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import Optimizer, solve
from graphopt.run.evaluate import Context, Method, evaluate
from graphopt.run.records.rows import RowFile
from graphopt.search.genetic.evolution import uniform_keys
from graphopt.search.solvers import cpsat
from graphopt.search.solvers.constraint_models import (
    EVERY,
    Workload,
    anywhere,
    grain,
    interchangeable,
    least_makespan,
    least_memory,
    renamed,
    watched,
    workload,
)
from graphopt.search.solvers.cpsat import CpSat, spread

pytest.importorskip("ortools", reason="the solvers extra is not installed")


def solver(**changes: object) -> CpSat:
    settings = {"seconds": 60.0, "effort": 0.5, "workers": 1, "lanes": True, "max_intervals": 5000}
    return CpSat(name="cpsat", **(settings | changes))


def solved(algo: Optimizer, graph: Graph, task: AssignTask, objective: str = "runtime", **limits: Any) -> AssignProblem:
    return solve(algo, graph, task, simulator(task.machine, objective), **limits)[0]


def pair(**fields: object) -> Machine:
    return identical(2, **fields)


def work_of(graph: Graph, machine: Machine, look: Any = lambda: None) -> Workload:
    return workload(opened(graph, joint(machine)), look)


def small_graph(seed: int, ops: int) -> Graph:
    """Ops of 1 to 4 seconds that read one or two earlier results of 1 to 8 bytes."""
    rng = np.random.default_rng(seed)
    b = GraphBuilder(f"small{seed}")
    made = [b.tensor((1,), num_bytes=0)]
    for _ in range(ops):
        sources = rng.choice(len(made), min(len(made), int(rng.integers(1, 3))), replace=False)
        made.append(b.tensor((1,), num_bytes=int(rng.integers(1, 9))))
        b.op("opaque", [made[i] for i in sources], made[-1:], flops=float(rng.integers(1, 5)))
    b.output(made[-1])
    return b.build()


def all_plans(task: AssignTask, graph: Graph, cost: Simulator) -> float:
    """The lowest price over all devices and orders of priorities; transfers go by their producers."""
    orders = np.array(list(itertools.permutations(range(graph.num_ops))), np.int16)
    lowest = np.inf
    for device in itertools.product(range(task.machine.num_devices), repeat=graph.num_ops):
        decisions = np.stack([np.broadcast_to(device, orders.shape), orders], 2).astype(np.int16)
        lowest = min(lowest, float(cost.price(task.realise(graph, decisions)).cost.min()))
    return lowest


@pytest.mark.parametrize("lane", ["link", "unlimited"])
@pytest.mark.parametrize("objective", ["runtime", "peak_memory"])
@pytest.mark.parametrize("seed", range(6))
def test_all_plans_of_small_graphs(seed: int, objective: str, lane: str) -> None:
    """No plan is below the bound, and the best plan is found."""
    task = joint(pair(link_bandwidth=4.0, link_latency=0.5, transfer=TransferRule(lane=lane)))
    graph = small_graph(seed, 5)
    problem = solved(solver(), graph, task, objective, evals=60)
    optimum = all_plans(task, graph, simulator(task.machine, objective))
    assert 0 < problem.bound <= optimum <= problem.best_cost
    assert objective != "runtime" or problem.best_cost == optimum


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_is_below_the_bound(seed: int) -> None:
    """Whatever the machine's transfer rule, the task and the objective: random plans of random graphs."""
    rng = np.random.default_rng(seed)
    graph, machine = random_graph(rng, int(rng.integers(2, 12))), random_machine(rng)
    task = (joint(machine), placement(machine), scheduling(machine, "heft", fuse=True), scheduling(machine))[seed % 4]
    for objective in ("runtime", "peak_memory"):
        found = solved(solver(effort=0.2, lanes=bool(seed % 3)), graph, task, objective, evals=20)
        rule = machine.transfer
        proves = rule.clock == "grid" and (objective == "runtime" or rule.free == "end")
        assert (found.bound > 0) == (proves and found.best_cost > 0)
        keys = uniform_keys(task.key_count(graph))(rng, 500)
        lowest = simulator(machine, objective).price(task.realise_keys(graph, keys)).cost.min()
        assert found.bound <= min(lowest, found.best_cost)


def test_what_is_rounded_stays_below() -> None:
    """Times without a common divisor are rounded down, so the bound is below and near the optimum of a chain."""
    b, x = GraphBuilder("chain"), None
    times = np.random.default_rng(0).uniform(0.1, 3.0, 12)
    for seconds in times:
        y = b.tensor((1,))
        b.op("opaque", [] if x is None else [x], [y], flops=float(seconds))
        x = y
    b.output(x)
    found = solved(solver(), b.build(), joint(pair(link_latency=0.1)), evals=5)
    assert found.bound <= found.best_cost == found.initial_cost
    assert found.bound == pytest.approx(times.sum(), rel=1e-5)


def test_grain() -> None:
    assert grain([12, 18, 30], 10) == 6  # exact
    assert grain([7, 11], 6) == 3  # 18 // 3 = 6
    assert grain([], 5) == grain([0, 0], 5) == 1


def test_a_device_too_small_for_all_weights_is_not_overfilled() -> None:
    """Four chains with 3 bytes of weights each: a device has room for two of them, and their results."""
    b = GraphBuilder("weights")
    for _ in range(4):
        weight, y, z = (b.tensor((1,), weight=size == 3, num_bytes=size) for size in (3, 1, 0))
        b.op("opaque", [weight], [y], flops=1.0)
        b.op("opaque", [y], [z], flops=1.0)
        b.output(z)
    machine = Machine(name="small", devices=(Device(capacity=8.0), Device(capacity=8.0)), link_latency=9.0)
    found = solved(solver(), b.build(), joint(machine), evals=30)
    assert found.initial_cost == np.inf
    assert found.best_cost == found.bound == 4.0


def test_fused_plans_are_not_bounded() -> None:
    graph = layered_graph(20, np.random.default_rng(0), "layered")
    found = solved(solver(effort=0.1), graph, joint(pair(), fuse=True), evals=9)
    assert found.bound == 0.0 and found.evals <= 9


def test_too_large_a_model_is_not_built() -> None:
    graph, task = layered_graph(40, np.random.default_rng(0), "layered"), joint(pair(link_latency=0.1))
    with pytest.warns(UserWarning, match="over 50, so the best heuristic is the answer"):
        found = solved(solver(max_intervals=50), graph, task, evals=100)
    assert found.evals > 0 and 0 < found.bound <= found.best_cost < found.initial_cost
    unlimited = solved(solver(effort=0.1, max_intervals=2 * graph.num_ops), graph, task, evals=100)
    assert unlimited.bound > 0  # without lanes it fits


def test_limited_by_effort_it_repeats() -> None:
    graph, task = layered_graph(40, np.random.default_rng(1), "layered"), joint(pair(link_latency=0.01))
    first, again = (solved(solver(effort=0.3, workers=2), graph, task, evals=40, seed=5) for _ in range(2))
    assert story(first) == story(again) and first.bound == again.bound


def test_devices_for_kernels_that_may_run_anywhere() -> None:
    rng = np.random.default_rng(3)
    length = rng.integers(0, 5, 40)
    free, start = np.zeros(3, np.int64), np.zeros(40, np.int64)
    for k in range(40):  # some schedule on three devices
        d = int(free.argmin())
        start[k] = free[d] + int(rng.integers(0, 2))
        free[d] = start[k] + length[k]
    device = spread(start, length, 3)
    for d in range(3):
        mine = sorted(zip(start[device == d], length[device == d]))
        assert all(s + n <= later for (s, n), (later, _) in itertools.pairwise(mine))


def test_simple_bounds_by_hand() -> None:
    """A fork: 2 s, then 3 s and 4 s, all in half the time on the second device; 6 bytes made, then 1 and 2."""
    b = GraphBuilder("fork")
    w, x, y, z = (b.tensor((1,), num_bytes=n, weight=n == 8) for n in (8, 6, 1, 2))
    for read, made, flops in ((w, x, 2.0), (x, y, 3.0), (x, z, 4.0)):
        b.op("opaque", [read], [made], flops=flops)
    graph, fast = b.build(), Device(vector_flops=2.0)
    alone, two = (work_of(graph, Machine(name="m", devices=of)) for of in ((Device(),), (Device(), fast)))
    assert (least_makespan(alone) * GRID, least_makespan(two) * GRID) == (9.0, 3.0)
    assert (least_memory(alone), least_memory(two)) == (8 + 6 + 2, 8 + 6)


def test_when_devices_are_interchangeable() -> None:
    graph = small_graph(0, 4)
    near, far, odd = (work_of(graph, pair(link_latency=of)) for of in (0.0, 1.0, ((0.0, 1.0), (2.0, 0.0))))
    slow = work_of(graph, Machine(name="two", devices=(Device(), Device(vector_flops=2.0))))
    assert [anywhere(work) for work in (near, far, slow)] == [True, False, False]
    assert [interchangeable(work) for work in (near, far, slow, odd)] == [True, True, False, False]
    assert dict(renamed(far, [1, 1, 0])) == {1: 0, 0: 1}


def published() -> list[dict[str, Any]]:
    known: list[dict[str, Any]] = json.loads(check_data("scheduling/known.json").read_text())
    return known


def proves(known: dict[str, Any]) -> None:
    graph = read_stg(check_data("scheduling") / known["file"])
    found = solved(solver(seconds=10.0, effort=None, workers=2), graph, joint(identical(known["m"])), evals=50)
    assert (found.bound, found.best_cost) == (known["lb"], known["ub"]), known


HARD = [("50/rand0018.stg", 2), ("50/rand0001.stg", 4), ("50/rand0009.stg", 4), ("50/rand0007.stg", 4)]


@pytest.mark.parametrize(("file", "devices"), [*HARD, ("50/rand0003.stg", 8), ("50/rand0010.stg", 16)])
def test_published_optima_are_proved(file: str, devices: int) -> None:
    proves(next(k for k in published() if (k["file"], k["m"]) == (file, devices)))


@pytest.mark.slow
def test_all_published_optima_are_proved() -> None:
    for known in published():
        if known["optimal"]:
            proves(known)


@pytest.mark.parametrize("objective", ["runtime", "peak_memory"])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5, 2.0])
def test_a_model_that_takes_too_long_is_given_up(seconds: float, objective: str, monkeypatch) -> None:
    """Building looks at the clock, of which each look takes 10 ms, at every tensor, and ends at half of the time: the
    solver is never called."""
    looks = itertools.count(1)
    monkeypatch.setattr("graphopt.problems.problem._clock", lambda: 0.01 * next(looks))
    monkeypatch.setattr("graphopt.search.solvers.cpsat.search", lambda *_: pytest.fail("no time was left"))
    task = joint(pair(link_bandwidth=4.0))
    found = solved(solver(effort=None), small_graph(0, 400), task, objective, evals=40, seconds=seconds)
    assert 0.01 * next(looks) <= 0.55 * seconds + 0.21
    assert found.best_cost <= found.initial_cost
    assert found.evals <= 1 + 0.25 * seconds / 0.01
    answer = "default" if found.best_cost == found.initial_cost else "best heuristic"
    assert f"{seconds:g} s are too short for algo=cpsat" in found.notes[0] and answer in found.notes[0]
    assert seconds or found.evals == 0


STEPS = ["price_heuristics", "workload", "simple_bound", "best_run", "makespan_model", "search"]


@pytest.mark.parametrize("seconds, begun", [(100.0, 6), (9.0, 5), (7.0, 4), (5.0, 3), (3.0, 2)])
def test_no_step_is_begun_when_its_time_is_over(seconds: float, begun: int, monkeypatch) -> None:
    """Heuristics come first, so that there is an answer; then work, bound, known run and model, in half of the time.
    The clock stands still but for one second per step."""
    now, seen = [0.0], list[tuple[str, float]]()
    monkeypatch.setattr("graphopt.problems.problem._clock", lambda: now[0])

    def slow(name: str, made: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            seen.append((name, now[0]))
            now[0] += 1.0
            return made(*args, **kwargs)

        return step

    for name in STEPS:
        monkeypatch.setattr(cpsat, name, slow(name, getattr(cpsat, name)))
    task = joint(pair(link_bandwidth=4.0))
    found = solved(solver(effort=None), small_graph(0, 40), task, evals=40, seconds=seconds)
    assert [name for name, _ in seen] == STEPS[:begun]
    assert all(at < 0.5 * seconds for name, at in seen if name in STEPS[2:5])
    assert found.evals > 0 or seconds == 3.0


def test_long_loops_look_at_the_clock() -> None:
    """The kernels of a problem are listed, and models begun, in stretches of a few hundred items."""
    looks: list[int] = []
    work = work_of(small_graph(0, 3000), pair(link_bandwidth=4.0), lambda: looks.append(0))
    assert len(looks) >= len(work.op) / EVERY
    for n in (0, 1, EVERY, EVERY + 1):
        assert list(watched(range(n), lambda: looks.append(1))) == list(range(n))
    assert looks.count(1) == 4


def test_a_graph_without_a_kernel_has_nothing_to_solve() -> None:
    b = GraphBuilder("nothing")
    b.op("reshape", [b.tensor((2, 3), num_bytes=8)], [b.tensor((3, 2), num_bytes=8)])
    found = solved(solver(effort=None), b.build(), joint(pair()), evals=9)
    assert found.best_cost == found.initial_cost


def test_the_row_says_that_time_was_too_short(tmp_path) -> None:
    task = joint(pair(link_bandwidth=4.0))
    cost, rows = simulator(task.machine), RowFile(tmp_path / "cell" / "rows.jsonl")
    method = Method(solver(), {"algo": "cpsat", "config_hash": "0"})
    assert evaluate([method], [small_graph(0, 40)], Context(task, cost, cost, {}, seconds=0.0), budgets=[10], seeds=[0],
                    rows=rows, study_path=tmp_path) == 0  # fmt: skip
    row = rows.rows[0]
    assert row["status"] == "ok" and row["judged"] == row["initial"]
    assert "0 s are too short" in row["reason"]


# --- Searches on published task graphs with known optima: mean excess over the optimum.


def excess(known: dict[str, Any], algo: str, evals: int = 5000, **changes: Any) -> float:
    """(found - optimum) / optimum, in per cent."""
    task = joint(identical(known["m"]))
    optimizer = option("algo", algo, {"machine": task.machine, "task": task}, **changes)
    found = solved(optimizer, read_stg(check_data("scheduling") / known["file"]), task, evals=evals, seed=0)
    assert found.best_cost >= known["lb"]
    return 100 * (found.best_cost / known["ub"] - 1)


def test_seeded_brkga_on_four_processors() -> None:
    """The hardest number of processors of the set, every fourth instance."""
    chosen = [known for known in published() if known["m"] == 4][::4]
    assert np.mean([excess(known, "brkga", start="heuristic") for known in chosen]) <= 0.5


def test_local_search_on_every_fifth() -> None:
    """Graphs on 2, 4, 8 and 16 processors, from the best heuristic."""
    assert np.mean([excess(known, "regal_local", start="heuristic") for known in published()[::5]]) <= 0.5


ALL = [("heuristic", 5000, 100, 0.5), ("random", 5000, 100, 1.5), ("random", 40_000, 300, 0.5)]


@pytest.mark.slow
@pytest.mark.parametrize(("start", "evals", "population", "limit"), ALL)
def test_brkga_on_all_instances(start: str, evals: int, population: int, limit: float) -> None:
    """Plain, it needs more evaluations than one that knows list schedules: its keys pin every op to a device, so it has
    to find balanced loads by chance. On four processors, where loads are tightest, it is worst."""
    evolution = {"population": population, "elites": 0.2, "mutants": 0.1, "elite_bias": 0.7}
    found = [excess(known, "brkga", evals, start=start, evolution=evolution) for known in published()]
    assert np.mean(found) <= limit
