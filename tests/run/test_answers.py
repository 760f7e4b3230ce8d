"""Plans are made once, and graphs of programs only where a plan is looked at."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command

from graphopt.core.utils import registry
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.fusion import Fusion
from graphopt.rewrite import rewrite_problem
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.rewrite_problem import Rewriting
from graphopt.run.config.construct import construct


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often plans were realised, graphs drawn from programs, and programs read back from graphs."""
    counts: Counter[str] = Counter()
    for place, name in ((Fusion, "realise"), (Rewriting, "realise"), (rewrite_problem, "graph_of")):
        inner = getattr(place, name)

        def counted(*args: Any, _inner: Any = inner, _label: str = f"{place.__name__}.{name}", **given: Any) -> Any:
            counts[_label] += 1
            return _inner(*args, **given)

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
    around: dict[str, Any] = {"machine": construct(registry.option("machine", "gpu2"), "machine")}
    for group, name in (("task", "rewrite"), ("cost", "flops"), ("algo", "rewrite_greedy")):
        around[group] = construct(registry.option(group, name), group, around)
    b = ProgramBuilder()
    x = b.input((4, 8))
    graph = graph_of(b.build(b.linear(x, 6), b.op("relu", inputs=(b.linear(x, 6),))), name="products")
    made.clear()
    problem, _ = solve(around["algo"], graph, around["task"], around["cost"], evals=60)
    solution = problem.solution()
    assert solution.price(around["cost"]).cost < solution.default_price(around["cost"]).cost
    assert made == {}
    assert solution.violations() == [] and solution.plans.graph.num_ops > 0
    assert made == {"Rewriting.realise": 1, "graphopt.rewrite.rewrite_problem.graph_of": 1}
