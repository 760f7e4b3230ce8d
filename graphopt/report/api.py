"""The functions for programs: `optimize`, `train`, `compare` and `load`. The same harness as the command line."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

from graphopt.core.cli import composed, explained
from graphopt.core.errors import NothingFits, RowsFailed, UsageError, UserError
from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.core.utils.process import seldom_collected
from graphopt.core.utils.terminal import silent
from graphopt.graphs.dataset import Dataset
from graphopt.graphs.in_memory import InMemory
from graphopt.report.answer import Answer
from graphopt.report.tables.read_rows import collect
from graphopt.report.tables.render import tables
from graphopt.report.tables.table import as_markdown
from graphopt.run.cell import Cell, digest
from graphopt.run.config import compatibility
from graphopt.run.config.build import build
from graphopt.run.config.construct import construct, target_of
from graphopt.run.evaluate import run_through
from graphopt.run.records.rows import Row

if TYPE_CHECKING:
    from graphopt.report.apply.optimized import Optimized

HELD = {"_target_": "graphopt.graphs.in_memory.InMemory", "name": "given"}
AUTO = "auto"  # the algorithm that the stored tables recommend
USUAL = {  # task: the options that it has unless others are named
    "recompute": {"machine": "cpu_core", "cost": "step"},
    "rewrite": {"cost": "flops"},
    "sharding": {"cost": "strategy_cost"},
    "tiling": {"machine": "cpu_core", "cost": "tile_time"},
}
# Cost models of cpu_core.
HERE = ("generated_code", "calibrated", "live_bytes", "profiled", "torch", "onnxruntime", "onnxruntime_off")
FILES = ("sharding", "tiling")  # tasks whose problems are files of their own, read by the data set so called


class Options(TypedDict, total=False):
    """Keyword arguments of `optimize` beside `cost`; type checkers refuse others, and so does Python."""

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
    allocator: Literal["user", "keep"]
    settings: Sequence[str]
    progress: bool


@overload
def optimize(
    model: Any, example_inputs: Any, *, cost: Literal["inductor"], **options: Unpack[Options]
) -> "Optimized": ...
@overload
def optimize(
    model: Any, example_inputs: Any = None, *, cost: str | None = None, **options: Unpack[Options]
) -> Answer: ...
def optimize(  # type: ignore[misc]  # overloads name arguments that decide the result; options stand here
    model: Any, example_inputs: Any = None, *, cost: str | None = None, task: str = "fusion",
    algo: str | None = None, machine: str | None = None, objective: str | None = None, budget: int | None = None,
    seconds: float | None = None, seed: int = 0, ckpt: str | None = None, backward: bool = False,
    numerics: Literal["equal", "close"] | None = None, allocator: Literal["user", "keep"] = "user",
    settings: Sequence[str] = (), progress: bool = False,
) -> "Answer | Optimized":  # fmt: skip
    """Solves one model and returns the best answer found.

    The compiler's default is always a candidate. With `budget=0` the algorithm answers without any price.

    Args:
        model: an nn.Module or a function of tensors, the path of an ONNX model or a graph file, or a `Graph`.
        example_inputs: arguments of the module: a tensor, a tuple, a mapping of keyword arguments, or a pair of both.
        cost: a cost model of the command line, which judges as well; None: the task's usual one. With `inductor`
            (task=fusion, an nn.Module) every graph that torch.compile makes of the module is compiled and timed on this
            machine. With `backward` those of its gradient are, too. torch.compile's caches in this process are cleared.
            `calibrated` and `generated_code` predict such times, of an nn.Module as one graph.
        task: the kind of decision, an option of the command line (`graphopt --help`).
        algo: an algorithm; None or "auto": the one that the stored tables recommend (conf/recommended.yaml). The
            answer's `facts["algo"]` names it.
        machine: the machine that is simulated; None: the task's usual one.
        objective: runtime, peak_memory or max_load; None: the cost model's own.
        budget: evaluations, with `cost="inductor"` for each graph; None: 1,000, or 12 with `cost="inductor"`. With 0
            times are predicted there.
        seconds: cap on the time of the search.
        seed: of weights, samples and searches.
        ckpt: of algorithms that learn: a checkpoint, or `pretrained`.
        backward: take gradients of all parameters into the graph.
        numerics: `equal`, outputs and gradients stay the same bit for bit, or `close`.
        allocator: with `cost="inductor"`: `keep` tells this process's malloc to keep freed memory, for good, and races
            with that; its own gain is measured and reported apart. `user`: malloc stays as it is.
        settings: further words of the command line, such as `machine.link_bandwidth=50e9`.
        progress: bars on stderr.

    Returns:
        An `Answer`. With `cost="inductor"` an nn.Module that runs by the decisions, checked against torch.compile's
        default.

    Raises:
        UserError: one sentence with the remedy (GraphError for models).

    Example:
        >>> answer = optimize(torch.nn.Linear(4, 4), torch.zeros(2, 4), budget=20)  # doctest: +SKIP
    """
    with _as_library(progress):
        if cost != "inductor":
            if allocator != "user":
                raise UsageError(f"allocator={allocator} is of cost=inductor, which runs the module; leave it out")
            words = _words(
                task, algo, machine, objective, 1000 if budget is None else budget, seconds, seed, ckpt, cost
            )
            given, held = _model(model, example_inputs, task, backward, cost)
            told = [*words, *_optional("task.numerics", numerics), *given]
            return _solved(_decided(_with_settings(settings, told)), held)
        budget = 12 if budget is None else budget
        from graphopt.graphs.torch_module import as_module
        from graphopt.report.apply.optimized import BUILDERS, optimized, runs_on_gpu

        module = as_module(model)
        gpu = module is not None and runs_on_gpu(module, example_inputs)
        algo = ("compiler_search" if gpu else "compiler_policy") if algo in (None, AUTO) else algo
        words = _words(task, algo, machine or "cpu_gpu", objective, budget, seconds, seed, ckpt)
        told = [f"cost={cost}", f"cost@judge={cost}", "judge.fresh_processes=3", f"task.numerics={numerics or 'equal'}",
                *(f"{part}.allocator={allocator}" for part in ("cost", "judge")),
                *(f"{part}.builders={BUILDERS}" for part in ("cost", "judge")),
                *([f"algo.builders={BUILDERS}"] if algo == "compiler_policy" else []),
                *(f"{part}.device=cuda" for part in ("task", "cost.measuring", "judge.measuring") if gpu)]  # fmt: skip

        if module is None:
            raise UsageError(
                f"cost=inductor runs an nn.Module, not a {type(model).__name__}; give the module and its inputs"
            )
        return optimized(module, example_inputs, backward=backward, numerics=numerics or "equal", allocator=allocator,
                         solve=lambda graph: _solved([*words, *told, *settings], graph))  # fmt: skip


@contextmanager
def _as_library(progress: bool) -> Iterator[None]:
    """In somebody's process: without bars unless asked for, and torch's random generators are afterwards as before."""
    torch = sys.modules.get("torch")
    gpus = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_initialized() else ()
    with silent(not progress), seldom_collected(), torch.random.fork_rng(gpus) if torch else nullcontext():
        yield


def train(
    data: Any, *, val: Any = None, task: str = "fusion", algo: str = "go", cost: str | None = None,
    machine: str | None = None, objective: str | None = None, steps: int | None = None, seconds: float | None = None,
    seed: int = 0, output_dir: str | Path = "outputs", study: str = "train", settings: Sequence[str] = (),
    progress: bool = True,
) -> Path:  # fmt: skip
    """Trains an algorithm that learns. A second call goes on where a killed one stopped, or returns at once.

    Args:
        data: the name of a data set's option such as `zoo`, a `Dataset`, or graphs to train on: one or a list of
            `Graph`, path of an ONNX model or graph file, or pair (nn.Module or function, example inputs).
        val: further graphs, one or a list, by which the best weights are chosen; a data set has its own.
        task, algo, cost, machine, objective, seed, settings: as in `optimize`.
        steps: of training; None: as conf/trainer/default.yaml says.
        seconds: cap on all steps; None: as conf/trainer/default.yaml says.
        output_dir, study: the run's folder lies in `output_dir/study`.
        progress: bars on stderr.

    Returns:
        The path of the best checkpoint, for `optimize(model, ckpt=path)`.

    Raises:
        UserError: one sentence with the remedy (GraphError for models).
    """
    words = [*_words(task, algo, machine, objective, None, None, seed, None, cost), f"study={_quoted(study)}",
             f"output_dir={_quoted(output_dir)}", *_optional("trainer.steps", steps),
             *_optional("trainer.max_seconds", seconds)]  # fmt: skip
    with _as_library(progress):
        given, held = _data(data, val, task, cost, settings, learns=True)
        config = _configured([*words, *given], settings, held)
        if not compatibility.learns(target_of(config["algo"], "algo")):
            raise UsageError(f"algo={algo} is not trained before it is used; give it to `optimize` or `compare`")
        from graphopt.run.training.train import prepare

        cell = Cell(config)
        with _working(cell), cell.logged():
            if not cell.skipped:
                prepare(build(config, held), cell)
    return cell.path / "ckpt" / "best.ckpt"


@dataclass(frozen=True, eq=False)
class Results:
    """The results of `compare`. Printed, it is the tables of a report.

    rows: a dictionary per graph, algorithm, budget and seed, as rows.jsonl has them. Its keys are `graph`, `algo`,
    `evals_cap`, `seed`, and `status` (ok, infeasible or failed, with a `reason`). `initial` and `judged` are the prices
    of the default and of the answer: bytes where `objective` is peak_memory, else seconds. folder: of the study.
    """

    rows: list[Row]
    folder: Path
    kept: "TemporaryDirectory[str] | None" = None  # the folder stays for as long as this object

    def __str__(self) -> str:
        return as_markdown(tables(collect(self.folder), str(self.rows[0]["algo"])))

    def frame(self) -> Any:
        """The rows as a pandas DataFrame, without the search's trace. Raises UserError without pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("rows as a table need pandas: pip install pandas") from None
        return pandas.DataFrame([{key: value for key, value in row.items() if key != "trace"} for row in self.rows])

    def plot(self, folder: str | Path) -> list[Path]:
        """Draws curves and bars into a folder; returns the files."""
        from graphopt.report.pictures.curves import draw_study

        return draw_study(collect(self.folder), Path(folder))

    def html(self, path: str | Path) -> Path:
        """Writes the tables and curves as one page that needs no network. Raises ConfigError without Bokeh."""
        from graphopt.report.page.study_page import study_page

        return study_page(self.folder, Path(path), str(self.rows[0]["algo"]))

    def answers(self) -> list[Answer]:
        """The answer of every row that has one, in the order of the rows."""
        return [Answer.load(self.folder / str(row["cell"]) / str(row["decision"])) for row in self.rows
                if "decision" in row]  # fmt: skip


