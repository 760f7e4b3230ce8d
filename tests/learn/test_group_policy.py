"""GO's placement by groups: what groups are, that devices have no names, and that it learns which moves help."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fusion_graphs import GPU
from small_graphs import fit
from test_go import LEARNING, NETWORK, SEARCH

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.learn.encoders.convolutions import GraphSAGE
from graphopt.learn.go import GO
from graphopt.learn.placing.group_policy import (
    GroupPolicy,
    GroupSettings,
    PlanGroups,
    TaughtState,
    taught_state,
    taught_states,
)
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.placement import Placement

SETTINGS = GroupSettings(groups=12, partitions=False, samples=8, rate=0.1, again=4, states=6, temperature=0.3)
FAST_LINKS = {"link_bandwidth": 50e9, "link_latency": 1e-6}
QUICK_GPU = replace(GPU, launch=1e-6)
UNFUSED = {"fuse": False, "max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def machine(devices: int) -> Machine:
    return Machine(name="m", devices=(QUICK_GPU,) * devices, **FAST_LINKS)


def parts(devices: int) -> tuple[Placement, CostModel]:
    task = Placement(name="placement", machine=machine(devices), **UNFUSED)
    return task, Simulator(name="simulator", machine=task.machine, objective="runtime", threads=1)


def go(devices: int, **settings: Any) -> GO:
    torch.manual_seed(0)
    task, cost = parts(devices)
    encoder = GraphSAGE(
        name="sage", width=16, layers=1, dropout=0.0, aggregation="mean", extra_width=GO.extra_width(task)
    )
    return GO(name="go", task=task, cost=cost, encoder=encoder, seed=0, network=NETWORK, guided=True, search=SEARCH,
              learning=replace(LEARNING, rate=5e-3), placing=replace(SETTINGS, **settings))  # fmt: skip


def branches(count: int = 3, length: int = 8) -> Graph:
    """Chains of large products from one input: each belongs on a device of its own."""
    b = GraphBuilder(f"branches{count}x{length}")
    first = b.tensor((512, 512), num_bytes=2**20)
    b.op("relu", [], [first], flops=1e6, name="first")
    for branch in range(count):
        last = first
        for i in range(length):
            result = b.tensor((512, 512), num_bytes=2**20)
            b.op("matmul", [last], [result], flops=4e9, name=f"{branch}_{i}")
            last = result
        b.output(last)
    return b.build()


def problem_of(graph: Graph, devices: int, evals: int = 10_000) -> AssignProblem:
    task, cost = parts(devices)
    return AssignProblem(graph, task, cost, evals=evals, seed=0)


def test_groups_of_a_plan_by_hand() -> None:
    """A group lies on one device; what groups send, take and hold adds up to the graph's."""
    grouping = PlanGroups(problem_of(branches(), 3), replace(SETTINGS, groups=6))
    device_N = np.random.default_rng(0).integers(0, 3, grouping.problem.graph.num_ops)
    state = grouping.state(device_N)
    free = grouping.free
    assert np.array_equal(state.device.numpy()[state.of[free]], device_N[free])
    assert len(set(zip(grouping.base[free], device_N[free]))) == len(state.device) > 6
    assert state.ops.sum() == free.sum() and state.seconds.mean() == pytest.approx(1.0)
    within = state.of[grouping.instance.needs.source] == state.of[grouping._reader]
    assert state.sends.sum() == pytest.approx(1.0 - within.mean(), rel=1e-5) and not state.sends.diagonal().any()
    again = grouping.decisions(state, state.device.numpy()[None])[0]
    assert np.array_equal(again[free, 0], device_N[free])
    assert np.array_equal(grouping.decision(device_N), again)


def test_devices_have_no_names_and_any_number_is_served() -> None:
    """Other names of alike devices permute the answer; and untrained the device at hand has the prior's probability."""
    torch.manual_seed(0)
    policy, graph = GroupPolicy(8, 0.9), branches()
    torch.nn.init.normal_(policy.out.weight)
    h_NW = torch.randn(graph.num_ops, 8)
    for devices in (2, 3, 5):
        grouping, order = (
            PlanGroups(problem_of(graph, devices), replace(SETTINGS, groups=6)),
            np.roll(np.arange(devices), 1),
        )
        device_N = np.random.default_rng(1).integers(0, devices, graph.num_ops)
        one, other = grouping.state(device_N), grouping.state(order[device_N])
        said, again = policy(h_NW, one), policy(h_NW, other)
        rows = [other.of[np.flatnonzero(one.of == group)[0]] for group in range(len(one.device))]
        torch.testing.assert_close(again[rows][:, order], said)
        at_hand = torch.softmax(policy.prior(one), 1).gather(1, one.device[:, None])
        torch.testing.assert_close(at_hand, torch.full_like(at_hand, 0.9))


