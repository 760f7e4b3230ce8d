"""Files that name what must not be called, for tests of what reads them."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from split_work import chain

from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.assignment import AssignProblem
from graphopt.report import answer as answers
from graphopt.run.config.build import machine_task_costs
from graphopt.run.records import answer_file
from graphopt.run.training import checkpoint

CONFIG = {
    "machine": registry.option("machine", "gpu2"), "task": registry.option("task", "placement"),
    "cost": registry.option("cost", "simulator"), "judge": registry.option("cost", "simulator"),
    "dataset": registry.option("dataset", "synthetic"), "seed": 0,
}  # fmt: skip
called: list[str] = []  # what was called although only files name it


def strike(*_: Any, **__: Any) -> Any:
    """Stands for os.system."""
    called.append("strike")
    return lambda *_, **__: None


@pytest.fixture(autouse=True)
def nothing_is_called() -> Iterator[None]:
    called.clear()
    answers._pricing.cache_clear()
    yield
    assert not called


def answer(folder: Path) -> Path:
    """A decision about a small graph, solved as `CONFIG` says; the graph lies beside it."""
    _, task, cost, _ = machine_task_costs(CONFIG)
    graph = chain([4e9] * 5, ["add"] * 5, [8] * 5)
    problem = AssignProblem(graph, task, cost, evals=3)
    problem.cost(np.array([[[1], [1], [0], [0], [0]]], np.int16))
    row = {"cell": "cell", "algo": "hand", "status": "ok", "graph": graph.name, "seed": 0, "evals_cap": 3,
           "initial": problem.initial_cost, "judged": problem.best_cost, "decision": "decisions/a.npz"}  # fmt: skip
    path = folder / "cell" / "decisions" / "a.npz"
    answer_file.save(path, problem=problem, judged=problem.best_cost, row=row, config=CONFIG)
    save_graph(folder / "graphs" / f"{graph.hash}.npz", graph)
    (folder / "cell" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    return path


def changed(path: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """The file with another header."""
    file = answer_file.load(path)
    change(file.header)
    answer_file.write(path, file)
    return path


def checkpoint_of(path: Path, settings: Any) -> Path:
    plain = {"counters": {"steps": 1, "evals": 1, "seconds": 1.0}, "random": {}, "note": {}, "made_for": {},
             "settings": settings}  # fmt: skip
    checkpoint.save(path, {"state_dict": {}, "torch_random": [], "plain": json.dumps(plain)})
    return path


EVIL = {"_target_": "hostile_files.strike", "name": "gpu2"}
