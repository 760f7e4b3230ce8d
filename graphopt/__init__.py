"""Learned and classical graph optimisers for ML compilers, on the same problems, under the same budget."""

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.core.graph import Graph
    from graphopt.core.graph_builder import GraphBuilder
    from graphopt.core.machine import Machine
    from graphopt.core.operators import OPERATOR_ID, Category
    from graphopt.core.plan import Decision, Decisions, Head, Plans, Role
    from graphopt.graphs.dataset import Dataset, Split
    from graphopt.learn.learner import Learner
    from graphopt.problems.assignment import AssignProblem, AssignTask
    from graphopt.problems.cost_model import CostModel, Objective, Prices
    from graphopt.problems.optimizer import Optimizer, Solver
    from graphopt.problems.problem import Problem, Task
    from graphopt.report.answer import Answer
    from graphopt.report.api import compare, load, optimize, train

__all__ = [
    "CONF", "OPERATOR_ID", "OWN_OPTIONS", "Answer", "AssignProblem", "AssignTask", "Category", "CostModel", "Dataset",
    "Decision", "Decisions", "Graph", "GraphBuilder", "Head", "Learner", "Machine", "Objective", "Optimizer", "Plans",
    "Prices", "Problem", "Role", "Solver", "Split", "Task", "cache_dir", "compare", "load", "optimize", "train",
]  # fmt: skip

# yaml files of all options; in a clone a link to conf/ at its top
CONF = (Path(__file__).parent / "run" / "conf").resolve()
OWN_OPTIONS = "GRAPHOPT_CONFIG_DIR"  # environment variable: a folder of further options, which `--config-dir` sets
COMPILED = ("contests", "core", "costs", "hardware", "problems", "rewrite", "search")  # rooms with Numba


def cache_dir() -> Path:
    """Where compiled kernels and captured graphs are kept: $GRAPHOPT_CACHE, else ~/.cache/graphopt."""
    named = os.environ.get("GRAPHOPT_CACHE") or "~/.cache/graphopt"
    return Path(os.path.expanduser(named).removeprefix("~"))  # "~" stays where a user has no home: nothing is kept then


def _numba_cache() -> str:
    """A folder per state of the compiled sources: Numba's own cache misses changes in functions of other files."""
    digest = hashlib.sha256()
    for source in sorted(_compiled(Path(__file__).parent)):
        digest.update(source)
    return str(cache_dir() / "numba" / digest.hexdigest()[:16])


def _compiled(root: Path) -> set[bytes]:
    """Sources with compiled functions, and those that they import from: their constants are compiled in."""
    files = [file for name in COMPILED for file in (root / name).rglob("*.py")]
    compiled = {text for text in map(Path.read_bytes, files) if b"@njit" in text}
    names = {name for text in compiled for name in re.findall(rb"^from graphopt\.([\w.]+) import", text, re.MULTILINE)}
    imported = (root / f"{name.decode().replace('.', '/')}.py" for name in names)
    return compiled | {file.read_bytes() for file in imported if file.is_file()}


os.environ.setdefault("NUMBA_CACHE_DIR", _numba_cache())

_LATE = {  # module: public names of it; it is loaded when one of them is first used
    "core.graph": "Graph", "core.graph_builder": "GraphBuilder", "core.machine": "Machine",
    "core.operators": "OPERATOR_ID Category", "core.plan": "Decision Decisions Head Plans Role",
    "graphs.dataset": "Dataset Split", "learn.learner": "Learner", "problems.assignment": "AssignProblem AssignTask",
    "problems.cost_model": "CostModel Objective Prices", "problems.optimizer": "Optimizer Solver",
    "problems.problem": "Problem Task", "report.answer": "Answer", "report.api": "compare load optimize train",
}  # fmt: skip


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def __getattr__(name: str) -> Any:
    """The public names, loaded on first use: `graphopt --help` needs none of them."""
    if name == "__version__":
        from importlib.metadata import version

        return version("graphopt")
    module = next((module for module, names in _LATE.items() if name in names.split()), None)
    if module is None:
        raise AttributeError(f"module 'graphopt' has no attribute {name!r}")
    return getattr(importlib.import_module(f"graphopt.{module}"), name)
