"""Both kinds of task go through the same calls, from the solve to the pictures; plans are made once."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import command

from graphopt import load as load_answer
from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.fusion import Fusion
from graphopt.report.decision import main
from graphopt.rewrite.io import as_graph
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.rewrite_problem import Rewriting
from graphopt.run.config.construct import construct
from graphopt.run.records.answer_file import load, save

KINDS = [
    *(("fusion", "local", "simulator"), ("placement", "annealing", "simulator")),
    *(("placement_scheduling", "brkga", "simulator"), ("rewrite", "rewrite_greedy", "flops")),
    ("rewrite", "rewrite_greedy", "simulator"),
]


def graph_for(task: str) -> Graph:
    if task != "rewrite":
        return layered_graph(40, np.random.default_rng(3), "layered")
    b = ProgramBuilder()
    x = b.input((4, 8))
    return graph_of(b.build(b.linear(x, 6), b.op("relu", inputs=(b.linear(x, 6),))), name="products")


def parts(task: str, algo: str, cost: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(configuration, what it makes)"""
    config = {"machine": registry.option("machine", "gpu2"), "task": registry.option("task", task),
              "cost": registry.option("cost", cost), "seed": 0}  # fmt: skip
    made: dict[str, Any] = {"machine": construct(config["machine"], "machine")}
    made["task"] = construct(config["task"], "task", made)
    made["cost"] = construct(config["cost"], "cost", made)
    made["algo"] = construct(registry.option("algo", algo), "algo", made)
    return {**config, "judge": config["cost"]}, made


@pytest.mark.parametrize(("task", "algo", "cost"), KINDS)
def test_one_way_from_the_solve_to_the_pictures(
    task: str, algo: str, cost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, made = parts(task, algo, cost)
    graph = graph_for(task)
    problem, _ = solve(made["algo"], graph, made["task"], made["cost"], evals=60)
    solution = problem.solution()
    assert solution is problem.solution() and solution.plans is solution.plans
    assert solution.violations() == []
    judged, initial = solution.price(made["cost"]).cost, solution.default_price(made["cost"]).cost
    assert (judged, initial) == (problem.best_cost, problem.initial_cost) and judged <= initial
    file = tmp_path / "cell" / "decisions" / "a.npz"
    save(file, problem=problem, judged=judged, row={"initial": initial, "algo": algo, "task": task}, config=config)
    save_graph(tmp_path / "graphs" / f"{graph.hash}.npz", graph)
    stored = load(file)
    assert type(stored) is type(solution.decided) and stored.heads == solution.decided.heads
    assert (stored.rules, stored.described) == (solution.decided.rules, solution.decided.described)
    assert stored.operators() == solution.decided.operators()
    for name, array in solution.decided.arrays().items():
        assert np.array_equal(stored.arrays()[name], array), name
    case = load_answer(file)
    assert case.check() == [] and case.reprice() == {
        "initial": initial,
        "searched": judged,
        "judged": judged,
        "noise": 0.0,
    }
    assert main(["show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert all(text in shown for _, text in stored.facts()) and f"searched {judged:.6g}" in shown
    assert all(drawn.stat().st_size > 1000 for drawn in case.draw(tmp_path / "pictures"))


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often plans were realised, graphs drawn from programs, and programs read back from graphs."""
    counts: Counter[str] = Counter()
    for place, name in ((Fusion, "realise"), (Rewriting, "realise"), (as_graph._Drawing, "build")):
        inner = getattr(place, name)

        def counted(*args: Any, _inner: Any = inner, _label: str = f"{place.__name__}.{name}") -> Any:
            counts[_label] += 1
            return _inner(*args)

        monkeypatch.setattr(place, name, counted)
    yield counts


def test_a_row_realises_the_default_and_the_answer_once(tmp_path: Path, made: Counter[str]) -> None:
    """Default, the one decision that is priced, the answer; the view of one model opens the file: both once more."""
    words = ["dataset=synthetic", "dataset.families=[layered]",
             "dataset.ops=[40]", "dataset.test=1", "dataset.train=1", "dataset.val=1"]  # fmt: skip
    answer = command(tmp_path, "task=fusion", "algo=inline_all", *words, "budget.evals=[5]", "logger=none")
    assert answer.code == 0, answer.err
    (row,) = answer.rows
    assert row["evals"] == 1 and made["Fusion.realise"] <= 5


def test_programs_are_priced_as_programs(made: Counter[str]) -> None:
    """Search, judge and the check of what was found draw no graph of a program that is priced op by op; only the check
    of its plan does, once."""
    _, around = parts("rewrite", "rewrite_greedy", "flops")
    graph = graph_for("rewrite")
    made.clear()
    problem, _ = solve(around["algo"], graph, around["task"], around["cost"], evals=60)
    solution = problem.solution()
    assert solution.price(around["cost"]).cost < solution.default_price(around["cost"]).cost
    assert made == {}
    assert solution.violations() == [] and solution.plans.graph.num_ops > 0
    assert made == {"Rewriting.realise": 1, "_Drawing.build": 1}
