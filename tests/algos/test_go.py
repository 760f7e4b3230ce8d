"""GO: how credit and loss are counted, what it spends, and that it learns a known optimum."""

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from fusion_graphs import random_graph
from go_parts import FUSION, LEARNING, NETWORK, SEARCH, SIMULATOR, go
from torch.utils.data import DataLoader
from toy import ToyCost, ToyTask, toy_graph

from graphopt.algos.go import GO, Tuning
from graphopt.algos.go_credit import ILLEGAL_REWARD
from graphopt.algos.ppo import Trial, clipped_loss
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import solve

# ---- credit


class WithoutFlips(CostModel):
    """The same prices, but no exact flips."""

    def __init__(self, inner: CostModel) -> None:
        self.inner, self.name, self.objective = inner, inner.name, inner.objective

    def price(self, plans: Plans) -> Prices:
        return self.inner.price(plans)


def compressed(worse: np.ndarray) -> np.ndarray:
    size = np.abs(worse)
    return np.sign(worse) * np.log1p(size / np.median(size[size > 0]))


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_credit_is_the_price_of_changing_one_op_alone(exact: bool, seed: int) -> None:
    """By pricing every changed decision in full; with exact flips or, where all slots fit into the sample, without."""
    graph = random_graph(seed, 30)
    learner = go(cost=SIMULATOR if exact else WithoutFlips(SIMULATOR), flips=10_000)
    decision = FUSION.canonical(graph, np.random.default_rng(seed).integers(0, 2, (graph.num_ops, 1)).astype(np.int16))
    price = float(SIMULATOR.price(FUSION.realise(graph, decision[None])).cost[0])
    worse = np.zeros(graph.num_ops)
    for op in np.flatnonzero(FUSION.mask(graph)[:, 0]):
        changed = decision.copy()
        changed[op] ^= 1
        worse[op] = SIMULATOR.price(FUSION.realise(graph, changed[None])).cost[0] - price
    np.testing.assert_allclose(learner.credit.flip_credit(graph, decision, price)[:, 0], compressed(worse), rtol=1e-9)


def test_credit_of_several_heads_changes_one_head_of_one_op() -> None:
    """Separable costs: the difference belongs to the slot alone, and every other choice is one of the head's."""
    graph, task = toy_graph(6), ToyTask({"device": 3, "priority": 2})
    cost = ToyCost(graph, 6, pair_weight=0.0)
    learner = go(task, cost, flips=100)
    decision = np.random.default_rng(0).integers(0, [3, 2], (6, 2)).astype(np.int16)
    price = float(cost.totals((decision[:, 0] * 2 + decision[:, 1])[None])[0])
    op, head, worse = learner.credit.flip_prices(graph, decision, price)
    assert sorted(zip(op.tolist(), head.tolist(), strict=True)) == [(n, h) for n in range(6) for h in range(2)]
    for n, h, difference in zip(op.tolist(), head.tolist(), worse.tolist(), strict=True):
        device, level = decision[n].tolist()
        now = cost.unary[n, device * 2 + level]
        others = [d * 2 + level for d in range(3) if d != device] if h == 0 else [device * 2 + 1 - level]
        assert any(difference == pytest.approx(cost.unary[n, code] - now) for code in others)


def test_the_reward_is_minus_the_root_of_the_relative_time() -> None:
    learner, graph = go(), random_graph(1, 20)
    initial = learner.initial_cost(graph)
    reward = learner.credit.reward(graph, np.array([initial, 4 * initial, initial / 4, np.inf]))
    np.testing.assert_allclose(reward, [-1.0, -2.0, -0.5, ILLEGAL_REWARD])


def test_rewards_are_standardised_by_the_graphs_own_past() -> None:
    """The mean and variance of all trials so far; another graph's do not count."""
    learner, one, other = go(), random_graph(1, 20), random_graph(2, 20)
    rng = np.random.default_rng(0)
    learner.credit.standardised(other, rng.normal(50, 9, 4))
    past: list[float] = []
    for _ in range(4):  # later trials weigh at least a twentieth each, so only the first batches are plain averages
        reward = rng.normal(-1, 0.2, 4)
        past += reward.tolist()
        expected = (reward - np.mean(past)) / np.std(past)
        np.testing.assert_allclose(learner.credit.standardised(one, reward), expected)


# ---- the loss


