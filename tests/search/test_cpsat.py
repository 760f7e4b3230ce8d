"""Solvers: CP-SAT's models, and published schedules."""

import itertools
import json
from collections.abc import Sequence

import numpy as np
import pytest
from check_data import check_data
from costs.random_plans import random_graph, random_machine

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.utils import registry
from graphopt.costs.event_arrays import GRID
from graphopt.costs.simulator import Simulator
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.task_graphs import read_stg
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.placement import Joint, Placement, Scheduling
from graphopt.run.config.construct import construct
from graphopt.run.evaluate import Context, Method, evaluate
from graphopt.run.records.rows import RowFile
from graphopt.search.genetic.evolution import uniform_keys
from graphopt.search.solvers import cpsat
from graphopt.search.solvers.cpsat import CpSat, spread
from graphopt.search.solvers.makespan_model import anywhere, least_makespan
from graphopt.search.solvers.memory_model import least_memory
from graphopt.search.solvers.workload import EVERY, grain, interchangeable, renamed, watched, workload

# --- CP-SAT against all plans of small graphs, random plans under every rule, and published optima.

pytest.importorskip("ortools", reason="the solvers extra is not installed")

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def solver(**changes: object) -> CpSat:
    settings = {"seconds": 60.0, "effort": 0.5, "workers": 1, "lanes": True, "max_intervals": 5000}
    return CpSat(name="cpsat", **(settings | changes))


def both(machine: Machine, fuse: bool = False) -> Joint:
    return Joint(name="both", machine=machine, levels=16, fuse=fuse, **CAPS)


def simulator(machine: Machine, objective: str = "runtime") -> Simulator:
    return Simulator(name="s", machine=machine, objective=objective, threads=1)


def pair(**fields: object) -> Machine:
    """Two devices that are alike, or by `fields` of the machine."""
    return Machine(name="pair", devices=(Device(), Device()), **fields)


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
    rule = TransferRule(lane=lane)
    graph, machine = small_graph(seed, 5), pair(link_bandwidth=4.0, link_latency=0.5, transfer=rule)
    task, cost = both(machine), simulator(machine, objective)
    problem, _ = solve(solver(), graph, task, cost, evals=60)
    optimum = all_plans(task, graph, cost)
    assert 0 < problem.bound <= optimum <= problem.best_cost
    if objective == "runtime":
        assert problem.best_cost == optimum


@pytest.mark.parametrize("seed", range(24))
def test_no_plan_is_below_the_bound(seed: int) -> None:
    """Whatever the machine's transfer rule, the task and the objective: random plans of random graphs."""
    rng = np.random.default_rng(seed)
    graph, machine = random_graph(rng, int(rng.integers(2, 12))), random_machine(rng)
    tasks = (
        both(machine), Placement(name="p", machine=machine, fuse=False, **CAPS),
        Scheduling(name="s", machine=machine, levels=16, placement="heft", fuse=True, **CAPS),
        Scheduling(name="s", machine=machine, levels=16, placement="single", fuse=False, **CAPS),
    )  # fmt: skip
    task = tasks[seed % 4]
    for objective in ("runtime", "peak_memory"):
        cost = simulator(machine, objective)
        found, _ = solve(solver(effort=0.2, lanes=bool(seed % 3)), graph, task, cost, evals=20)
        rule = machine.transfer
        proves = rule.clock == "grid" and (objective == "runtime" or rule.free == "end")
        assert (found.bound > 0) == (proves and found.best_cost > 0)
        keys = uniform_keys(task.key_count(graph))(rng, 500)
        assert found.bound <= min(cost.price(task.realise_keys(graph, keys)).cost.min(), found.best_cost)


