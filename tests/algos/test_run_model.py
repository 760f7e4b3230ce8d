"""The model of runs: exact where kernels are a plain roofline, learned where they are not, on any task."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from fusion_graphs import GPU, random_graph
from test_lower_bound import CAPS, tasks_on
from torch.utils.data import DataLoader

from graphopt.algos.modelling.kernel_model import error_of
from graphopt.algos.modelling.refit import profiled, refitted
from graphopt.algos.modelling.run_model import RunModel
from graphopt.config.construct import construct
from graphopt.core.head import Role
from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.problems.task import AssignTask
from graphopt.search.fusion.modelled_scan import plain_roofline
from graphopt.search.heuristics.starts import encode
from graphopt.tasks.joint import Joint
from graphopt.utils import registry

SHEET = plain_roofline(GPU)
PLAIN_TWO = Machine(name="two", devices=(SHEET, SHEET), link_bandwidth=12e9, link_latency=1e-5)
TWO = Machine(name="two", devices=(GPU, GPU), link_bandwidth=12e9, link_latency=1e-5)


def model(task: AssignTask, cost: Simulator, modelled: int = 60, caution: float = 1.0, steps: int = 0) -> RunModel:
    torch.manual_seed(0)
    tuning = {"steps": steps, "share": 0.5, "rate": 1.0e-2}
    changed = {"modelled": modelled, "plans": 4, "caution": caution, "tuning": tuning}
    node = registry.option("algo", "run_model") | changed
    made: RunModel = construct(node, "algo", {"task": task, "cost": cost, "seed": 0})
    return made.eval()


def test_untrained_it_is_the_price_where_kernels_are_rooflines() -> None:
    """So its answer without evaluations is what the same search finds with as many."""
    graph, cost = random_graph(7, 40), Simulator(name="s", machine=PLAIN_TWO, objective="runtime", threads=1)
    for task in tasks_on(PLAIN_TWO):
        made = model(task, cost)
        answer, _ = solve(made, graph, task, cost, evals=0)
        searched, _ = solve(made.search, graph, task, cost, evals=60)
        assert answer.best_cost == pytest.approx(searched.best_cost, rel=1e-6), task.name
        assert answer.evals == 0


def test_a_budget_begins_with_the_answer() -> None:
    graph, cost = random_graph(7, 40), Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **CAPS)
    made = model(task, cost)
    answer, _ = solve(made, graph, task, cost, evals=0)
    one, _ = solve(made, graph, task, cost, evals=1)
    many, _ = solve(made, graph, task, cost, evals=40)
    assert one.evals == 1 and one.best_cost == min(answer.best_cost, one.initial_cost)
    assert many.evals == 40 and many.best_cost <= one.best_cost


def test_links_are_taken_for_slower_with_caution() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **CAPS)
    seen = model(task, cost, caution=4.0).machine
    assert np.allclose(seen.link_latency_DD, 4e-5) and np.allclose(seen.link_bandwidth_DD, 3e9)
    assert [device.fusion_model for device in seen.devices] == ["learned", "learned"]


def test_it_learns_the_kernels_of_every_task_from_fusions_on_one_device() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task = Joint(name="joint", machine=TWO, levels=8, fuse=True, **CAPS)
    made, graphs = model(task, cost), [random_graph(seed, 60) for seed in range(4)]
    plans = task.realise(graphs[0], task.initial(graphs[0])[None])
    price = float(cost.price(plans).cost[0])

    def error() -> float:
        seen = Simulator(name="m", machine=made.machine, objective="runtime", threads=1)
        return abs(float(np.log(seen.price(plans).cost[0] / price)))

    before = error()
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    made.gather(graphs)
    assert made.train_evals == 4 * len(graphs)
    trainer.fit(made.train(), DataLoader([graphs] * 150, batch_size=None, collate_fn=list))
    made.eval()
    assert error() < 0.3 * before


def test_fitted_to_the_graph_at_hand_it_knows_its_kernels_better_and_forgets_them() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    task, graph = Joint(name="joint", machine=TWO, levels=8, fuse=True, **CAPS), random_graph(7, 60)
    made = model(task, cost, steps=50)
    before = [part.clone() for part in made.network.parameters()]
    answer, _ = solve(made, graph, task, cost, evals=20)
    assert answer.evals == 20
    assert all(torch.equal(one, other) for one, other in zip(before, made.network.parameters(), strict=True))
    problem = AssignProblem(graph, task, cost, evals=20, seed=0)
    keys = encode(problem, np.zeros(graph.num_ops, np.int64), np.zeros(graph.num_ops))
    seen = profiled(problem, keys, SHEET, 20)
    assert seen is not None and problem.evals == 20
    with torch.no_grad():
        untaught = float(error_of(made.network, seen))
    assert refitted(made.network, AssignProblem(graph, task, cost, evals=20, seed=0), keys, SHEET, made.tuning)
    with torch.no_grad():
        assert float(error_of(made.network, seen)) < 0.2 * untaught


def test_where_fusion_is_fixed_one_plan_says_all() -> None:
    cost = Simulator(name="s", machine=TWO, objective="runtime", threads=1)
    graph = random_graph(7, 40)
    for task in tasks_on(TWO):
        problem = AssignProblem(graph, task, cost, evals=6, seed=0)
        found = profiled(problem, encode(problem, np.zeros(graph.num_ops, np.int64), np.zeros(graph.num_ops)), SHEET, 6)
        assert problem.evals == (6 if task.decides(Role.FUSION) else 1 if task.decides(Role.DEVICE) else 0), task.name
        assert (found is None) == (problem.evals == 0)
