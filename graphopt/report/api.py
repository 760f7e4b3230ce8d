"""What programs import: `graphopt.optimize` and `graphopt.load`. The same harness as the command line, on one model."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from graphopt.core.cli import composed, explained
from graphopt.core.errors import UsageError, UserError
from graphopt.core.graph import Graph
from graphopt.core.utils.terminal import silent
from graphopt.graphs.in_memory import InMemory
from graphopt.report.answer import Answer
from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.evaluate import evaluate_cell

if TYPE_CHECKING:
    from graphopt.report.apply.optimized import Optimized

HELD = {"_target_": "graphopt.graphs.in_memory.InMemory", "name": "given"}


class Options(TypedDict, total=False):
    """What `optimize` takes by name beside `cost`; type checkers refuse others, and so does Python."""

    task: str
    algo: str | None
    machine: str | None
    objective: str | None
    budget: int | None
    seconds: float | None
    seed: int
    ckpt: str | None
    backward: bool
    numerics: Literal["equal", "close"] | None
    settings: Sequence[str]
    progress: bool


@overload
def optimize(model: Any, example_inputs: Any = None, *, cost: None = None, **options: Unpack[Options]) -> Answer: ...
@overload
def optimize(
    model: Any, example_inputs: Any, *, cost: Literal["inductor"], **options: Unpack[Options]
) -> "Optimized": ...
def optimize(  # type: ignore[misc]  # overloads name what decides the result's type, and leave the options to this one
    model: Any, example_inputs: Any = None, *, cost: Literal["inductor"] | None = None, task: str = "fusion",
    algo: str | None = None, machine: str | None = None, objective: str | None = None, budget: int | None = None,
    seconds: float | None = None, seed: int = 0, ckpt: str | None = None, backward: bool = False,
    numerics: Literal["equal", "close"] | None = None, settings: Sequence[str] = (), progress: bool = False,
) -> "Answer | Optimized":  # fmt: skip
    """Solves one model and returns the best answer found; the compiler's default is always a candidate, but where
    `budget` is 0: then the answer is what the algorithm says without any price.

    model: an nn.Module (then example_inputs are what it is called with: a tensor, a tuple, a mapping of keyword
    arguments, or a pair of both), the path of an ONNX model or a graph file, or a `Graph`. task, algo, machine: options
    of the command line (`graphopt --help`). objective: runtime, peak_memory or max_load; None: the cost model's own.
    budget: evaluations; seconds: cap on top. ckpt: of algorithms that learn: a checkpoint, or `pretrained`. backward:
    take gradients of all parameters into the graph. settings: further words of the command line, such as
    `machine.link_bandwidth=50e9`.

    cost=inductor (task=fusion, an nn.Module): every graph that torch.compile makes of the module, with `backward` also
    those of its gradient, is compiled and timed on this machine (budget and seconds: for each of them) and an nn.Module
    is returned that runs what was found, checked against torch.compile's default. numerics: `equal`, outputs and
    gradients stay the same bit for bit, or `close`. torch.compile's caches in this process are cleared.

    Raises UserError (with GraphError for models) in one sentence that says what to do.
    """
    measured = cost is not None
    usual = ("compiler_search", "cpu_gpu", 40) if measured else ("local", "gpu2", 1000)
    words = [f"task={task}", f"algo={algo or usual[0]}", f"machine={machine or usual[1]}",
             f"budget.evals=[{usual[2] if budget is None else budget}]", f"seed={seed}", "logger=none", "study=answer",
             *_optional("cost.objective", objective), *_optional("judge.objective", objective),
             *_optional("budget.seconds", seconds), *_optional("ckpt", ckpt)]  # fmt: skip
    with silent(not progress):
        if not measured:
            return _answer([*words, *_optional("task.numerics", numerics), *settings], model, example_inputs, backward)
        told = [
            *words,
            f"cost={cost}",
            f"cost@judge={cost}",
            "judge.fresh_processes=3",
            f"task.numerics={numerics or 'equal'}",
        ]
        return _applied([*told, *settings], model, example_inputs, backward, numerics or "equal")


def _answer(words: Sequence[str], model: Any, example_inputs: Any, backward: bool) -> Answer:
    given, held = _model(model, example_inputs, backward)
    return _solved([*words, *given], held)


def _applied(words: Sequence[str], module: Any, inputs: Any, backward: bool, numerics: Literal["equal", "close"]
             ) -> "Optimized":  # fmt: skip
    from torch import nn

    from graphopt.report.apply.optimized import optimized

    if not isinstance(module, nn.Module):
        raise UsageError(
            f"cost=inductor runs an nn.Module, not a {type(module).__name__}; give the module and its inputs"
        )
    return optimized(module, inputs, backward=backward, numerics=numerics, solve=lambda graph: _solved(words, graph))


def load(path: str | Path) -> Answer:
    """The answer in a decision file. Raises UserError when it cannot be read, or its graph is not found."""
    return Answer.load(path)


def _composed(words: Sequence[str]) -> dict[str, Any]:
    try:
        return composed(words)
    except Exception as error:  # Hydra's, which name files of its own
        raise UsageError(explained(error)[0]) from None


def _with_network(config: dict[str, Any]) -> dict[str, Any]:
    """With the settings that its checkpoint's network was trained with, as on the command line."""
    if config["ckpt"] is None:
        return config
    from graphopt.run.training.adopt import with_network

    with suppress(UserError):  # said when the weights are loaded
        return with_network(config)
    return config


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

    from graphopt.graphs.readers.pytorch.capture import capture

    if not isinstance(model, nn.Module):
        raise UsageError(f"cannot optimize a {type(model).__name__}; give an nn.Module, a path, or a Graph")
    name = type(model).__name__
    return [], capture(model, example_inputs, name=name, family=name, backward=backward, keep_program=True)


def _solved(words: Sequence[str], held: Graph | None) -> Answer:
    """The answer to the configuration's only graph."""
    kept = TemporaryDirectory(prefix="graphopt-")
    config = {**_with_network(_composed(words)), "output_dir": kept.name, **({} if held is None else {"dataset": HELD})}
    cell = Cell(config)
    cell.start()
    try:
        parts = build(config, None if held is None else InMemory(name="given", held=[held]))
        if parts.learns:
            from graphopt.run.training.train import prepare

            prepare(parts, cell)
        evaluate_cell(parts, cell)
    finally:
        cell.stop()
    (row,) = cell.rows.done.values()
    model = cell.path / str(row["model"]) if "model" in row else None
    return Answer.load(cell.path / str(row["decision"]), model, kept)
