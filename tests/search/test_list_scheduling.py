"""List schedules against published figures, a plain version, another implementation, and the simulator."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cells import identical, joint, opened, placement, simulator
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.list_schedule import (
    Dependencies,
    Schedule,
    bottom_levels,
    dependencies,
    heft,
    links,
    list_by_bottom_level,
)
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.graphs.readers.formats.task_graphs import read_stg
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import OutOfBudget
from graphopt.search.heuristics.schedules import Heft, ListBottomLevel


def schedule_kernels(graph: Graph, machine: Machine, rule) -> Schedule:
    kernels = kernel_graph(graph, view_inline(graph), machine.devices)
    needs = dependencies(graph, kernels.in_ptr, kernels.in_tensor)
    return rule(kernels.time, kernels.is_kernel, needs, links(machine))


def assert_the_simulator_plays(graph: Graph, machine: Machine, schedule: Schedule) -> None:
    plan = Plans(graph, schedule.device[None], schedule.urgency[None], view_inline(graph)[None])
    assert simulator(machine).price(plan).cost[0] == schedule.makespan


def test_list_scheduling_by_bottom_level_reproduces_published_instances():
    for known in json.loads((check_data("scheduling") / "known.json").read_text()):
        graph, machine = read_stg(check_data("scheduling") / known["file"]), identical(known["m"])
        schedule = schedule_kernels(graph, machine, list_by_bottom_level)
        assert schedule.makespan == known["list_blevel"] == solved_price(graph, known["m"], 0), known["file"]
        assert_the_simulator_plays(graph, machine, schedule)
        assert solved_price(graph, known["m"], 1) <= known["list_blevel"], known["file"]


def random_tasks(seed: int, tasks: int, devices: int) -> tuple[np.ndarray, Dependencies, Machine]:
    rng = np.random.default_rng(seed)
    count = np.minimum(rng.integers(0, 4, tasks), np.arange(tasks))
    source = [rng.choice(n, count[n], replace=False) for n in range(tasks)]
    needs = Dependencies(
        np.append(0, np.cumsum(count)).astype(np.int64), np.concatenate(source).astype(np.int32),
        rng.uniform(0, 10, int(count.sum())),
    )  # fmt: skip
    bandwidth = rng.uniform(0.5, 2, (devices, devices))
    machine = identical(devices, link_bandwidth=tuple(map(tuple, bandwidth.tolist())), link_latency=0.25)
    return rng.uniform(1, 5, (tasks, devices)), needs, machine


def plain_heft(time_ND, needs, machine):
    """HEFT from its definition: ranks by recursion, every gap tried."""
    tasks, devices = time_ND.shape
    latency, bandwidth = machine.link_latency_DD, machine.link_bandwidth_DD
    pairs = [(i, j) for i in range(devices) for j in range(devices) if i != j]
    reads = [
        [(int(needs.source[e]), needs.size[e]) for e in range(needs.ptr[n], needs.ptr[n + 1])] for n in range(tasks)
    ]
    rank = [0.0] * tasks
    for n in reversed(range(tasks)):
        later = [rank[m] + (np.mean([latency[p] + size / bandwidth[p] for p in pairs]) if pairs else 0.0)
                 for m in range(tasks) for source, size in reads[m] if source == n]  # fmt: skip
        rank[n] = time_ND[n].mean() + max(later, default=0.0)
    where, end, busy = [0] * tasks, [0.0] * tasks, [[] for _ in range(devices)]
    for n in sorted(range(tasks), key=lambda n: -rank[n]):
        options = []
        for d in range(devices):
            ready = max((end[s] + (latency[where[s], d] + size / bandwidth[where[s], d] if where[s] != d else 0)
                         for s, size in reads[n]), default=0.0)  # fmt: skip
            gaps = [ready, *(e for _, e in busy[d] if e >= ready)]
            fits = [g for g in gaps if all(g + time_ND[n, d] <= b or g >= e for b, e in busy[d])]
            options.append((min(fits) + time_ND[n, d], d))
        end[n], where[n] = min(options)
        busy[where[n]].append((end[n] - time_ND[n, where[n]], end[n]))
    return max(end), where


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), tasks=st.integers(2, 30), devices=st.integers(1, 4))
def test_heft_is_the_plain_version(seed, tasks, devices):
    time_ND, needs, machine = random_tasks(seed, tasks, devices)
    schedule = heft(time_ND, np.ones(tasks, bool), needs, links(machine))
    makespan, where = plain_heft(time_ND, needs, machine)
    assert schedule.makespan == pytest.approx(makespan, rel=1e-12)
    assert schedule.device.tolist() == where


def test_bottom_levels_by_hand():
    needs = Dependencies(np.array([0, 0, 1, 2, 4]), np.array([0, 0, 1, 2], np.int32), np.zeros(4))
    assert bottom_levels(np.array([1.0, 2, 3, 4]), needs, np.array([10.0, 20, 1, 2])).tolist() == [30.0, 7.0, 9.0, 4.0]


def fork(width: int) -> Graph:
    """A source, `width` equal branches of two ops, one of them ten times as long, and a sink."""
    b = GraphBuilder("fork")
    x, first = b.tensor((1,)), b.tensor((1,), num_bytes=0)
    b.op("opaque", [x], [first], flops=1.0)
    ends = []
    for i in range(width):
        middle, end = b.tensor((1,), num_bytes=0), b.tensor((1,), num_bytes=0)
        b.op("opaque", [first], [middle], flops=10.0 if i == width - 1 else 1.0)
        b.op("opaque", [middle], [end], flops=1.0)
        ends.append(end)
    last = b.tensor((1,))
    b.op("opaque", ends, [last], flops=1.0)
    b.output(last)
    return b.build()


@pytest.mark.parametrize("algo", [Heft(name="heft", caution=1.0), ListBottomLevel(name="list_blevel")])
def test_one_evaluation_finds_the_optimum_of_a_fork(algo):
    problem = opened(fork(4), joint(identical(2)), evals=1)
    algo.solve(problem)
    assert (problem.initial_cost, problem.best_cost, problem.evals) == (19.0, 13.0, 1)


def test_without_a_budget_the_schedule_is_committed():
    problem = opened(fork(3), placement(identical(2)), evals=0)
    try:
        Heft(name="heft", caution=1.0).solve(problem)
    except OutOfBudget:
        pytest.fail("nothing was to be priced")
    assert len(set(problem.solution().plans.device[0].tolist())) == 2
    assert problem.evals == 0


def plain_list(seconds: list[float], before: list[list[int]], processors: int) -> float:
    """The makespan of list scheduling by bottom level from its definition, time by time."""
    tasks = range(len(seconds))
    level = [0.0] * len(seconds)
    for n in reversed(tasks):
        level[n] = seconds[n] + max((level[m] for m in tasks if n in before[m]), default=0.0)
    now, end = 0.0, dict[int, float]()
    while len(end) < len(seconds):
        running = sum(time > now for time in end.values())
        done = {n for n, time in end.items() if time <= now}
        ready = [n for n in tasks if n not in end and done >= set(before[n])]
        for n in sorted(ready, key=lambda n: (-level[n], n))[: processors - running]:
            end[n] = now + seconds[n]
        now = min((time for time in end.values() if time > now), default=now)
    return max(end.values())


def random_task_graph(seed: int, tasks: int) -> tuple[Graph, list[float], list[list[int]]]:
    """Tasks of 1 to 10 seconds between two of none; many have equal bottom levels."""
    rng, b = np.random.default_rng(seed), GraphBuilder(f"random{seed}")
    seconds = [0.0, *rng.integers(1, 11, tasks).astype(float).tolist(), 0.0]
    before: list[list[int]] = [[]]
    for n in range(1, tasks + 1):
        first = max(1, n - int(rng.integers(5, 40)))
        chosen = rng.choice(np.arange(first, n), min(n - first, int(rng.integers(0, 5))), replace=False)
        before.append(chosen.tolist() or [0])
    before.append(sorted(set(range(1, tasks + 1)) - {m for makers in before for m in makers}))
    results = [b.tensor((0,), "uint8") for _ in seconds]
    for n, time in enumerate(seconds):
        b.op("opaque", [results[m] for m in before[n]], [results[n]], flops=time, name=f"t{n}")
    return b.build(), seconds, before


def solved_price(graph: Graph, processors: int, evals: int) -> float:
    task = joint(identical(processors))
    solved, _ = solve(ListBottomLevel(name="list_blevel"), graph, task, simulator(task.machine), evals=evals)
    assert solved.evals <= min(evals, 5)
    return solved.best_cost


@pytest.mark.parametrize("processors", [2, 3, 4, 8])
def test_one_evaluation_or_none_is_the_plain_list_schedule(processors):
    """Decisions have 16 levels of priority, too few for the bottom levels of 100 tasks; answers need not have them."""
    better = 0
    for seed in range(20):
        graph, seconds, before = random_task_graph(seed, 60 + 5 * (seed % 12))
        expected = plain_list(seconds, before, processors)
        assert solved_price(graph, processors, 0) == expected
        assert solved_price(graph, processors, 1) <= expected  # the default may be better
        more = solved_price(graph, processors, 100)
        assert more <= expected
        better += more < expected
    assert better > 0 or processors == 8  # other ties pay


def test_a_task_without_work_keeps_its_processor_at_that_instant():
    """Started at time 0 beside another: what waits for it starts in the next round, after a ready task took the other
    processor. So the event simulator plays the very schedule."""
    for seed in range(60):
        graph, seconds, _ = random_task_graph(seed, 12)
        rng = np.random.default_rng(seed)
        flops = np.where(rng.random(len(seconds)) < 0.4, 0.0, graph.flops)
        graph = replace(graph, flops=flops)
        schedule = schedule_kernels(graph, identical(2), list_by_bottom_level)
        assert_the_simulator_plays(graph, identical(2), schedule)
