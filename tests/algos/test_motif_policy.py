"""Policies of fusion taught by optima and exact flips: what they read, what teaches them, and that they learn."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from fusion_graphs import XLA, Net, random_graph
from torch.utils.data import DataLoader

import graphopt.algos.optima as optima_module
from graphopt.algos.fusion_columns import COLUMNS, fusion_columns
from graphopt.algos.lookup_policy import FusionTable, LookupPolicy
from graphopt.algos.motif_policy import MotifPolicy
from graphopt.algos.optima import optimum
from graphopt.algos.taught_fusion import MotifSearch, TaughtFusion, Teaching
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.costs.simulator import Simulator
from graphopt.encoders.graphsage import GraphSAGE
from graphopt.errors import ConfigError
from graphopt.problems.optimizer import solve
from graphopt.problems.pricing import Pricing
from graphopt.search.fusion.motif_scan import MotifScan
from graphopt.tasks.fusion import Fusion

MACHINE = Machine(name="m", devices=(XLA,))
CAPS = {"levels": 2, "max_ops": 64, "max_inputs": 16, "max_duplicates": 8, "numerics": None}
FUSION = Fusion(name="fusion", machine=MACHINE, decision="binary", **CAPS)
SIMULATOR = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1)
TEACHING = Teaching(evals=200, most=0.05, optima=1.0, prices=10.0, worth=0.3, alone=0.2, hidden=0.0, rate=5e-3,
                    decay=0.0, average=0.9, gradient_clip=1.0)  # fmt: skip
SEARCH = MotifSearch(thresholds=[0.0, 1.0], depth=3, ordered=True)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHOPT_CACHE", str(tmp_path))


def policy(task: Fusion = FUSION, *, search: MotifSearch = SEARCH, **teaching: Any) -> MotifPolicy:
    torch.manual_seed(0)
    encoder = GraphSAGE(name="sage", width=16, layers=2, dropout=0.0, aggregation="mean",
                        extra_width=MotifPolicy.extra_width(task))  # fmt: skip
    return MotifPolicy(name="motif_policy", task=task, cost=SIMULATOR, encoder=encoder, seed=0, dropout=0.0,
                       teaching=replace(TEACHING, **teaching), search=search)  # fmt: skip


def trained(learner: TaughtFusion, graphs: list[Graph], steps: int) -> TaughtFusion:
    learner.gather(graphs)
    trainer = pl.Trainer(max_epochs=1, limit_train_batches=steps, logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")  # fmt: skip
    trainer.fit(learner, DataLoader([graphs] * steps, batch_size=None, collate_fn=lambda x: x))
    return learner


# ---- what it reads


def test_columns_of_a_broadcast_into_a_matrix_product_by_hand() -> None:
    """A row of 8 that a [4, 8] product reads: inlined it is evaluated once for every element that is read."""
    net = Net("g")
    row = net("exp", net.x(8), name="row", shape=(8,))
    whole = net("add", net.x(4, 8), row, name="whole")
    graph = net.done(net("matmul", whole, net.x(8, 4), name="product", shape=(4, 4), flops=256.0))
    found = {name: fusion_columns(graph, FUSION)[:, i].tolist() for i, name in enumerate(COLUMNS)}
    assert found["evaluations"][0] == pytest.approx(np.log10(32 / 8) / 2, abs=1e-6)
    assert found["evaluations"][1] == pytest.approx(0.0, abs=1e-6)
    assert found["read_by_contraction"] == [0, 1, 0] and found["contraction"] == [0, 0, 1]
    assert found["readers"] == [0.5, 0.5, 0.0] and found["read_in_order"][0] == 0
    assert found["inputs"] == pytest.approx([0.5, np.log2(3) / 2, np.log2(3) / 2])
    assert found["default"] == FUSION.initial(graph)[:, 0].tolist()


@pytest.mark.parametrize("seed", range(6))
def test_columns_are_finite_and_need_no_gpu(seed: int) -> None:
    graph = random_graph(seed, 40)
    columns = fusion_columns(graph, FUSION)
    assert columns.shape == (graph.num_ops, len(COLUMNS)) and np.isfinite(columns).all()
    plain = Fusion(name="f", machine=Machine(name="m", devices=(replace(XLA, clock=0.0, fusion_model="roofline"),)),
                   decision="binary", **CAPS)  # fmt: skip
    assert not fusion_columns(graph, plain)[:, COLUMNS.index("xla_priority")].any()


def test_a_table_has_an_entry_for_every_combination_of_what_it_reads() -> None:
    table = FusionTable()
    rows = []
    for readers in (0.0, 0.5, np.log2(3) / 2, 1.0):
        for flags in range(8):
            row = np.zeros(len(COLUMNS), np.float32)
            row[COLUMNS.index("readers")] = readers
            row[[COLUMNS.index(n) for n in ("read_by_contraction", "inline_all", "xla_priority")]] = [
                flags & 1, flags & 2, flags & 4]  # fmt: skip
            rows.append(row)
    last = torch.full((len(rows),), table.entry.num_embeddings // 32 - 1)
    keys = torch.cat([table.key(kind, torch.from_numpy(np.stack(rows))) for kind in (torch.zeros_like(last), last)])
    assert len(set(keys.tolist())) == len(keys) and int(keys.max()) == table.entry.num_embeddings - 1


# ---- what teaches it


def test_an_optimum_is_no_worse_than_its_search_and_says_what_flips_cost() -> None:
    graph = random_graph(3, 40)
    found = optimum(graph, FUSION, SIMULATOR, 200)
    pricing = Pricing(graph, FUSION, SIMULATOR)
    price = pricing.decisions(found.inline[None, :, None].astype(np.int16)).cost[0]
    searched, _ = solve(MotifScan(name="m", depth=3), graph, FUSION, SIMULATOR, evals=200)
    assert price <= searched.best_cost * (1 + 1e-12)
    for op in np.flatnonzero(FUSION.mask(graph)[:, 0])[:10]:
        flipped = found.inline.copy()
        flipped[op] = ~flipped[op]
        worse = pricing.decisions(flipped[None, :, None].astype(np.int16)).cost[0] / price - 1
        assert found.worse[op] == pytest.approx(worse, abs=1e-9)


def test_an_optimum_is_searched_once_and_again_where_its_file_is_damaged(monkeypatch: pytest.MonkeyPatch,
                                                                        tmp_path: Path) -> None:  # fmt: skip
    graph, calls = random_graph(3, 30), []
    real = optima_module.solve
    monkeypatch.setattr(optima_module, "solve", lambda *a, **k: calls.append(1) or real(*a, **k))
    first = optimum(graph, FUSION, SIMULATOR, 50)
    again = optimum(graph, FUSION, SIMULATOR, 50)
    assert len(calls) == 1 and first.evals == again.evals and np.array_equal(first.worse, again.worse)
    optimum(graph, FUSION, SIMULATOR, 60)
    assert len(calls) == 2  # another budget is another optimum
    for file in (tmp_path / "optima").glob("*.npz"):
        file.write_bytes(file.read_bytes()[:100])
    assert np.array_equal(optimum(graph, FUSION, SIMULATOR, 50).inline, first.inline) and len(calls) == 3


def test_credit_is_the_logarithm_of_exact_prices() -> None:
    graph, learner = random_graph(5, 30), policy()
    learner.gather([graph])
    free = np.flatnonzero(FUSION.mask(graph)[:, 0])
    sure = torch.full((len(free),), -50.0)  # draws that store everything
    credit = learner._credit(graph, torch.from_numpy(free), sure)
    pricing, stored = Pricing(graph, FUSION, SIMULATOR), np.zeros((1, graph.num_ops, 1), np.int16)
    price = pricing.decisions(stored).cost[0]
    for op in free[:12]:
        inlined = stored.copy()
        inlined[0, op, 0] = 1
        expected = np.clip(np.log(pricing.decisions(inlined).cost[0] / price), -0.5, 0.5)
        assert credit[op] == pytest.approx(expected, abs=1e-9)


def test_what_is_held_out_teaches_nothing() -> None:
    """The loss of a graph whose ops are all held out is none, and of one with some it does not depend on these."""
    graph = random_graph(5, 30)
    learner = policy(prices=0.0)
    held = np.zeros(graph.num_ops, np.bool_)
    held[::2] = True
    for held_out, others in ((np.ones(graph.num_ops, np.bool_), slice(0, 0)), (held, np.flatnonzero(~held))):
        some = replace(graph, held_out=held_out)
        learner.gather([some])
        inline = torch.randn(graph.num_ops, requires_grad=True)
        matters = torch.randn(graph.num_ops, requires_grad=True)
        optima, _, worth, _ = learner._taught(some, inline, matters)
        (optima + worth).backward()
        reached = set(np.flatnonzero(inline.grad.numpy() + matters.grad.numpy()).tolist())
        assert reached <= set(np.arange(graph.num_ops)[others].tolist())


def test_operators_are_hidden_in_the_share_that_is_asked_for() -> None:
    learner = policy(hidden=0.5)
    data, _ = learner._observe([random_graph(seed, 60) for seed in range(8)])
    before = data.kind.clone()
    hidden = learner._hidden(data)
    changed = (hidden.kind != before).float().mean()
    assert 0.35 < float(changed) < 0.65 and torch.equal(data.kind, before)


def test_a_task_without_exact_flips_is_one_sentence() -> None:
    task = Fusion(name="fusion", machine=MACHINE, decision="priority", **{**CAPS, "levels": 5})
    with pytest.raises(ConfigError, match=r"task\.decision=binary cost=simulator"):
        policy(task).gather([random_graph(1, 20)])


def test_answers_need_a_threshold() -> None:
    with pytest.raises(ConfigError, match=r"algo\.search\.thresholds"):
        MotifSearch(thresholds=[], depth=3, ordered=True)


# ---- that it learns, and what it spends


@pytest.mark.parametrize("kind", ["network", "table"])
def test_training_makes_answers_without_evaluations_better(kind: str) -> None:
    graphs = [random_graph(seed, 40) for seed in range(6)]

    def learner() -> TaughtFusion:
        if kind == "network":
            return policy()
        return LookupPolicy(name="l", task=FUSION, cost=SIMULATOR, seed=0, teaching=replace(TEACHING, rate=0.05),
                            search=SEARCH)  # fmt: skip

    def price(answering: TaughtFusion) -> float:
        solved = [solve(answering, graph, FUSION, SIMULATOR, evals=0)[0] for graph in graphs]
        return float(np.mean([np.log(problem.best_cost / problem.initial_cost) for problem in solved]))

    best = [solve(MotifScan(name="m", depth=3), graph, FUSION, SIMULATOR, evals=200)[0] for graph in graphs]
    least = float(np.mean([np.log(problem.best_cost / problem.initial_cost) for problem in best]))
    before, after = price(learner()), price(trained(learner(), graphs, 100))
    assert after - least < 0.5 * (before - least)


@pytest.mark.parametrize("evals", [0, 1, 3, 5, 40])
def test_a_budget_is_kept_and_the_default_is_a_candidate(evals: int) -> None:
    problem, _ = solve(policy(), random_graph(2, 40), FUSION, SIMULATOR, evals=evals)
    assert problem.evals <= evals
    assert evals == 0 or problem.best_cost <= problem.initial_cost


def test_expected_moves_come_first_and_only_once() -> None:
    """With a true expectation the first moves find what the plain scan needs more evaluations for."""
    graph = random_graph(7, 120)
    best = optimum(graph, FUSION, SIMULATOR, 400)
    learner = policy()
    learner.gather([graph])
    sign = np.where(best.inline, 1.0, -1.0) * 20

    class Knows(torch.nn.Module):
        def forward(self, data: Any, columns: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.from_numpy(sign), torch.zeros(graph.num_ops)

    learner.averaged = Knows()
    knowing, _ = solve(learner, graph, FUSION, SIMULATOR, evals=4)
    plain, _ = solve(MotifScan(name="m", depth=3), graph, FUSION, SIMULATOR, evals=4)
    assert knowing.best_cost < plain.best_cost