def compare(
    data: Any, *, algos: Sequence[str], task: str = "fusion", cost: str | None = None, machine: str | None = None,
    objective: str | None = None, budget: int | Sequence[int] = 1000, seconds: float | None = None,
    seeds: Sequence[int] = (0,), ckpt: Mapping[str, str | Path] | None = None, output_dir: str | Path | None = None,
    study: str = "compare", settings: Sequence[str] = (), progress: bool = True,
) -> Results:  # fmt: skip
    """Solves the same graphs by several algorithms under the same budgets.

    Args:
        data: graphs to report on, as in `train`; of a data set its test graphs.
        algos: options of the command line. One that learns needs a checkpoint, or a data set with training graphs.
        task, cost, machine, objective, settings: as in `optimize`; settings hold for all algorithms.
        budget: evaluations, one number or several.
        seconds: cap on each solve.
        seeds: every algorithm runs once with each.
        ckpt: algorithm -> path of a checkpoint, or `pretrained`.
        output_dir, study: where cells are kept, as those of the command line; None: until the result is gone.
        progress: bars on stderr.

    Returns:
        The rows, with tables, curves and a page. Single solves that fail are rows whose `status` and `reason` say so.

    Raises:
        UserError: one sentence, before anything is solved where an algorithm does not fit. If no row is ok, the error
            of the first is raised.
    """
    if isinstance(algos, str) or not algos:
        raise UsageError(f"algos={algos!r} must be a list of names, such as ['default', 'local']")
    unused = sorted({*(ckpt or {})} - {*algos})
    if unused:
        raise UsageError(f"ckpt names {unused[0]}, which is not among algos ({', '.join(algos)})")
    kept = TemporaryDirectory(prefix="graphopt-") if output_dir is None else None
    place = [f"study={_quoted(study)}", f"output_dir={_quoted(kept.name if kept else output_dir)}"]
    rows, errors = list[Row](), list[UserError]()
    with _as_library(progress):
        given, held = _data(data, None, task, cost, settings, learns=False)
        configs = []
        for algo in algos:
            for seed in seeds:
                words = _words(task, algo, machine, objective, budget, seconds, seed, (ckpt or {}).get(algo), cost)
                config = _configured([*words, *place, *given], settings, held)
                compatibility.check(config)
                trained = config["ckpt"] is not None or held is None or held.graphs("train")
                if not trained and compatibility.learns(target_of(config["algo"], "algo")):
                    raise UsageError(
                        f"algo={algo} has to be trained; give ckpt={{{algo!r}: PATH}}, which `train` returns"
                    )
                configs.append(config)
        for config in configs:
            cell = Cell(config)
            try:
                _evaluated(cell, held)
            except (RowsFailed, NothingFits) as error:  # its rows say so
                errors.append(error)
            rows += cell.rows.rows
    if errors and not any(row["status"] == "ok" for row in rows):
        raise errors[0]
    return Results(rows, cell.study_path, kept)


