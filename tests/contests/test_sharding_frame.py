"""Sharding in the frame: what every optimiser that fits answers, billed and checked, and studies without tables."""

import gzip
import json
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data
from commands import command

from graphopt.contests.sharding.sharding_instances import random_tables
from graphopt.core.auto_sharding.strategies import price, tables_of
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.graphs.readers.formats.iopddl import graph_of, read_iopddl
from graphopt.problems.optimizer import solve
from graphopt.report.answer import _dataset
from graphopt.report.replay import claims_of, replay_all
from graphopt.run.config.construct import construct

WORDS = ("task=sharding", "cost=strategy_cost", "cost@judge=strategy_cost", "machine=gpu2")
MACHINE: Any = construct(registry.option("machine", "gpu2"), "machine")
TASK: Any = construct(registry.option("task", "sharding"), "task", {"machine": MACHINE})
COST: Any = construct(registry.option("cost", "strategy_cost"), "cost")


def graph(seed: int, nodes: int = 9) -> Graph:
    return graph_of(random_tables(np.random.default_rng(seed), nodes, 3, 0.2, 0.1, f"drawn{seed}"))


def solver(name: str, **settings: Any) -> Any:
    words = {**registry.option("algo", name), **settings}
    return construct(words, "algo", {"machine": MACHINE, "task": TASK, "cost": COST, "seed": 0})


def test_what_is_over_the_limit_costs_inf_by_its_share() -> None:
    tables = random_tables(np.random.default_rng(4), 12, 4, 0.0, 0.0)
    most = np.array([int(np.argmax(tables.usage[a:b])) for a, b in zip(tables.ptr[:-1], tables.ptr[1:], strict=True)])
    plans = TASK.realise(graph_of(tables), most[None, :, None].astype(np.int16))
    prices, (_, over) = COST.price(plans), price(tables, most)
    assert over > 0 and prices.cost[0] == np.inf and prices.excess[0] == pytest.approx(over / tables.limit)


@pytest.fixture
def instance_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two nodes, where third parties' data lie."""
    monkeypatch.setenv("GRAPHOPT_CHECK_DATA", str(tmp_path))
    content = {"problem": {"name": "x", "nodes": {"intervals": [[0, 2], [1, 3]], "costs": [[5, 1], [4, 2]],
                                                   "usages": [[1, 2], [1, 2]]},
                           "edges": {"nodes": [[0, 1]], "costs": [[9, 8, 7, 0]]}, "usage_limit": 9}}  # fmt: skip
    file = tmp_path / "sharding" / "mine.json"
    file.parent.mkdir()
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("changed", [False, True])
def test_studies_keep_no_graphs_and_replay_with_the_folder(tmp_path: Path, instance_file: Path, changed: bool) -> None:
    answer = command(tmp_path, *WORDS, "dataset=sharding", "algo=sharding_search", "study=one", "budget.seconds=2",
                     "budget.evals=[5]", f"output_dir={tmp_path}/out")  # fmt: skip
    assert answer.code == 0, answer.err
    assert [row["judged"] for row in answer.rows] == [3.0] and answer.rows[0]["bound"] == pytest.approx(3.0, abs=1.0)
    assert not list((tmp_path / "out").rglob("graphs/*"))
    _dataset.cache_clear()  # as in another process
    if changed:  # another limit is another instance
        instance_file.write_text(instance_file.read_text().replace('"usage_limit": 9', '"usage_limit": 8'))
    ((_, wrong),) = replay_all(*claims_of(tmp_path / "out"))
    assert ("set GRAPHOPT_CHECK_DATA" in str(wrong)) if changed else not wrong


def test_stored_graphs_hold_no_table(tmp_path: Path) -> None:
    tables = random_tables(np.random.default_rng(0), 30, 8, 0.0, 0.0)
    save_graph(tmp_path / "g.npz", graph_of(tables))
    with np.load(tmp_path / "g.npz") as stored:
        assert sum(array.nbytes for array in stored.values() if array.dtype == np.int64) < tables.table.nbytes
    with pytest.raises(GraphError, match="read it with dataset=sharding"):
        tables_of(load_graph(tmp_path / "g.npz"))


@pytest.mark.parametrize(
    ("said", "contest", "budget", "found"),
    [(None, None, None, 60.0), (7.0, None, None, 7.0), (7.0, 100.0, None, 5.0), (None, 100.0, 3.0, 3.0)],
)
def test_how_long_a_search_takes(said: float | None, contest: float | None, budget: float | None,
                                 found: float) -> None:  # fmt: skip
    """At 5 % of the contest's seconds, for all who say something: the least; 60 where nobody does."""
    here = graph(0)
    here = replace(here, program=replace(tables_of(here), seconds=contest))
    words = {**registry.option("task", "sharding"), "share": 0.05, "clock": "processor"}
    task = construct(words, "task", {"machine": MACHINE})
    problem = task.open(here, COST, evals=9, seconds=budget or float("inf"))
    search = solver("sharding_search", seconds=said)
    assert search.limit(problem) == found and 0 <= problem.seconds < 60


def test_the_contest_gives_seconds_by_letter() -> None:
    words = registry.option("dataset", "sharding")["seconds"]
    known = {"A": 60, "G": 120, "K": 180, "M": 180, "S": 240, "T": 240, "Y": 300}
    assert {name: next(s for p, s in words.items() if fnmatch(f"iopddl-{name}", p)) for name in known} == known
    assert not any(fnmatch("mine", pattern) for pattern in words)


def test_the_example_is_solved() -> None:
    problem, _ = solve(solver("sharding_search"), read_iopddl(check_data("sharding/example.json")), TASK, COST, evals=9,
                       seconds=2.0)  # fmt: skip
    assert problem.best[:, 0].tolist() == [0, 0, 2, 1, 0]


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_packed_files_are_split_by_the_same_names(ending: str, instance_file: Path) -> None:
    content = instance_file.read_bytes()
    for name in ("one", "two"):
        file = instance_file.with_name(name + ending)
        file.write_bytes(gzip.compress(content) if ending.endswith(".gz") else content)
    words = {**registry.option("dataset", "sharding"), "only": ["one", "two"], "train": ["one"]}
    dataset = construct(words, "dataset")
    assert [[graph.num_ops for graph in dataset.graphs(split)] for split in ("train", "val", "test")] == [[2], [], [2]]