def test_advantages_are_prices_of_single_moves() -> None:
    problem = problem_of(branches(), 3)
    taught = taught_states(problem, SETTINGS)
    assert len(taught) == SETTINGS.states
    grouping = PlanGroups(problem, SETTINGS)
    for each in taught:
        at = each.state.device.numpy()
        cost = problem.cost(grouping.decisions(each.state, at[None]))[0]
        group, device = np.nonzero(np.arange(3) != at[:, None])
        moved = at[None].repeat(len(group), 0)
        moved[np.arange(len(group)), group] = device
        better = problem.cost(grouping.decisions(each.state, moved)) < cost
        assert np.array_equal(each.advantage.numpy()[group, device] > 0, better)
        assert not each.advantage.numpy()[np.arange(len(at)), at].any()


def random_plans(devices: int, seeds: range) -> list[TaughtState]:
    found = []
    for seed in seeds:
        problem = problem_of(branches(2 + seed % 3, 6), devices)
        grouping = PlanGroups(problem, SETTINGS)
        device_N = np.random.default_rng(seed).integers(0, devices, len(grouping.base))
        found.append(taught_state(problem, grouping, device_N))
    return [each for each in found if each is not None]


def test_it_learns_which_moves_help() -> None:
    """Of random plans, whose ops the states tell apart: the likeliest move makes nearly each cheaper."""
    torch.manual_seed(0)
    policy, plans = GroupPolicy(8, 0.9), random_plans(3, range(12))
    states = [torch.randn(len(taught.state.of), 8) for taught in plans]
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def improving_share() -> float:
        good = []
        for h_NW, taught in zip(states, plans, strict=True):
            with torch.no_grad():
                gain = policy(h_NW, taught.state) - policy.prior(taught.state)
            gain[torch.arange(len(gain)), taught.state.device] = -torch.inf
            good.append(float(taught.advantage.flatten()[gain.flatten().argmax()] > 0))
        return float(np.mean(good))

    before = improving_share()
    for step in range(480):
        loss = policy.loss(states[step % 12], plans[step % 12], 0.3)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert improving_share() > max(0.7, before + 0.3)


def test_training_reaches_the_encoder_and_a_checkpoint_serves_other_machines() -> None:
    learner = go(3)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    fit(learner, [branches(), branches(4, 6)], 2)
    moved = {name for name, value in learner.state_dict().items() if not torch.equal(before[name], value)}
    assert any(name.startswith("encoder") for name in moved) and any(name.startswith("groups") for name in moved)
    other = go(4)
    other.load_state_dict(learner.state_dict())
    assert learner.made_for() == other.made_for()


def test_every_price_of_training_is_counted() -> None:
    learner, asked = go(3), list[int]()
    price = learner.cost.price
    learner.cost.price = lambda plans: asked.append(len(plans)) or price(plans)  # type: ignore[method-assign,func-returns-value]
    learner.prepare_training([branches()])
    assert learner.train_evals == sum(asked) - 1 > 100  # the default's price is known


@pytest.mark.parametrize("evals", [0, 1, 7, 200])
def test_a_budget_is_spent_and_the_best_placement_of_branches_is_found(evals: int) -> None:
    """Each chain on a device of its own is the optimum: the work of one chain after the first op."""
    graph, (task, cost) = branches(), parts(3)
    problem, _ = solve(go(3), graph, task, cost, evals=evals, seed=0)
    assert problem.evals == evals
    again, _ = solve(go(3), graph, task, cost, evals=evals, seed=0)
    assert np.array_equal(problem.best, again.best)
    if evals == 200:
        device_N = problem.best[:, 0]
        chains = [device_N[1 + 8 * branch : 9 + 8 * branch] for branch in range(3)]
        assert all(len(set(chain.tolist())) == 1 for chain in chains) and len({int(c[0]) for c in chains}) == 3


def test_where_the_default_does_not_fit_into_memory_a_plan_that_fits_is_found() -> None:
    """Weights of three chains need three devices' memory."""
    graph = branches()
    small = Device(**{**vars(QUICK_GPU), "capacity": 14 * 2.0**20})
    task = Placement(name="placement", machine=Machine(name="m", devices=(small,) * 3, **FAST_LINKS), **UNFUSED)
    cost = Simulator(name="simulator", machine=task.machine, objective="runtime", threads=1)
    learner = go(3)
    learner.task, learner.cost = task, cost
    problem, _ = solve(learner, graph, task, cost, evals=100, seed=0)
    assert np.isfinite(problem.best_cost)