def test_what_is_rounded_stays_below() -> None:
    """Times without a common divisor are rounded down, so the bound is below and near the optimum of a chain."""
    b, x = GraphBuilder("chain"), None
    times = np.random.default_rng(0).uniform(0.1, 3.0, 12)
    for seconds in times:
        y = b.tensor((1,))
        b.op("opaque", [] if x is None else [x], [y], flops=float(seconds))
        x = y
    b.output(x)
    graph, machine = b.build(), pair(link_latency=0.1)
    found, _ = solve(solver(), graph, both(machine), simulator(machine), evals=5)
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
        weight, y, z = (
            b.tensor((1,), weight=True, num_bytes=3),
            b.tensor((1,), num_bytes=1),
            b.tensor((1,), num_bytes=0),
        )
        b.op("opaque", [weight], [y], flops=1.0)
        b.op("opaque", [y], [z], flops=1.0)
        b.output(z)
    machine = Machine(name="small", devices=(Device(capacity=8.0), Device(capacity=8.0)), link_latency=9.0)
    found, _ = solve(solver(), b.build(), both(machine), simulator(machine), evals=30)
    assert found.initial_cost == np.inf
    assert found.best_cost == found.bound == 4.0


def test_fused_plans_are_not_bounded() -> None:
    graph, machine = layered_graph(20, np.random.default_rng(0), "layered"), pair()
    found, _ = solve(solver(effort=0.1), graph, both(machine, fuse=True), simulator(machine), evals=9)
    assert found.bound == 0.0 and found.evals <= 9


def test_too_large_a_model_is_not_built() -> None:
    graph, machine = layered_graph(40, np.random.default_rng(0), "layered"), pair(link_latency=0.1)
    with pytest.warns(UserWarning, match="over 50, so the best heuristic is the answer"):
        found, _ = solve(solver(max_intervals=50), graph, both(machine), simulator(machine), evals=100)
    assert found.evals > 0 and 0 < found.bound <= found.best_cost < found.initial_cost
    unlimited, _ = solve(solver(effort=0.1, max_intervals=2 * graph.num_ops), graph, both(machine), simulator(machine),
                         evals=100)  # fmt: skip
    assert unlimited.bound > 0  # without lanes it fits


def test_limited_by_effort_it_repeats() -> None:
    graph, machine = layered_graph(40, np.random.default_rng(1), "layered"), pair(link_latency=0.01)
    first, again = (
        solve(solver(effort=0.3, workers=2), graph, both(machine), simulator(machine), evals=40, seed=5)[0]
        for _ in range(2)
    )
    assert [(s.evals, s.cost) for s in first.trace] == [(s.evals, s.cost) for s in again.trace]
    assert first.bound == again.bound


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
    b.op("opaque", [w], [x], flops=2.0)
    b.op("opaque", [x], [y], flops=3.0)
    b.op("opaque", [x], [z], flops=4.0)
    graph = b.build()

    def work(*devices: Device):
        machine = Machine(name="m", devices=devices)
        return workload(AssignProblem(graph, both(machine), simulator(machine), evals=1), lambda: None)

    alone, two = work(Device()), work(Device(), Device(vector_flops=2.0))
    assert (least_makespan(alone) * GRID, least_makespan(two) * GRID) == (9.0, 3.0)
    assert (least_memory(alone), least_memory(two)) == (8 + 6 + 2, 8 + 6)


def test_when_devices_are_interchangeable() -> None:
    graph = small_graph(0, 4)

    def work(machine: Machine):
        return workload(AssignProblem(graph, both(machine), simulator(machine), evals=1), lambda: None)

    assert anywhere(work(pair())) and interchangeable(work(pair()))
    far = work(pair(link_latency=1.0))
    assert not anywhere(far) and interchangeable(far)
    assert dict(renamed(far, [1, 1, 0])) == {1: 0, 0: 1}
    slow = work(Machine(name="two", devices=(Device(), Device(vector_flops=2.0))))
    assert not anywhere(slow) and not interchangeable(slow)
    assert not interchangeable(work(pair(link_latency=((0.0, 1.0), (2.0, 0.0)))))


