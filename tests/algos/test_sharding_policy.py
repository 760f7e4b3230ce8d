"""A learned choice of regions: what its columns say, that gaps bound gains, and that it learns."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from graphopt.algos.contests.sharding_policy import Lessons, ShardingPolicy
from graphopt.config.construct import construct
from graphopt.core.auto_sharding.strategies import StrategyTables, price
from graphopt.problems.optimizer import solve
from graphopt.readers.formats.iopddl import graph_of
from graphopt.sharding.drawing import drawn, every_choice
from graphopt.sharding.dual import Ascent, MemoryDual
from graphopt.sharding.instance import tables_of
from graphopt.sharding.occupancy import occupancy
from graphopt.sharding.reducing import reduced
from graphopt.sharding.region_choice import COLUMNS, describe, gaps_of
from graphopt.sharding.region_walk import Chooser, RegionWalk
from graphopt.sharding.regions import grow, leave, solve_region
from graphopt.utils import registry
from graphopt.utils.share_network import ShareNetwork, expected, no_network

MACHINE: Any = construct(registry.option("machine", "gpu2"), "machine")
TASK: Any = construct(registry.option("task", "sharding"), "task", {"machine": MACHINE})
COST: Any = construct(registry.option("cost", "strategy_cost"), "cost")


def instance(seed: int, nodes: int = 40) -> StrategyTables:
    return drawn(np.random.default_rng(seed), nodes, 4, 0.0, 0.0, f"drawn{seed}")


def learner(regions: int = 2000) -> ShardingPolicy:
    torch.manual_seed(0)
    parts = {"machine": MACHINE, "task": TASK, "cost": COST, "seed": 0}
    made: ShardingPolicy = construct(registry.option("algo", "sharding_policy"), "algo", parts)
    made.lessons = Lessons(looks=400, regions=regions, unpriced=0.3)
    return made


def walk_of(seed: int, chooser: Chooser) -> tuple[RegionWalk, tuple[Any, Any, Any], float]:
    """A walk from first states, an equal model, and the bound that it shows at its prices."""
    tables = instance(seed)
    model = reduced(tables)
    memory = occupancy(model, tables)
    dual = MemoryDual(model, memory, float(tables.limit), Ascent(1, 0.0, 20, 0.7, 0.15))
    for _ in range(5):
        dual.step()
    prices = dual.equal_model(at_bound=True)
    parts = np.minimum.reduceat(prices[0], model.ptr[:-1]).sum()
    parts += np.minimum.reduceat(prices[1], model.table_ptr[:-1]).sum()
    labels = np.zeros(len(model.counts), np.int64)
    return RegionWalk(model, memory, labels, 4096, chooser, 500), prices, float(parts)


@pytest.mark.parametrize("seed", range(4))
def test_gaps_of_all_variables_sum_to_what_labels_cost_over_the_bound(seed: int) -> None:
    walk, (unary, table, paid), bound = walk_of(seed, Chooser(2, 0.5, no_network()))
    labels, model, columns = walk.moving.labels, walk.model, np.zeros(len(COLUMNS))
    gaps = gaps_of(model, walk.link, unary, table, paid, labels)
    n = len(labels)
    walk.work.region[:n] = walk.work.place[:] = np.arange(n)
    gap, _ = describe(n, walk.work, 0, gaps, model.ptr, unary, paid, table, walk.link, labels, walk.moving.fails,
                      columns)  # fmt: skip
    leave(n, walk.work)
    assert gap == pytest.approx(replace(model, unary=unary, table=table).energy(labels) - bound, abs=1e-6)
    assert columns[COLUMNS.index("inside")] == pytest.approx(1.0) or gap < 1e-6  # no neighbours outside


@pytest.mark.parametrize("mode", [0, 1])
def test_no_region_gains_more_than_its_gap(mode: int) -> None:
    walk, (unary, table, paid), _ = walk_of(7, Chooser(2, 0.5, no_network()))
    m, w, ptr, state = walk.moving, walk.work, walk.model.ptr, np.array([3], np.uint64)
    gaps = gaps_of(walk.model, walk.link, unary, table, paid, m.labels)
    seen = []
    for v in np.flatnonzero(walk.free):
        n = grow(int(v), 6, w, walk.free, walk.link, 0.5, state)
        gap, _ = describe(n, w, mode, gaps, ptr, unary, paid, table, walk.link, m.labels, m.fails,
                          np.zeros(len(COLUMNS)))  # fmt: skip
        now, value = solve_region(n, w, ptr, unary, paid, -1.0 * mode, table, walk.link, m.labels, 4096)
        leave(n, w)
        seen.append((now - value, gap))
    assert all(gain <= gap + 1e-6 for gain, gap in seen) and any(gain > 1.0 for gain, _ in seen)


def test_the_compiled_network_is_the_trained_one() -> None:
    policy, rng = learner(), np.random.default_rng(0)
    for part in policy.network.parameters():
        torch.nn.init.normal_(part, std=0.4)
    columns = rng.normal(size=(20, len(COLUMNS)))
    with torch.no_grad():
        shares = torch.sigmoid(policy.network(torch.from_numpy(columns).float())[:, 0]).numpy()
    found = [expected(3.0, row, policy.as_numbers()) for row in columns]
    np.testing.assert_allclose(found, 3.0 * shares, rtol=1e-4)


def test_untrained_it_is_the_gap_alone() -> None:
    columns = np.random.default_rng(0).normal(size=(20, len(COLUMNS)))
    halves = [expected(2.0, row, learner().as_numbers()) / expected(2.0, row, no_network()) for row in columns]
    assert halves == [0.5] * 20


def test_a_network_decides_which_candidate_is_solved() -> None:
    """One that hopes for much only of regions of one variable, among many candidates, solves little else."""
    first, column = np.zeros((len(COLUMNS), 1)), COLUMNS.index("variables")
    first[column, 0] = 100.0
    alone = ShareNetwork(first, np.zeros(1), np.array([-1.0]), 0.0)
    sizes = []
    for network in (no_network(), alone):
        walk, prices, _ = walk_of(2, Chooser(32, 0.0, network))
        walk.go(*prices, 200, 0)
        sizes.append(np.exp(2.0 * walk.samples[:, column]).mean())
    assert sizes[1] < 1.5 < sizes[0]


def lessons(seed: int) -> torch.Tensor:
    """[R, F+2] of a walk from first states."""
    walk, prices, _ = walk_of(seed, Chooser(1, 0.3, no_network()))
    walk.go(*prices, 500, 0)
    return torch.from_numpy(walk.samples.astype(np.float32))


def test_it_learns_the_share_that_regions_gain_on_instances_that_it_has_not_seen() -> None:
    graphs, policy = [graph_of(instance(seed)) for seed in range(3)], learner()
    policy._rows = {graph.hash: lessons(seed) for seed, graph in enumerate(graphs)}
    trainer = pl.Trainer(max_epochs=1, limit_train_batches=150, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")  # fmt: skip
    new = lessons(9)
    before = float(policy.loss(new).detach())
    trainer.fit(policy, DataLoader([graphs] * 150, batch_size=None, collate_fn=lambda x: x))
    assert before == pytest.approx(np.log(2.0)) and float(policy.loss(new).detach()) < 0.6 * before


def test_the_same_lessons_every_time() -> None:
    graph = graph_of(instance(3))
    np.testing.assert_array_equal(learner().solved(graph), learner().solved(graph))


@pytest.mark.parametrize("seed", range(2))
def test_it_solves_small_instances(seed: int) -> None:
    graph = graph_of(drawn(np.random.default_rng(seed), 9, 3, 0.2, 0.1))
    problem, _ = solve(learner(), graph, TASK, COST, evals=50, seconds=2.0, seed=0)
    tables = tables_of(problem.graph)
    costs = [cost for cost, over in (price(tables, row) for row in every_choice(tables)) if not over]
    assert problem.best_cost == min(costs)