def load(path: str | Path) -> Answer:
    """The answer in a decision file.

    Args:
        path: `....npz`, or `STUDY/answers.zip#DIGEST` of a packed study.
    Returns: the answer; `answer.check()` prices it again.
    Raises: UserError where the file cannot be read, or its graph is not found.
    """
    return Answer.load(path)


# ---- words of the command line


def _words(task: str, algo: str | None, machine: str | None, objective: str | None, budget: int | Sequence[int] | None,
           seconds: float | None, seed: int, ckpt: str | Path | None, cost: str | None = None
           ) -> list[str]:  # fmt: skip
    """The chosen options, with the usual ones of the task for the rest."""
    algo = (_learner_in(ckpt) if algo in (None, AUTO) else algo) or AUTO
    given = {"machine": machine, "cost": cost}
    here = {"machine": "cpu_core"} if cost in HERE else {}  # costs measured on this machine
    if cost == "live_bytes" and "fuse" in registry.option("task", task):  # it runs the program op by op
        here["task.fuse"] = "false"
    chosen = {**USUAL.get(task, {}), **here, **{key: value for key, value in given.items() if value is not None}}
    if "cost" in chosen and objective == getattr(
        target_of(registry.option("cost", chosen["cost"]), "cost"), "objective", None
    ):
        objective = None  # the only one of that cost: there is no such setting
    if "cost" in chosen and objective is not None and "objective" not in registry.option("cost", chosen["cost"]):
        raise UsageError(f"task={task} by cost={chosen['cost']} is about one price; leave out objective={objective!r}")
    evals = [budget] if isinstance(budget, int) else budget
    return [
        f"task={task}", f"algo={algo}", f"seed={seed}", "logger=none", "study=answer",
        *(f"{key}={value}" for key, value in chosen.items()),
        *([f"cost@judge={chosen['cost']}"] if "cost" in chosen else []),
        *_optional("cost.objective", objective), *_optional("judge.objective", objective),
        *_optional("budget.evals", None if evals is None else list(evals)), *_optional("budget.seconds", seconds),
        *_optional("ckpt", None if ckpt is None else _quoted(ckpt)),
    ]  # fmt: skip