def two_op_trial(learner: GO, graphs: list[Graph], shift: np.ndarray, advantage: np.ndarray) -> tuple[Any, Trial, Any]:
    """A trial whose old log-probabilities are the present ones minus `shift`: ratios are exp(shift)."""
    observation = learner.observe(graphs)
    log_p = learner.policy(observation, learner.policy.encode(observation), observation.default).detach()
    chosen = torch.zeros(shift.shape, dtype=torch.int64)
    chosen[1:] = 1
    of_chosen = torch.stack([log_p.gather(-1, c[..., None])[..., 0] for c in chosen])
    trial = Trial(observation.default, chosen, of_chosen - torch.tensor(shift), torch.tensor(advantage))
    return observation, trial, log_p


def test_ppo_by_hand_on_two_ops() -> None:
    """Two samples of two ops. Ratio 1.5 with a positive advantage is clipped to 1.2, ratio 0.5 with a negative one to
    0.8; the other two are not clipped, since PPO takes the lower gain."""
    task, graph = ToyTask({"inline": 2}), toy_graph(2)
    learner = go(task, ToyCost(graph, 2), entropy=0.1)
    shift = np.log(np.array([[[1.5], [0.5]], [[1.5], [0.5]]], np.float32))
    advantage = np.array([[[2.0], [-1.0]], [[-2.0], [1.0]]], np.float32)
    observation, trial, log_p = two_op_trial(learner, [graph], shift, advantage)
    loss, entropy = clipped_loss(learner.policy, observation, [trial, trial], learner.learning)
    gains = [(1.2 * 2.0 + 1.5 * -2.0) / 2, (0.8 * -1.0 + 0.5 * 1.0) / 2]  # per op, mean over samples
    spread = -(log_p.exp() * log_p).sum(-1).mean().item()
    assert entropy.item() == pytest.approx(spread, rel=1e-5)
    assert loss.item() == pytest.approx(-sum(gains) / 2 - 0.1 * spread, rel=1e-5)


def test_every_graph_weighs_the_same_and_ops_without_a_choice_nothing() -> None:
    """Advantage 1 on the slots of a graph of 2 ops, 10 on those of one of 6 (4 of which are free): the mean of both."""
    free = np.array([True, True, False, True, True, False])
    small, large = toy_graph(2), toy_graph(6)

    class Partly(ToyTask):
        def mask(self, graph: Graph) -> np.ndarray:
            return np.ones((2, 1), bool) if graph is small else free[:, None]

    learner = go(Partly({"inline": 2}), ToyCost(small, 2), entropy=0.0)
    advantage = np.full((1, 8, 1), 1.0, np.float32)
    advantage[:, 2:] = np.where(free, 10.0, 1e6)[:, None]
    observation, trial, _ = two_op_trial(learner, [small, large], np.zeros((1, 8, 1), np.float32), advantage)
    loss, _ = clipped_loss(learner.policy, observation, [trial], learner.learning)
    assert loss.item() == pytest.approx(-(1.0 + 10.0) / 2, rel=1e-5)


# ---- solving


def greedy(learner: GO, graph: Graph) -> list[np.ndarray]:
    """The most likely decisions of every iteration, by hand."""
    observation, out = learner.observe([graph]), []
    previous = observation.default
    for _ in range(NETWORK.iterations):
        with torch.no_grad():
            log_p = learner.policy(observation, learner.policy.encode(observation), previous)
        out.append(FUSION.canonical(graph, log_p.argmax(-1).numpy().astype(np.int16)))
        previous = torch.from_numpy(out[-1].astype(np.int64))
    return out


def doubtful() -> GO:
    """Untrained, with larger weights in its head, so that it contradicts the default here and there."""
    learner = go().eval()
    torch.nn.init.normal_(learner.policy.heads[0].weight, std=1.0)
    return learner


@pytest.mark.parametrize("budget", [0, 1, 20])
def test_solve_spends_its_budget_on_greedy_decisions_first(budget: int) -> None:
    learner, graph = doubtful(), random_graph(9, 60)
    decisions = greedy(learner, graph)
    assert (decisions[-1] != FUSION.canonical(graph, FUSION.initial(graph))).any()
    prices = SIMULATOR.price(FUSION.realise(graph, np.stack(decisions))).cost
    problem, _ = solve(learner, graph, FUSION, SIMULATOR, evals=budget)
    assert problem.evals == budget
    if budget == 0:
        assert np.array_equal(problem.best, decisions[-1])
    elif budget == 1:
        assert problem.best_cost == min(problem.initial_cost, prices[-1])
    else:
        assert problem.best_cost <= min(problem.initial_cost, *prices)
        assert problem.best_cost < problem.initial_cost


