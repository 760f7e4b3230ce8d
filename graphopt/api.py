"""What programs import: `graphopt.optimize` and `graphopt.load`. The same harness as the command line, on one model."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from graphopt.answer import Answer
from graphopt.cli import composed, explained
from graphopt.config.build import build
from graphopt.core.graph import Graph
from graphopt.datasets.in_memory import InMemory
from graphopt.errors import UsageError, UserError
from graphopt.run.cell import Cell
from graphopt.run.evaluate import evaluate_cell
from graphopt.utils.progress import silent

HELD = {"_target_": "graphopt.datasets.in_memory.InMemory", "name": "given"}


def optimize(
    model: Any, example_inputs: Any = None, *, task: str = "fusion", algo: str = "local", machine: str = "gpu2",
    objective: str | None = None, budget: int = 1000, seconds: float | None = None, seed: int = 0,
    ckpt: str | None = None, backward: bool = False, settings: Sequence[str] = (), progress: bool = False,
) -> Answer:  # fmt: skip
    """Solves one model and returns the best answer found; the compiler's default is always a candidate.

    model: an nn.Module (then example_inputs are what it is called with: a tensor, a tuple, a mapping of keyword
    arguments, or a pair of both), the path of an ONNX model or a graph file, or a `Graph`. task, algo, machine: options
    of the command line (`graphopt --help`). objective: runtime, peak_memory or max_load; None: the cost model's own.
    budget: evaluations; seconds: cap on top. ckpt: of algorithms that learn: a checkpoint, or `pretrained`. backward:
    take gradients of all parameters into the graph. settings: further words of the command line, such as
    `machine.link_bandwidth=50e9`.

    Raises UserError (with GraphError for models) in one sentence that says what to do.
    """
    words = [f"task={task}", f"algo={algo}", f"machine={machine}", f"budget.evals=[{budget}]", f"seed={seed}",
             "logger=none", "study=answer", *_optional("cost.objective", objective),
             *_optional("judge.objective", objective), *_optional("budget.seconds", seconds),
             *_optional("ckpt", ckpt), *settings]  # fmt: skip
    given, held = _model(model, example_inputs, backward)
    kept = TemporaryDirectory(prefix="graphopt-")
    config = {**_composed([*words, *given]), "output_dir": kept.name}
    if held is not None:
        config["dataset"] = HELD
    with silent(not progress):
        return _solved(config, held, kept)


def load(path: str | Path) -> Answer:
    """The answer in a decision file. Raises UserError when it cannot be read, or its graph is not found."""
    return Answer(Path(path))


def _composed(words: Sequence[str]) -> dict[str, Any]:
    try:
        return composed(words)
    except Exception as error:  # Hydra's, which name files of its own
        raise UsageError(explained(error)[0]) from None


def _optional(key: str, value: object) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def _model(model: Any, example_inputs: Any, backward: bool) -> tuple[list[str], Graph | None]:
    """(words that name the data set, the graph if it is held already)."""
    if isinstance(model, Graph):
        return [], model
    if isinstance(model, str | Path):
        if not Path(model).is_file():
            raise UserError(f"no file {model}; give the path of an ONNX model or a graph file, a module, or a Graph")
        kind = "onnx" if Path(model).suffix == ".onnx" else "files"
        quoted = str(Path(model).resolve()).replace("\\", "\\\\").replace("'", "\\'")
        return [f"dataset={kind}", f"dataset.path='{quoted}'"], None
    from torch import nn

    from graphopt.readers.pytorch.capture import capture

    if not isinstance(model, nn.Module):
        raise UsageError(f"cannot optimize a {type(model).__name__}; give an nn.Module, a path, or a Graph")
    name = type(model).__name__
    return [], capture(model, example_inputs, name=name, family=name, backward=backward, keep_program=True)


def _solved(config: dict[str, Any], held: Graph | None, kept: "TemporaryDirectory[str]") -> Answer:
    """The answer to the configuration's only graph."""
    cell = Cell(config)
    cell.start()
    try:
        parts = build(config, None if held is None else InMemory(name="given", held=[held]))
        if parts.learns:
            from graphopt.training.train import prepare

            prepare(parts, cell)
        evaluate_cell(parts, cell)
    finally:
        cell.stop()
    (row,) = cell.rows.done.values()
    model = cell.path / str(row["model"]) if "model" in row else None
    return Answer(cell.path / str(row["decision"]), model, kept)