def _decided(words: Sequence[str]) -> list[str]:
    """The words, with the algorithm that is recommended for them in the place of `auto`."""
    if f"algo={AUTO}" not in words:
        return list(words)
    given = any(word.startswith("ckpt=") for word in words)
    name, ships = compatibility.recommended(
        _composed([word for word in words if word != f"algo={AUTO}"] + ["algo=default"])
    )
    own = [f"algo={name}", *(["ckpt=pretrained"] if ships and not given else [])]
    return [part for word in words for part in (own if word == f"algo={AUTO}" else [word])]


def _learner_in(ckpt: str | Path | None) -> str | None:
    """The algorithm that a checkpoint is of, if it is there and says so."""
    if ckpt is None or ckpt == "pretrained":
        return None
    from graphopt.run.training import adopt, checkpoint

    stored = checkpoint.said(checkpoint.load(adopt.find(str(ckpt), {})), "settings")
    return None if stored is None else str(stored["algo"]["name"])


def _with_settings(settings: Sequence[str], words: Sequence[str]) -> list[str]:
    """The settings, after the last word of each key that they do not set."""
    latest = {word.partition("=")[0]: word for word in words}
    set_here = {word.partition("=")[0] for word in settings}
    return [word for key, word in latest.items() if key not in set_here] + list(settings)


