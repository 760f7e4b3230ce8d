"""The search of placement, order and fusion together: what it spends, that it finds optima of tiny graphs, stages."""

import numpy as np
import pytest
from cells import joint, option, simulator
from fusion_graphs import GPU, PLAIN, Net, random_graph
from test_lower_bound import MACHINES, least_of_all, tasks_on, tiny

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Role
from graphopt.problems.optimizer import solve
from graphopt.search.walks.joint_search import BestKeys, JointSearch

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


def towers(count: int, depth: int) -> Graph:
    """Towers of a matrix product and elementwise ops that only meet at the end: fusing and spreading both pay."""
    net = Net("towers")
    tops = []
    for tower in range(count):
        x = net.x(64, 64)
        for level in range(depth):
            weight = net.tensor((64, 64), weight=True)
            x = net("matmul", x, weight, name=f"m{tower}.{level}", shape=(64, 64), flops=2.0 * 64**3)
            for kind in ("relu", "exp", "tanh"):
                x = net(kind, x, name=f"{kind}{tower}.{level}", shape=(64, 64))
        tops.append(x)
    return net.done(*tops)


def test_fused_kernels_are_placed_better_than_by_the_sequence() -> None:
    """A transfer takes as long as some launches: what placement saves shrinks when the kernels are fused afterwards."""
    on = Machine(name="gpus", devices=(GPU, GPU, GPU, GPU), link_bandwidth=12e9, link_latency=1e-5)
    cost, task = simulator(on), joint(on, fuse=True)
    found = {together: solve(made(together), towers(4, 3), task, cost, evals=300)[0] for together in (True, False)}
    assert found[True].best_cost <= found[False].best_cost
    assert found[True].best_cost < 0.4 * found[True].initial_cost
