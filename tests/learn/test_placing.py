"""Learners of placement that learn while they solve: they find known optima, what they try becomes better, and every
price is billed."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from split_work import CutCost, Split, chain
from toy import ToyCost, ToyTask, toy_graph

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.learn.placing.op_groups import (
    DeviceSequence,
    GroupMessages,
    discounted,
    of_chosen,
    of_groups,
    op_groups,
    placed_as,
    rewards,
)
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import Optimizer, solve
from graphopt.run.config.construct import construct

MACHINE = Machine(name="pair", devices=(Device(name="slow"), Device(name="fast")))
TASK = Split(name="split", machine=MACHINE, stuck="")
SPENT = {"hdp": 480, "spotlight": 480, "placeto": 960, "neurewriter": 960}
QUICK = {  # the yaml files' settings, small, and faster where a thousand evaluations are all there is
    "hdp": {"controller": {"groups_per_device": 8, "grouper": 16, "placer": 32},
            "learning.rate": 0.02},
    "spotlight": {"width": 32, "learning.rate": 1e-2},
    "placeto": {"rounds": 2, "learning.rate": 1e-2, "learning.last_rate": 1e-2, "learning.discount": 0.5},
    "neurewriter": {"rounds": 2, "learning.rate": 1e-2},
}  # fmt: skip


class Recorded(CostModel):
    """Keeps all prices, in their order."""

    def __init__(self, inner: CostModel) -> None:
        self.inner, self.name, self.objective = inner, inner.name, inner.objective
        self.said: list[float] = []

    def price(self, plans: Plans) -> Prices:
        prices = self.inner.price(plans)
        self.said += prices.cost.tolist()
        return prices


def two_kinds() -> Graph:
    """Two chains that meet; opaque ops belong on the first device, others on the second, and edges cost a little."""
    b = GraphBuilder("two_kinds")
    ends = []
    for kind in ("relu", "opaque"):
        last = b.tensor((1,), num_bytes=0)
        for i in range(5):
            result = b.tensor((1,), num_bytes=1)
            b.op(kind, [last], [result], flops=4.0 if kind == "relu" else 0.4, name=f"{kind}{i}")
            last = result
        ends.append(last)
    final = b.tensor((1,), num_bytes=1)
    b.op("relu", [ends[0]], [final], flops=4.0, name="final")
    b.output(final)
    b.output(ends[1])
    return b.build()


def one_kind() -> Graph:
    """A chain that belongs on the second device as a whole. HDP's grouper soon puts all ops into few groups, so that on
    `two_kinds` it ends with one device for all, which is not the optimum; here it is."""
    return chain([4.0] * 10, ["relu"] * 10, [1] * 10)


def optimum(graph: Graph, cost: CostModel) -> float:
    every = np.array(list(itertools.product((0, 1), repeat=graph.num_ops)), np.int16)
    return float(cost.price(TASK.realise(graph, every[:, :, None])).cost.min())


def quick(name: str) -> Optimizer:
    node = registry.option("algo", name)
    for key, value in QUICK[name].items():
        inner = node
        *path, last = key.split(".")
        for part in path:
            inner = inner[part]
        inner[last] = value
    made: Optimizer = construct(node, "algo", {"machine": MACHINE, "task": TASK, "seed": 0})
    return made


@pytest.mark.parametrize("name", SPENT)
def test_it_finds_the_optimum_and_tries_better_plans_as_it_learns(name: str) -> None:
    """What it tries last costs less than what it tries first, by a tenth of the difference between a plan drawn at
    random and the best; a sampler that does not learn passes this once in thousands of times."""
    graph = one_kind() if name == "hdp" else two_kinds()
    cost = Recorded(CutCost(name="cut", objective="runtime", scale=1.0))
    best = optimum(graph, cost.inner)
    drawn = np.random.default_rng(0).integers(0, 2, (500, graph.num_ops, 1)).astype(np.int16)
    random = float(cost.inner.price(TASK.realise(graph, drawn)).cost.mean())
    problem, _ = solve(quick(name), graph, TASK, cost, evals=SPENT[name])
    tried = np.array(cost.said[-problem.evals :])
    quarter = len(tried) // 4
    assert problem.evals == SPENT[name] == len(tried)
    assert problem.best_cost == pytest.approx(best)
    assert tried[-quarter:].mean() < tried[:quarter].mean() - 0.1 * (random - best)


@pytest.mark.parametrize("name", SPENT)
def test_plans_that_do_not_fit_teach_and_cost_no_answer(name: str) -> None:
    """Half of the placements are infeasible; the answer is not."""
    graph = toy_graph(6)
    cost = ToyCost(graph, 2, bound=float(np.median(np.random.default_rng(0).random((999, 6)).sum(1))))
    task = ToyTask({"device": 2})
    task.machine = MACHINE
    problem, _ = solve(quick(name), graph, task, cost, evals=120)
    assert problem.evals == 120 and np.isfinite(problem.best_cost) and problem.best_cost <= problem.initial_cost


# ---- what they share


def open_problem(graph: Graph, evals: int = 100) -> AssignProblem:
    return AssignProblem(graph, TASK, CutCost(name="cut", objective="runtime", scale=1.0), evals=evals)


@pytest.mark.parametrize("most", [1, 3, 50])
def test_groups_cover_what_has_a_choice_and_nothing_else(most: int) -> None:
    graph = two_kinds()
    task = ToyTask({"device": 2}, free=np.arange(graph.num_ops) != 4)
    task.machine = MACHINE
    problem = AssignProblem(graph, task, ToyCost(graph, 2), evals=10)
    groups = op_groups(problem, most)
    assert groups.of[4] == -1
    assert sorted(set(groups.of.tolist())) == list(range(-1, min(most, graph.num_ops - 1)))
    assert torch.isfinite(groups.x).all() and groups.x.shape[0] == groups.reads.shape[0] == len(groups)
    device = np.arange(len(groups))[None] % 2
    decision = placed_as(problem, groups.of, device)[0, :, 0]
    assert decision[4] == problem.initial[4, 0]
    assert all(decision[op] == groups.of[op] % 2 for op in np.flatnonzero(groups.of >= 0))
    assert np.array_equal(of_groups(groups, decision), device[0])


def test_edges_between_groups_are_those_of_their_ops() -> None:
    graph = two_kinds()
    groups = op_groups(open_problem(graph), 50)  # every op its own
    source, target, _ = graph.edges
    wanted = np.zeros((graph.num_ops, graph.num_ops))
    wanted[groups.of[target], groups.of[source]] = 1.0
    assert np.array_equal(groups.reads.numpy(), wanted)


def test_the_reward_is_the_root_of_the_relative_price() -> None:
    graph = two_kinds()
    problem = open_problem(graph)
    decisions = np.zeros((2, graph.num_ops, 1), np.int16)
    decisions[1] = 1
    price = TASK.realise(graph, decisions)
    cost = CutCost(name="cut", objective="runtime", scale=1.0).price(price).cost
    np.testing.assert_allclose(rewards(problem, decisions).numpy(), -np.sqrt(cost / cost[0]), rtol=1e-6)
    assert problem.evals == 2


def test_returns_are_discounted_sums() -> None:
    earned = torch.tensor([[1.0, 2.0, 4.0]])
    torch.testing.assert_close(discounted(earned, 0.5), torch.tensor([[3.0, 4.0, 4.0]]))


def test_a_sequence_says_of_given_devices_what_it_drew_them_with() -> None:
    torch.manual_seed(0)
    network, x = DeviceSequence(5, 3, 8, 2.0), torch.randn(4, 6, 5)
    device, said = network(x)
    again, given = network(x, device)
    assert torch.equal(again, device)
    torch.testing.assert_close(given, said)
    torch.testing.assert_close(said.exp().sum(-1), torch.ones(4, 6))
    assert of_chosen(said, device).shape == (4, 6)
    assert float((said.max() - said.min()).detach()) < 4.0  # logits are within the bound


def test_a_sequence_decides_given_what_it_decided_before() -> None:
    torch.manual_seed(0)
    network, x = DeviceSequence(5, 3, 8, 2.0), torch.randn(1, 6, 5)
    one, other = (torch.full((1, 6), device) for device in (0, 2))
    first, second = network(x, one)[1], network(x, other)[1]
    assert torch.equal(first[:, 0], second[:, 0]) and not torch.equal(first[:, 1], second[:, 1])


def test_messages_reach_as_far_as_there_are_rounds_both_ways() -> None:
    torch.manual_seed(0)
    reads: NDArray[np.float32] = np.eye(6, k=-1, dtype=np.float32)  # a chain
    network, x = GroupMessages(3, 8, 2), torch.randn(6, 3)
    changed = x.clone()
    changed[0] += 1.0
    before, after = (network(given, torch.from_numpy(reads)) for given in (x, changed))
    assert [bool((before[i] != after[i]).any()) for i in range(6)] == [True, True, True, False, False, False]
    back = network(x, torch.from_numpy(reads.T.copy()))
    assert not torch.allclose(back, before)