def _optional(key: str, value: object) -> list[str]:
    return [] if value is None else [f"{key}={value}"]


def _quoted(value: object) -> str:
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"


def _composed(words: Sequence[str]) -> dict[str, Any]:
    try:
        return composed(words)
    except Exception as error:  # Hydra's, which name files of its own
        raise UsageError(explained(error, words)[0]) from None


def _with_network(config: dict[str, Any]) -> dict[str, Any]:
    """With the settings that its checkpoint's network was trained with, as on the command line."""
    if config["ckpt"] is None:
        return config
    from graphopt.run.training.adopt import with_network

    with suppress(UserError):  # said when the weights are loaded
        return with_network(config)
    return config


def _configured(words: Sequence[str], settings: Sequence[str], held: Dataset | None) -> dict[str, Any]:
    """The configuration of a cell. held: its data set, if the words do not name it; it has its settings already."""
    rest = settings if held is None else [word for word in settings if word not in _of_dataset(settings)]
    config = _with_network(_composed(_with_settings(rest, words)))
    return config if held is None else {**config, "dataset": {**HELD, "name": held.name}}


def _of_dataset(settings: Sequence[str]) -> list[str]:
    return [word for word in settings if word.lstrip("+").startswith("dataset.")]


def _refuse(settings: Sequence[str], name: str) -> None:
    """Refuses settings of a data set, where there is none that reads files."""
    if settings:
        raise UsageError(f"{settings[0]} is for models that are read from files, and {name} is none; leave it out")


# ---- models and data sets


def _model(
    model: Any, example_inputs: Any, task: str, backward: bool, cost: str | None
) -> tuple[list[str], Graph | None]:
    """(words that name the data set, the graph if it is held already)."""
    if isinstance(model, Graph):
        return [], model
    if isinstance(model, str | Path):
        kind = _kind_of_file(model, task)
        return [f"dataset={kind}", f"dataset.path={_quoted(Path(model).resolve())}"], None
    from graphopt.graphs.torch_module import as_module

    module = as_module(model)
    if module is None:
        raise UsageError(f"cannot optimize a {type(model).__name__}; give an nn.Module, a function, a path, or a Graph")
    name = type(module).__name__
    if task == "recompute":  # the reader of training steps takes a second to import
        from graphopt.graphs.readers.pytorch.step_capture import capture_step

        return [], capture_step(module, example_inputs, name=name, family=name)
    if (
        cost in registry.options("cost")
        and "compiled_program" in target_of(registry.option("cost", cost), "cost").needs
    ):
        from graphopt.hardware.datasets.lowered import lowered_module

        return [], lowered_module(module, example_inputs, name=name, backward=backward)
    from graphopt.graphs.readers.pytorch.capture import capture

    return [], capture(module, example_inputs, name=name, family=name, backward=backward, keep_program=True)