def test_solving_neither_trains_nor_bills_training() -> None:
    learner, graph = doubtful(), random_graph(9, 40)
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    solve(learner, graph, FUSION, SIMULATOR, evals=30)
    assert learner.train_evals == 0
    assert all(torch.equal(before[name], value) for name, value in learner.state_dict().items())


@pytest.mark.parametrize("flips", [0.0, 1.0])
def test_tuning_is_billed_helps_this_graph_and_is_forgotten(flips: float) -> None:
    """From weights that contradict the default; without tuning the same first answers are worse. The weights, what the
    learner remembers and its random numbers are as before."""
    graph, answers = random_graph(9, 40), []
    for steps in (0, 20):
        learner = doubtful()
        learner.learning = replace(LEARNING, flip_weight=flips, reward_weight=1.0)
        learner.search = replace(SEARCH, tuning=Tuning(steps=steps, share=1.0, rate=2e-2, flips=8))
        before, numbers = {k: v.clone() for k, v in learner.state_dict().items()}, learner.random_state()
        seen: list[np.ndarray] = []
        learner._search = lambda problem, slots, net=learner, into=seen: into.append(greedy(net, problem.graph)[-1])  # type: ignore[method-assign,misc]
        problem, _ = solve(learner, graph, FUSION, SIMULATOR, evals=4000)
        answers.append(float(SIMULATOR.price(FUSION.realise(graph, seen[0][None])).cost[0]))
        assert problem.evals == min(steps, 4000 // (8 * (1 + (8 if flips else 0)))) * 8 * (1 + (8 if flips else 0))
        assert all(torch.equal(before[name], value) for name, value in learner.state_dict().items())
        assert learner.random_state() == numbers and learner.credit.past == {} and learner.train_evals == 0
    assert answers[1] < answers[0]


def test_tuning_takes_its_share_of_the_budget_at_most() -> None:
    learner, graph = doubtful(), random_graph(9, 40)
    learner.search = replace(SEARCH, tuning=Tuning(steps=50, share=0.5, rate=1e-3, flips=3))
    learner._search = lambda problem, slots: None  # type: ignore[method-assign]
    each = LEARNING.samples * NETWORK.iterations * (1 + 3)
    for budget, steps in ((0, 0), (2 * each - 1, 0), (2 * each, 1), (7 * each, 3)):
        assert solve(learner, graph, FUSION, SIMULATOR, evals=budget)[0].evals <= steps * each


# ---- learning


@cache
def teaching_graphs() -> tuple[tuple[Graph, ...], tuple[float, ...]]:
    """Small graphs on which the compiler's default is 1.2 to 1.4 times slower than the best fusion, and the best prices
    by brute force over all requests."""
    graphs = tuple(random_graph(seed, 16) for seed in (26, 27, 30, 31, 33))
    best = []
    for graph in graphs:
        free = np.flatnonzero(FUSION.mask(graph)[:, 0])
        every = np.zeros((2 ** len(free), graph.num_ops, 1), np.int16)
        every[:, free, 0] = list(itertools.product((0, 1), repeat=len(free)))
        best.append(float(SIMULATOR.price(FUSION.realise(graph, every)).cost.min()))
    return graphs, tuple(best)


def train(learner: GO, graphs: tuple[Graph, ...], steps: int) -> None:
    trainer = pl.Trainer(max_steps=-1, max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    torch.manual_seed(0)
    learner.train()
    trainer.fit(learner, DataLoader([list(graphs)] * steps, batch_size=None, collate_fn=list))
    learner.eval()


def zero_shot(learner: GO, graphs: tuple[Graph, ...]) -> list[float]:
    return [solve(learner, graph, FUSION, SIMULATOR, evals=0)[0].best_cost for graph in graphs]


@pytest.mark.parametrize(("reward", "flips", "steps"), [(0.0, 1.0, 40), (1.0, 0.0, 120)])
def test_it_learns_the_best_fusion_without_search(reward: float, flips: float, steps: int) -> None:
    """With the credit of single changes, and with the paper's reward of whole graphs alone; every price is counted."""
    graphs, best = teaching_graphs()
    learner = go(reward_weight=reward, flip_weight=flips)
    initial = [learner.initial_cost(graph) for graph in graphs]
    assert all(default > 1.2 * optimum for default, optimum in zip(initial, best, strict=True))
    assert zero_shot(learner, graphs) == initial
    train(learner, graphs, steps)
    assert zero_shot(learner, graphs) == list(best)
    prices = sum(1 + (int(FUSION.mask(graph).sum()) if flips else 0) for graph in graphs)
    assert learner.train_evals == steps * LEARNING.samples * NETWORK.iterations * prices
