"""Heuristics: orders against plain versions, partitions on graphs whose best cut is known, plans in keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.problems.problem import Problem
from graphopt.search.heuristics import partition, rules, starts
from graphopt.search.heuristics.encoding import encode
from graphopt.tasks.joint import Joint
from graphopt.tasks.placement import Placement
from graphopt.tasks.scheduling import Scheduling
from graphopt.tasks.task import AssignTask

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def machine(devices: int, speed: float = 1.0) -> Machine:
    made = tuple(
        Device(vector_flops=speed if d else 1.0, contraction_flops=speed if d else 1.0) for d in range(devices)
    )
    return Machine(name="m", devices=made, link_bandwidth=10.0)


def problem(graph: Graph, on: Machine, task: AssignTask | None = None, objective="runtime") -> Problem:
    task = task or Joint(name="t", machine=on, levels=16, fuse=False, **CAPS)
    return Problem(graph, task, Simulator(name="s", machine=on, objective=objective, threads=1), evals=100)


def work_of(problem: Problem) -> rules.SchedulingInstance:
    return rules.SchedulingInstance(problem.graph, problem.task)


def random_graph(seed: int, ops: int) -> Graph:
    """Ops with one or two results of different sizes, some of them graph outputs."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made = [b.tensor((1,), num_bytes=7)]
    for n in range(ops):
        count = int(rng.integers(1, 3))
        results = [b.tensor((1,), num_bytes=int(rng.integers(1, 50))) for _ in range(count)]
        reads = rng.choice(len(made), min(len(made), int(rng.integers(1, 4))), replace=False)
        b.op("opaque", [made[i] for i in reads], results, flops=float(rng.integers(1, 9)), name=f"op{n}")
        made += results
    b.output(made[-1])
    return b.build()


def plain_memory_greedy(graph: Graph) -> list[int]:
    """The rule read aloud: at every step look at every ready op."""
    ops = range(graph.num_ops)
    left = {t: {n for n in ops if t in graph.operands(n)} for t in range(graph.num_tensors)}
    done: list[int] = []
    while len(done) < graph.num_ops:
        best = None
        for n in set(ops) - set(done):
            if all(graph.producer[t] < 0 or graph.producer[t] in done for t in graph.operands(n)):
                freed = sum(int(graph.tensor_bytes[t]) for t in set(graph.operands(n).tolist())
                            if left[t] == {n} and not graph.is_output[t])  # fmt: skip
                best = min(best or (np.inf, 0), (int(graph.result_bytes[n]) - freed, n))
        done.append(best[1])
        for readers in left.values():
            readers.discard(best[1])
    return done


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 25))
def test_memory_greedy_is_the_plain_version(seed, ops):
    graph = random_graph(seed, ops)
    urgency = rules.order_memory_greedy(work_of(problem(graph, machine(2))), np.zeros(ops, np.int16))
    assert np.argsort(-urgency, kind="stable").tolist() == plain_memory_greedy(graph)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 40))
def test_depth_first_is_a_topological_order_in_which_chains_stay_together(seed, ops):
    graph = random_graph(seed, ops)
    urgency = rules.order_depth_first(work_of(problem(graph, machine(2))), np.zeros(ops, np.int16))
    source, target, _ = graph.edges
    assert len(set(urgency.tolist())) == ops
    assert (urgency[source] > urgency[target]).all()


def test_depth_first_finishes_one_chain_before_the_next():
    b = GraphBuilder("two chains, woven")
    ends = [b.tensor((1,)), b.tensor((1,))]
    for step in range(5):
        for chain in (0, 1):
            result = b.tensor((1,))
            b.op("opaque", [ends[chain]], [result], flops=1.0, name=f"{chain}_{step}")
            ends[chain] = result
    for end in ends:
        b.output(end)
    graph = b.build()
    urgency = rules.order_depth_first(work_of(problem(graph, machine(2))), np.zeros(10, np.int16))
    order = [graph.op_names[n] for n in np.argsort(-urgency)]
    assert order == [f"{chain}_{step}" for chain in (0, 1) for step in range(5)]


