"""Where to perturb, learned: what teaches it, that it learns, and that without trust it is the search by the rule."""

from dataclasses import replace

import numpy as np
import torch
from cells import option
from test_key_walks import hot_local, problem_of

from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.learn.placing.perturb_policy import PerturbPolicy, seen
from graphopt.problems.optimizer import solve
from graphopt.search.walks.hot_local import RunColumns


def policy(**changed: object) -> PerturbPolicy:
    torch.manual_seed(0)
    node = registry.option("algo", "perturb_policy")
    node["walk"]["modelled"], node["teaching"]["evals"] = 100, 400
    problem = problem_of()
    around = {"task": problem.task, "cost": problem._cost, "seed": 0}
    parts = {"walk": node["walk"], "teaching": node["teaching"]}
    made: PerturbPolicy = option("algo", "perturb_policy", around, **parts | changed)
    return made.eval()


def layered(seed: int) -> Graph:
    return layered_graph(60, np.random.default_rng(seed), f"layered{seed}")


def loss_of(taught: PerturbPolicy, graph: Graph) -> float:
    with torch.no_grad():
        return float(taught.training_step([graph], 0))


def test_it_learns_which_moves_help() -> None:
    taught, graphs = policy(), [layered(seed) for seed in range(3)]
    taught.prepare_training(graphs)
    assert taught.train_evals == 3 * 400
    before = loss_of(taught, graphs[2])
    optimizer = torch.optim.AdamW(taught.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        taught.training_step(graphs[:2], 0).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert loss_of(taught, graphs[2]) < 0.7 * before  # on a graph that taught nothing


def test_ops_that_are_held_out_teach_nothing() -> None:
    taught, graph = policy(), layered(0)
    hidden = replace(graph, held_out=np.ones(graph.num_ops, np.bool_))
    taught.prepare_training([graph])
    taught.prepare_training([hidden])
    assert len(taught._tried) == 1 and not len(taught._tried[hidden.hash].kind)  # of a graph by its hash
    assert loss_of(taught, hidden) == 0.0


def test_without_trust_it_is_the_search_by_the_rule() -> None:
    problem = problem_of()
    answers = [solve(algo, problem.graph, problem.task, problem._cost, evals=60)[0].trace_array()[:, ::2]
               for algo in (policy(trust=0.0), hot_local(100))]  # fmt: skip
    assert np.array_equal(*answers)


def test_an_op_is_seen_with_its_neighbours_or_alone() -> None:
    problem = problem_of()
    columns = np.random.default_rng(0).random((problem.graph.num_ops, 2), np.float32)
    around = RunColumns(problem)
    assert seen(columns, around, neighbours=False) is columns
    said = seen(columns, around, neighbours=True)
    op = int(np.bincount(around.reader).argmax())
    makers = columns[around.source[around.reader == op]].mean(0)
    assert np.allclose(said[op], np.concatenate([columns[op], makers, said[op, 4:6], columns.mean(0)]), atol=1e-6)