def _kind_of_file(path: str | Path, task: str) -> str:
    """The data set that reads a file."""
    if not Path(path).is_file():
        raise UserError(f"no file {path}; give the path of an ONNX model or a graph file, a module, or a Graph")
    return task if task in FILES else "onnx" if Path(path).suffix == ".onnx" else "files"


def _data(data: Any, val: Any, task: str, cost: str | None, settings: Sequence[str], *, learns: bool
          ) -> tuple[list[str], Dataset | None]:  # fmt: skip
    """(words that name the data set, the data set if it is made of a program's objects)."""
    if isinstance(data, str) and not Path(data).is_file():
        if data not in registry.options("dataset"):
            raise UserError(f"{data!r} is neither a file nor a data set; the data sets are "
                            f"{', '.join(registry.options('dataset'))}")  # fmt: skip
        return [f"dataset={data}"], None
    if isinstance(data, Dataset):
        _refuse(_of_dataset(settings), data.name)
        name, splits = data.name, {split: data.graphs(split) for split in ("train", "val", "test")}
    else:
        name, splits = "given", {"train" if learns else "test": _graphs(data, task, cost, settings)}
    splits = splits if val is None else {**splits, "val": _graphs(val, task, cost, settings)}
    content = digest({split: [graph.hash for graph in graphs] for split, graphs in splits.items()})
    return [], InMemory(
        name=f"{name}_{content}", held=splits.get("test", []), train=splits.get("train", []), val=splits.get("val", [])
    )


def _graphs(models: Any, task: str, cost: str | None, settings: Sequence[str]) -> list[Graph]:
    """One model or several, as graphs."""
    several = isinstance(models, Sequence) and not isinstance(models, str) and not _is_pair(models)
    return [_graph(model, task, cost, settings) for model in (models if several else [models])]


def _is_pair(value: Sequence[Any]) -> bool:
    """Whether it is a module with its inputs, rather than a sequence of models."""
    return len(value) == 2 and callable(value[0])


def _graph(model: Any, task: str, cost: str | None, settings: Sequence[str]) -> Graph:
    """settings: those of a data set are of one that reads files."""
    inputs, of_file = None, _of_dataset(settings)
    if isinstance(model, Sequence) and not isinstance(model, str) and _is_pair(model):
        model, inputs = model
    words, graph = _model(model, inputs, task, backward=False, cost=cost)
    if graph is None:
        dataset: Dataset = construct(_composed([*words, *of_file])["dataset"], "dataset", {"seed": 0})
        return dataset.graphs("test")[0]
    _refuse(of_file, graph.name)
    return graph


# ---- cells


@contextmanager
def _working(cell: Cell) -> Iterator[None]:
    cell.start()
    try:
        yield
    finally:
        cell.stop()


def _evaluated(cell: Cell, held: Dataset | None) -> None:
    """Makes the cell's rows, where it is not finished."""
    with _working(cell):
        if not cell.skipped:
            run_through(cell, held)


def _solved(words: Sequence[str], held: Graph | None) -> Answer:
    """The answer to the configuration's only graph."""
    kept = TemporaryDirectory(prefix="graphopt-")
    config = {**_with_network(_composed(words)), "output_dir": kept.name, **({} if held is None else {"dataset": HELD})}
    cell = Cell(config)
    _evaluated(cell, None if held is None else InMemory(name="given", held=[held]))
    (row,) = cell.rows.done.values()
    model = cell.path / str(row["model"]) if "model" in row else None
    return Answer.load(cell.path / str(row["decision"]), model, kept, held)