def cliques(count: int, size: int, seed: int) -> tuple[Graph, list[int]]:
    """Groups of ops that send each other much, in random op order, joined by a little; and the group of every op."""
    rng, b = np.random.default_rng(seed), GraphBuilder("cliques")
    group = rng.permutation(np.repeat(np.arange(count), size)).tolist()
    last: list[list[int]] = [[] for _ in range(count)]
    light = []
    for n, g in enumerate(group):
        heavy, thin = b.tensor((1,), num_bytes=1000), b.tensor((1,), num_bytes=1)
        b.op("opaque", [*last[g], *light[-1:]], [heavy, thin], flops=1.0, name=f"op{n}")
        last[g].append(heavy)
        light.append(thin)
    b.output(light[-1])
    return b.build(), group


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("method", ["spectral", "metis"])
def test_partitions_find_the_groups(count: int, method: str):
    if method == "metis":
        pytest.importorskip("pymetis", reason="the solvers extra is not installed")
    graph, group = cliques(count, 9, seed=count)
    work = work_of(problem(graph, machine(count)))
    for kind in ("time", "bytes"):
        device = rules.place_spectral(work, kind) if method == "spectral" else rules.place_metis(work, kind, 0.03)
        assert len(set(zip(group, device.tolist(), strict=True))) == count  # one device for each group
        assert len(set(device.tolist())) == count


@pytest.mark.parametrize("place", [rules.place_blocks, rules.place_spectral])
def test_shares_follow_what_devices_can_do(place):
    """A device that is three times as fast gets three quarters of the time, a larger one more of the bytes."""
    graph, _ = cliques(25, 8, seed=0)
    work = work_of(problem(graph, machine(2, speed=3.0)))
    time = work.weight("time")
    assert time[place(work, "time") == 1].sum() / time.sum() == pytest.approx(0.75, abs=0.06)
    roomy = Machine(name="m", devices=(Device(capacity=4e9), Device(capacity=1e9)), link_bandwidth=10.0)
    work = work_of(problem(graph, roomy))
    held = work.weight("bytes")
    assert held[place(work, "bytes") == 0].sum() / held.sum() == pytest.approx(0.8, abs=0.06)


def test_a_large_graph_is_cut_along_its_order_with_few_bytes():
    """Beyond `EXACT` ops the smoothed order cuts no more bytes than equal blocks do."""
    graph = layered_graph(partition.EXACT + 1000, np.random.default_rng(5), "large")
    work = work_of(problem(graph, machine(4)))
    upper = work.edges.tocoo()
    cut = [
        upper.data[device[upper.row] != device[upper.col]].sum()
        for device in (rules.place_spectral(work, "time"), rules.place_blocks(work, "time"))
    ]
    assert cut[0] <= cut[1]


def test_every_heuristic_says_a_sound_plan_and_says_it_again():
    graph = layered_graph(80, np.random.default_rng(1), "g")
    for name, heuristic in rules.HEURISTICS.items():
        first, again = (heuristic(work_of(problem(graph, machine(3)))) for _ in range(2))
        assert np.array_equal(first.device, again.device) and np.array_equal(first.urgency, again.urgency), name
        assert first.device.min() >= 0 and first.device.max() < 3 and np.isfinite(first.urgency).all(), name
        opened = problem(graph, machine(3))
        plan = opened.task.realise_keys(graph, encode(opened, *first)[None])
        runs = ~plan.inline[0]
        assert np.array_equal(plan.device[0][runs], first.device[runs]), name


def test_a_task_is_offered_what_differs_under_it():
    """Orders where devices are fixed, placements where orders are."""
    graph, on = layered_graph(60, np.random.default_rng(2), "g"), machine(2)
    scheduling = Scheduling(name="s", machine=on, levels=16, placement="blocks", fuse=False, **CAPS)
    placement = Placement(name="p", machine=on, fuse=False, **CAPS)
    both = len(starts.heuristic_keys(problem(graph, on)))
    for task in (scheduling, placement):
        keys = starts.heuristic_keys(problem(graph, on, task))
        assert 1 < len(np.unique(keys, axis=0)) == len(keys) < both
