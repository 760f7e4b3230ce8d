"""The policy over what heuristics propose: what it knows of a candidate, that it learns to choose, what it spends."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from test_expert import COST, FOUR, TASK, recurrent
from torch.utils.data import DataLoader

from graphopt.algos.placing.candidates import CAUTIONS, KNOWN, NAMES, candidates
from graphopt.algos.placing.placement_policy import PlacementPolicy
from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.encoders.graphsage import GraphSAGE
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics.rules import HEURISTICS, SchedulingInstance
from graphopt.tasks.placement import Placement
from graphopt.utils import registry

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def policy(task: Placement = TASK, cost: Simulator = COST) -> PlacementPolicy:
    torch.manual_seed(0)
    encoder = GraphSAGE(name="sage", width=16, layers=1, dropout=0.0, aggregation="mean", extra_width=0)
    node = registry.option("algo", "placement_policy")
    node["teaching"]["rate"] = 1e-2
    made: PlacementPolicy = construct(node, "algo", {"task": task, "cost": cost, "encoder": encoder, "seed": 0})
    return made.eval()


def graphs() -> list[Graph]:
    """Wide recurrent networks, which gain from devices, and layered ones with large results, which lose."""
    wide = [
        recurrent(depth, steps, backward=back)[0] for depth, steps, back in ((4, 6, False), (3, 8, True), (6, 4, True))
    ]
    return wide + [layered_graph(40, np.random.default_rng(seed), f"layered{seed}") for seed in range(4)]


def test_what_is_known_of_a_candidate_by_hand() -> None:
    """Two chains of two matrix products on two devices, their results joined on the first."""
    graph, _ = recurrent(2, 3)
    instance = SchedulingInstance(graph, TASK)
    found = candidates(instance)
    time = instance.kernels.time[:, 0]
    total = time.sum()
    assert found.device.shape == (len(NAMES), graph.num_ops) and found.known.shape == (len(NAMES), len(KNOWN))
    known = dict(zip(KNOWN, np.exp(found.known[0]), strict=True))  # all on one device
    assert known["load"] == pytest.approx(1.0) and known["traffic"] == pytest.approx(1e-3)  # as little as is said
    assert found.known[0, KNOWN.index("cut")] == 0.0 and found.known[0, KNOWN.index("devices")] == 0.25
    for row, device in zip(found.known, found.device, strict=True):
        said = dict(zip(KNOWN, np.exp(row), strict=True))
        assert said["load"] == pytest.approx(max(np.bincount(device, time)) / total, rel=1e-9)
        assert said["bound"] == max(said["load"], said["path"]) and said["path"] >= said["path_alone"] * (1 - 1e-12)
        price = COST.price(TASK.realise(graph, device[None, :, None])).cost[0]
        assert said["bound"] <= price / total * (1 + 1e-6)  # no plan is faster than its bound


def test_a_caution_of_one_is_heft() -> None:
    instance = SchedulingInstance(recurrent(3, 5, backward=True)[0], TASK)
    found = candidates(instance).device
    assert np.array_equal(found[1 + CAUTIONS.index(1.0)], HEURISTICS["heft"](instance).device)
    assert np.array_equal(found[1 + CAUTIONS.index(4.0)], HEURISTICS["heft_cautious"](instance).device)


def prices(learner: PlacementPolicy, graph: Graph) -> np.ndarray:
    """Of all candidates, over the default's."""
    found = candidates(SchedulingInstance(graph, learner.task))
    plans = learner.task.realise(graph, learner._decisions(graph, found))
    cost = learner.cost.price(plans).cost
    return np.asarray(cost / cost[0])


def train(learner: PlacementPolicy, taught: list[Graph], steps: int) -> None:
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    learner.gather(taught)
    learner.train()
    trainer.fit(learner, DataLoader([taught] * steps, batch_size=None, collate_fn=list))
    learner.eval()


def test_it_learns_to_choose_better_than_any_single_heuristic() -> None:
    """On graphs of which one half gains from devices and the other loses, so that no candidate is best on all; every
    price of the training is counted."""
    learner, taught = policy(), graphs()
    said = np.log(np.stack([prices(learner, graph) for graph in taught]))
    best, single = said.min(1).mean(), said.mean(0).min()
    assert best < single - 0.02
    train(learner, taught, 120)
    assert learner.train_evals == len(taught) * len(NAMES)
    chosen = [solve(learner, g, TASK, COST, evals=0)[0].best_cost / learner.initial_cost(g) for g in taught]
    assert np.log(chosen).mean() < single - 0.5 * (single - best)


@pytest.mark.parametrize("budget", [0, 1, 5, 60])
def test_it_prices_what_it_expects_most_of_and_searches_from_there(budget: int) -> None:
    learner, graph = policy(), recurrent(4, 6, backward=True)[0]
    problem, _ = solve(learner, graph, TASK, COST, evals=budget)
    assert problem.evals == budget
    if budget == 0:
        device = candidates(SchedulingInstance(graph, TASK)).device
        assert any(np.array_equal(problem.best, learner.task.canonical(graph, row[:, None])) for row in device)
    if budget == 60:
        assert problem.best_cost <= np.sort(prices(learner, graph))[0] * problem.initial_cost * 1.2


def test_one_network_serves_any_number_of_devices() -> None:
    two = Machine(name="two", devices=FOUR.devices[:2], link_bandwidth=20e9, link_latency=1e-5)
    on_two = Placement(name="placement", machine=two, fuse=False, **CAPS)
    cost = Simulator(name="s", machine=two, objective="runtime", threads=1)
    four, other = policy(), policy(on_two, cost)
    other.load_state_dict(four.state_dict())
    assert four.made_for() == other.made_for()
    problem, _ = solve(other, recurrent(4, 6)[0], on_two, cost, evals=30)
    assert problem.evals == 30 and problem.best_cost <= problem.initial_cost
