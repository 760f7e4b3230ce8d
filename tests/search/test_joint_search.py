"""Optima of tiny graphs, by all plans: the lower bound is below them, the joint search finds them."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from cells import fusion, joint, option, placement, scheduling, simulator
from fusion_graphs import GPU, PLAIN, RICH, XLA, Net, random_graph

from graphopt.core.errors import Unsolved
from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.plan import Role
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import solve
from graphopt.search.solvers.lower_bound import LowerBound, Tasks, backwards, free_starts, shares_bound
from graphopt.search.walks.joint_search import BestKeys, JointSearch

# --- The lower bound against all plans of tiny graphs, and where it is known by hand.


SLOW = Device(launch=0.4, vector_flops=150.0, contraction_flops=1000.0, bandwidth=300.0)


def machine(*devices: Device, latency: float, per_byte: float, rule: TransferRule | None = None) -> Machine:
    return Machine(name="tiny", devices=devices, link_bandwidth=1 / per_byte, link_latency=latency,
                   transfer=rule or TransferRule())  # fmt: skip


MACHINES = (
    machine(PLAIN, PLAIN, latency=0.3, per_byte=1e-4),
    machine(RICH, SLOW, latency=0.1, per_byte=1e-3),
    machine(GPU, GPU, latency=1e-6, per_byte=1e-10, rule=TransferRule(multicast=True, op_overhead=1e-6)),
)


def tasks_on(on: Machine) -> list[AssignTask]:
    fixed = [scheduling(on, place, levels=8) for place in ("heft", "blocks")]
    both = [joint(on, levels=8, fuse=fuse) for fuse in (True, False)]
    return [fusion(on), placement(on, fuse=True), *fixed, *both]


def bounded(graph: Graph, task: AssignTask, objective: str = "runtime") -> AssignProblem:
    return solve(LowerBound(name="lower_bound"), graph, task, simulator(task.machine, objective), evals=0)[0]


def least_of_all(task: AssignTask, graph: Graph, cost: Simulator) -> float:
    """The price of the best of all decisions, with every order of the ops as priorities."""
    free, counts = task.mask(graph), task.counts(graph)
    parts = []
    for column, head in enumerate(task.heads):
        ops = np.flatnonzero(free[:, column] & (counts[:, column] > 1))
        rows = (
            permutations(range(len(ops)))
            if head.role == Role.PRIORITY
            else product(*(range(counts[op, column]) for op in ops))
        )
        parts.append([(ops, column, np.array(row, np.int16)) for row in rows])
    decisions = np.repeat(task.initial(graph)[None], math.prod(map(len, parts)), 0)
    for decision, several in zip(decisions, product(*parts), strict=True):
        for ops, column, row in several:
            decision[ops, column] = row
    return min(
        float(cost.price(task.realise(graph, part)).cost.min())
        for part in np.array_split(decisions, min(8, len(decisions)))
    )


def tiny(seed: int) -> Graph:
    """Three or four kernels of all kinds, views among them."""
    for draw in range(10_000):
        graph = random_graph(1000 * seed + draw, int(draw % 4))
        if np.count_nonzero(~view_inline(graph)) in (3, 4):
            return graph
    raise AssertionError("no tiny graph was drawn")


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_below_the_bound(seed: int) -> None:
    graph, on = tiny(seed), MACHINES[seed % len(MACHINES)]
    for task in tasks_on(on):
        problem, best = bounded(graph, task), least_of_all(task, graph, simulator(on))
        assert 0 < problem.bound <= best, task.name
        assert problem.best_cost == problem.initial_cost and problem.evals == 0


def chain_and_branch() -> Tasks:
    """Task 3 reads 1 and 2, which both read 0; 2 s each, 3 s from device to device."""
    return Tasks(np.full(4, 2.0), np.array([0, 0, 1, 2, 4]), np.array([0, 0, 1, 2], np.int32), np.full(4, 3.0))


def test_earliest_starts_by_hand() -> None:
    """Either 1 and 2 run one after the other beside 3, or one of them comes from elsewhere, 3 s later: at 6 s both."""
    assert free_starts(chain_and_branch()).tolist() == [0.0, 2.0, 2.0, 6.0]
    near = chain_and_branch()._replace(travel=np.full(4, 0.5))
    assert free_starts(near).tolist() == [0.0, 2.0, 2.0, 4.5]
    assert free_starts(backwards(near)).tolist() == [0.0, 2.0, 2.0, 4.5]  # the same, turned round
    assert free_starts(backwards(backwards(near))).tolist() == [0.0, 2.0, 2.0, 4.5]


def test_shares_by_hand() -> None:
    """Six tasks of 1 s on two devices that start at 1 s at the earliest, and after which 2 s are left."""
    assert shares_bound(np.ones(6), np.ones(6), np.full(6, 2.0), 2) == 1.0 + 3.0 + 2.0
    assert shares_bound(np.array([0.0, 5.0]), np.array([1.0, 1.0]), np.array([0.0, 0.0]), 1) == 6.0


def test_a_chain_has_no_room_for_placement_and_says_so() -> None:
    net = Net("chain")
    x = net.x()
    for i in range(6):
        x = net("relu", x, name=f"r{i}")
    problem = bounded(net.done(x), placement(MACHINES[0]))
    assert problem.bound == pytest.approx(problem.initial_cost, rel=1e-8)


def test_what_has_no_bound_is_refused() -> None:
    with pytest.raises(Unsolved, match=r"needs cost\.objective=runtime .*, not peak_memory"):
        bounded(tiny(0), placement(MACHINES[0]), "peak_memory")
    with pytest.raises(Unsolved, match="fusion_model=roofline"):
        bounded(tiny(0), joint(machine(XLA, XLA, latency=1e-6, per_byte=1e-10), fuse=True))


# --- The search of placement, order and fusion together: what it spends, optima of tiny graphs, stages.


ON = Machine(name="two", devices=(PLAIN, PLAIN), link_bandwidth=1e4, link_latency=0.2)
COST, JOINT = simulator(ON), joint(ON, levels=8, fuse=True)


def made(together: bool = True) -> JointSearch:
    search: JointSearch = option("algo", "joint_search", together=together)
    return search


@pytest.mark.parametrize("seed", range(6))
def test_tiny_graphs_are_solved_on_every_task(seed: int) -> None:
    graph, on = tiny(seed), MACHINES[seed % len(MACHINES)]
    cost = simulator(on)
    for task in tasks_on(on):
        problem, _ = solve(made(), graph, task, cost, evals=600, seed=seed)
        assert problem.best_cost <= least_of_all(task, graph, cost) * (1 + 1e-9), task.name


@pytest.mark.parametrize("role", list(Role)[:3])
def test_a_stage_moves_what_it_is_about_and_nothing_else(role: Role) -> None:
    search, problem = made(together=False), JOINT.open(random_graph(5, 30), COST, evals=200, seed=0)
    state = BestKeys(problem, search.depth)
    before = state.best.copy()
    state.begin((role,), 60)
    state.go_on((role,), 200, search.walk)
    heads = {Role.DEVICE: (0,), Role.PRIORITY: (1, -1), Role.FUSION: (2,)}[role]
    mine = np.isin(JOINT.layout(problem.graph).head, heads)
    assert (state.best[mine] != before[mine]).any() and np.array_equal(state.best[~mine], before[~mine])
    assert problem.evals == 200 and state.cost == problem.best_cost


def test_it_places_before_it_fuses_where_a_share_is_given_to_that() -> None:
    search = made()
    placing, fusing = (Role.DEVICE, Role.PRIORITY), (Role.FUSION,)
    problem = JOINT.open(random_graph(5, 30), COST, evals=200, seed=0)
    search.begin = (0.1, 0.3, 0.5)
    assert [stage.roles for stage in search.stages(problem)] == [placing, fusing, placing, (*placing, *fusing)]
    for task in tasks_on(ON):
        stages = search.stages(task.open(problem.graph, COST, evals=200, seed=0))
        others = task.decides(Role.DEVICE) or task.decides(Role.PRIORITY)
        assert len(stages) == (4 if others and task.decides(Role.FUSION) else 2), task.name


@pytest.mark.parametrize("begun", [1, 2, 3])
def test_a_suggestion_is_priced_once_however_often_a_search_begins_with_it(begun: int) -> None:
    graph = random_graph(5, 30)
    for task in tasks_on(ON):
        if task.decides(Role.FUSION):  # what is suggested then depends on what is fused
            continue
        problem = task.open(graph, COST, evals=200, seed=0)
        state = BestKeys(problem, 2)
        for _ in range(begun):
            state.begin((Role.DEVICE, Role.PRIORITY), 200)
        assert problem.evals == problem.distinct > 0, task.name