def proves(known: dict[str, object], graph: Graph) -> None:
    machine = Machine(name="identical", devices=tuple(Device() for _ in range(known["m"])))
    found, seconds = solve(solver(seconds=10.0, effort=None, workers=2), graph, both(machine), simulator(machine),
                           evals=50)  # fmt: skip
    assert found.bound == known["lb"] and found.best_cost == known["ub"], (known, found.bound, found.best_cost, seconds)


HARD = [("50/rand0018.stg", 2), ("50/rand0001.stg", 4), ("50/rand0009.stg", 4), ("50/rand0007.stg", 4)]


@pytest.mark.parametrize(("file", "devices"), [*HARD, ("50/rand0003.stg", 8), ("50/rand0010.stg", 16)])
def test_published_optima_are_proved(file: str, devices: int) -> None:
    folder = check_data("scheduling")
    known = json.loads((folder / "known.json").read_text())
    proves(next(k for k in known if (k["file"], k["m"]) == (file, devices)), read_stg(folder / file))


@pytest.mark.slow
def test_all_published_optima_are_proved() -> None:
    folder = check_data("scheduling")
    for known in json.loads((folder / "known.json").read_text()):
        if known["optimal"]:
            proves(known, read_stg(folder / known["file"]))


class Clock:
    """Every look at it takes 10 ms."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


@pytest.mark.parametrize("objective", ["runtime", "peak_memory"])
@pytest.mark.parametrize("seconds", [0.0, 0.02, 0.5, 2.0])
def test_a_model_that_takes_too_long_is_given_up(seconds: float, objective: str, monkeypatch) -> None:
    """Building looks at the clock at every tensor, and ends at half of the time: the solver is never called."""
    graph, machine = small_graph(0, 400), pair(link_bandwidth=4.0)
    task, cost = both(machine), simulator(machine, objective)
    clock = Clock()
    monkeypatch.setattr("graphopt.problems.problem._clock", clock)
    monkeypatch.setattr("graphopt.search.solvers.cpsat.search", lambda *_: pytest.fail("no time was left"))
    found, _ = solve(solver(effort=None), graph, task, cost, evals=40, seconds=seconds)
    assert clock.now <= 0.55 * seconds + 0.2
    assert found.best_cost <= found.initial_cost
    assert found.evals <= 1 + 0.25 * seconds / 0.01
    answer = "default" if found.best_cost == found.initial_cost else "best heuristic"
    assert f"{seconds:g} s are too short for algo=cpsat" in found.notes[0] and answer in found.notes[0]
    if not seconds:
        assert found.evals == 0


def _steps(monkeypatch: pytest.MonkeyPatch, names: Sequence[str]) -> list[tuple[str, float]]:
    """(step, when it begins) of a solve whose clock stands still but for one second per step."""
    now, seen = [0.0], []
    monkeypatch.setattr("graphopt.problems.problem._clock", lambda: now[0])

    def slow(name: str):
        made = getattr(cpsat, name)

        def step(*args, **kwargs):
            seen.append((name, now[0]))
            now[0] += 1.0
            return made(*args, **kwargs)

        return step

    for name in names:
        monkeypatch.setattr(cpsat, name, slow(name))
    return seen


@pytest.mark.parametrize("seconds, begun", [(100.0, 6), (9.0, 5), (7.0, 4), (5.0, 3), (3.0, 2)])
def test_no_step_is_begun_when_its_time_is_over(seconds: float, begun: int, monkeypatch) -> None:
    """Heuristics come first, so that there is an answer; then work, bound, known run and model, in half of the time."""
    order = ["price_heuristics", "workload", "simple_bound", "best_run", "makespan_model", "search"]
    seen = _steps(monkeypatch, order)
    graph, machine = small_graph(0, 40), pair(link_bandwidth=4.0)
    found, _ = solve(
        solver(effort=None, workers=1), graph, both(machine), simulator(machine), evals=40, seconds=seconds
    )
    assert [name for name, _ in seen] == order[:begun]
    assert all(at < 0.5 * seconds for name, at in seen if name in ("simple_bound", "best_run", "makespan_model"))
    assert found.evals > 0 or seconds == 3.0


def test_long_loops_look_at_the_clock(monkeypatch) -> None:
    """The kernels of a problem are listed, and models begun, in stretches of a few hundred items."""
    graph, machine = small_graph(0, 3000), pair(link_bandwidth=4.0)
    looks: list[int] = []
    work = workload(AssignProblem(graph, both(machine), simulator(machine), evals=1), lambda: looks.append(0))
    assert len(looks) >= len(work.op) / EVERY
    for n in (0, 1, EVERY, EVERY + 1):
        assert list(watched(range(n), lambda: looks.append(1))) == list(range(n))
    assert looks.count(1) == 4


def test_a_graph_without_a_kernel_has_nothing_to_solve() -> None:
    b = GraphBuilder("nothing")
    x = b.tensor((2, 3), num_bytes=8)
    b.op("reshape", [x], [b.tensor((3, 2), num_bytes=8)])
    machine = pair()
    found, _ = solve(solver(effort=None), b.build(), both(machine), simulator(machine), evals=9)
    assert found.best_cost == found.initial_cost


def test_the_row_says_that_time_was_too_short(tmp_path) -> None:
    graph, machine = small_graph(0, 40), pair(link_bandwidth=4.0)
    task, cost = both(machine), simulator(machine)
    rows = RowFile(tmp_path / "cell" / "rows.jsonl")
    arena = Context(task, cost, cost, {}, seconds=0.0)
    facts = {"algo": "cpsat", "config_hash": "0"}
    assert evaluate([Method(solver(), facts)], [graph], arena, budgets=[10], seeds=[0], rows=rows,
                    study_path=tmp_path) == 0  # fmt: skip
    row = rows.rows[0]
    assert row["status"] == "ok" and row["judged"] == row["initial"]
    assert "0 s are too short" in row["reason"]


# --- Searches on published task graphs with known optima: mean excess over the optimum.


def excess(start: str, known: dict[str, object], evals: int = 5000, population: int = 100) -> float:
    """(found - optimum) / optimum, in per cent."""
    machine = Machine(name="identical", devices=tuple(Device() for _ in range(known["m"])))
    task = Joint(name="both", machine=machine, levels=16, fuse=False, max_ops=64, max_inputs=16, max_duplicates=8)
    cost = Simulator(name="s", machine=machine, objective="runtime", threads=1)
    node = registry.option("algo", "brkga") | {"start": start}
    node["evolution"]["population"] = population
    optimizer = construct(node, "algo", {"machine": machine, "task": task, "cost": cost})
    graph = read_stg(check_data("scheduling") / known["file"])
    found, _ = solve(optimizer, graph, task, cost, evals=evals, seed=0)
    assert found.best_cost >= known["lb"]
    return 100 * (found.best_cost / known["ub"] - 1)


def instances() -> list[dict[str, object]]:
    known: list[dict[str, object]] = json.loads((check_data("scheduling") / "known.json").read_text())
    return known


def test_seeded_brkga_on_four_processors() -> None:
    """The hardest number of processors of the set, every fourth instance."""
    chosen = [known for known in instances() if known["m"] == 4][::4]
    assert np.mean([excess("heuristic", known) for known in chosen]) <= 0.5


@pytest.mark.slow
def test_seeded_brkga_on_all_instances() -> None:
    assert np.mean([excess("heuristic", known) for known in instances()]) <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("evals", "population", "limit"), [(5000, 100, 1.5), (40_000, 300, 0.5)])
def test_plain_brkga_on_all_instances(evals: int, population: int, limit: float) -> None:
    """It needs more evaluations than one that knows list schedules: its keys pin every op to a device, so it has to
    find balanced loads by chance. On four processors, where loads are tightest, it is worst."""
    assert np.mean([excess("random", known, evals, population=population) for known in instances()]) <= limit
