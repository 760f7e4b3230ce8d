"""A learned order of moves: the same lessons every time, that it learns, and that it solves small problems."""

from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from graphopt.algos.contests.tile_policy import TilePolicy, Walks
from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.datasets.contests.tiling_drawn import drawn_workload
from graphopt.problems.optimizer import solve
from graphopt.search.tiling.move_columns import COLUMNS
from graphopt.tiling.workload_graph import graph_of_workload
from graphopt.utils import registry
from graphopt.utils.share_network import expected

MACHINE: Any = construct(registry.option("machine", "cpu_core"), "machine")
TASK: Any = construct(registry.option("task", "tiling"), "task", {"machine": MACHINE})
COST: Any = construct(registry.option("cost", "tile_time"), "cost", {"machine": MACHINE, "task": TASK})


def problem_graph(seed: int, ops: int = 20) -> Graph:
    return graph_of_workload(drawn_workload(np.random.default_rng(seed), ops, (128, 256), f"drawn{seed}"))


def learner() -> TilePolicy:
    torch.manual_seed(0)
    parts = {"machine": MACHINE, "task": TASK, "cost": COST, "seed": 0}
    made: TilePolicy = construct(registry.option("algo", "tile_policy"), "algo", parts)
    made.lessons = Walks(moves=100, moves_of_op=4, even=0.4, power=0.5, fade=0.3, hot=0.05, cold=0.01)
    return made


def test_the_same_lessons_every_time() -> None:
    graph = problem_graph(3)
    rows = learner().solved(graph)
    np.testing.assert_array_equal(rows, learner().solved(graph))
    assert rows.shape[1] == len(COLUMNS) + 2 and 0.0 <= rows[:, -1].min() < rows[:, -1].max() <= 1.0


def test_it_learns_what_moves_gain_on_graphs_that_it_has_not_seen() -> None:
    graphs, policy = [problem_graph(seed, 30) for seed in range(8)], learner()
    policy.prepare_training(graphs)
    new = torch.from_numpy(policy.solved(problem_graph(9, 30)).astype(np.float32))
    before = float(policy.loss(new).detach())
    trainer = pl.Trainer(max_epochs=1, limit_train_batches=150, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")  # fmt: skip
    trainer.fit(policy, DataLoader([graphs] * 150, batch_size=None, collate_fn=lambda x: x))
    assert before == pytest.approx(np.log(2.0)) and float(policy.loss(new).detach()) < 0.3 * before
    gains, said = (
        new[:, -1].numpy() > 0,
        [expected(1.0, row.double().numpy(), policy.as_numbers()) for row in new[:, :-2]],
    )
    assert np.mean(np.array(said)[gains]) > 3 * np.mean(np.array(said)[~gains])


@pytest.mark.parametrize("seed", range(1, 4))
def test_it_solves_small_problems(seed: int) -> None:
    graph = problem_graph(seed, 6)
    exact: Any = construct(registry.option("algo", "tile_exact"), "algo")
    best, _ = solve(exact, graph, TASK, COST, evals=10**6, seed=0)
    found, _ = solve(learner(), graph, TASK, COST, evals=2000, seconds=2.0, seed=0)
    assert best.best_cost <= found.best_cost * (1 + 1e-9) and found.best_cost <= best.best_cost * 1.02
    assert found.solution().violations() == []
