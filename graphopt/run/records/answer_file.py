"""Files of answers: the answer to one graph as a small portable file that any run can replay, diff, revert and bisect.

The file is an npz without pickles:

- `header`: JSON as bytes: format, graph (name, family, hash, ops), prices (initial, searched, judged, noise), config
  (machine, task, cost, judge, dataset), row (its origin), versions.
- `trace`: float64 [S, 3]: evaluations, seconds, best cost, one line per improvement.
- fields of its kind of task: `graphopt.problems.assignment`, `graphopt.rewrite.rewrite_problem`. The task that the
  header names says which kind that is.

`graphopt answer show|diff|replay|revert|bisect|draw` works on them, and on those in a pack
(`graphopt.run.records.packed`): everywhere the path of one may be `STUDY/answers.zip#DIGEST`.
"""

import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import DecisionError, Unreadable, UserError
from graphopt.core.graph import Graph
from graphopt.core.utils.limits import parse_json, read_npz
from graphopt.core.utils.whole import whole_file
from graphopt.problems.answer_format import FILE_BYTES, HEADER_BYTES, Arrays, check_header, json_bytes, part
from graphopt.problems.problem import Decided, Problem, Task
from graphopt.run.config.stored import class_of, words
from graphopt.run.records import packed

CONFIG_KEYS = ("machine", "task", "cost", "judge", "dataset", "objective", "seed")
ROW_KEYS = (
    *("study", "dataset", "split", "graph", "family", "task", "machine", "cost", "judge", "objective", "encoder"),
    *("algo", "seed", "evals_cap", "evals", "config_hash"),
)


def save(
    path: Path | str, *, problem: Problem, judged: float, row: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Writes the best answer of a solved problem.

    judged: its price by the judge. row: the row's known fields. config: the resolved configuration as plain containers;
    its machine, task, cost, judge and dataset parts are kept.
    """
    write(path, complete(problem, judged, row, config))


def complete(problem: Problem, judged: float, row: Mapping[str, Any], config: Mapping[str, Any]) -> Decided:
    """The decision, with a complete header."""
    decided, graph = problem.solution().decided, problem.graph
    kept = {key: config[key] for key in CONFIG_KEYS if key in config}
    common = {
        "graph": {"name": graph.name, "family": graph.family, "hash": graph.hash, "ops": graph.num_ops},
        "prices": {
            "initial": float(row.get("initial", problem.initial_cost)),
            "searched": float(problem.best_cost),
            "judged": float(judged),
            "noise": float(row.get("noise", 0.0)),
        },
        "config": {key: words(key, said) if isinstance(said, Mapping) else said for key, said in kept.items()},
        "row": {key: row[key] for key in ROW_KEYS if key in row},
        "versions": versions(str(row.get("commit", ""))),
    }
    traced = sys.modules.get("graphopt.graphs.readers.pytorch.capture")  # where it is not loaded nothing was captured
    origins = traced.sources(graph) if traced is not None else {}
    return replace(
        decided,
        header={"format": decided.format, **decided.header, **common, **({"sources": origins} if origins else {})},
    )


def versions(commit: str) -> dict[str, str]:
    """The versions that computed the answer. torch counts only when it is loaded."""
    found = {"python": platform.python_version(), "numpy": np.__version__, "commit": commit}
    try:
        found["graphopt"] = version("graphopt")
    except PackageNotFoundError:
        found["graphopt"] = "source"
    torch = sys.modules.get("torch")
    return {**found, "torch": str(torch.__version__)} if torch is not None else found


def write(path: Path | str, decided: Decided, graph: bytes = b"") -> None:
    """Writes the file, all or nothing. graph: the content of its graph's file, to travel inside."""
    inside = {"graph": np.frombuffer(graph, np.uint8)} if graph else {}
    write_arrays(path, {"header": json_bytes(decided.header), "trace": decided.trace, **decided.arrays(), **inside})


def graph_inside(source: Path) -> bytes | None:
    """The content of its graph's file, if it travels inside. Raises DecisionError."""
    if packed.place_of(source) is not None:
        return None  # a pack holds graphs by themselves
    found = read_answer(source)[1].get("graph")
    return None if found is None else found.astype(np.uint8).tobytes()


def write_arrays(path: Path | str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes atomically: a reader never sees half a file."""
    with whole_file(Path(path)) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def copy(source: Path | str, target: Path | str) -> None:
    """Writes an answer of any format, wherever it is, as a file of its own. Raises DecisionError as `load` does."""
    header, arrays = read_answer(Path(source))
    write_arrays(target, {"header": json_bytes(header), **arrays})


def load(path: Path | str) -> Decided:
    """Reads an answer. Raises DecisionError when it is missing, damaged, or of a task that is not here."""
    source = Path(path)
    header, arrays = read_answer(source)
    try:
        task: type[Task] = class_of("task", header["config"].get("task"))
    except UserError as error:
        raise DecisionError(f"{source}: {error}") from None
    kind = task.decided
    if header.get("format") != kind.format:
        raise DecisionError(f"{source} has format {str(header.get('format'))[:40]!r}, answers of its task have "
                            f"{kind.format!r}")  # fmt: skip
    try:
        return kind.read(header, arrays)
    except UserError as error:
        raise damaged(source, error) from None


def read_answer(source: Path) -> tuple[dict[str, Any], Arrays]:
    """(header, arrays) of an answer of any task, in a file or in a pack. Raises DecisionError when it is missing or
    damaged, or its header lacks the common fields."""
    place = packed.place_of(source)
    if not (source if place is None else place[0]).is_file():
        raise DecisionError(f"no decision file {source}: give the path of a decisions/*.npz, or {packed.NAME}#DIGEST")
    try:
        if place is None:
            arrays = read_npz(source, FILE_BYTES)
            header = parse_json(part(arrays, "header").tobytes(), "its header", HEADER_BYTES)
            del arrays["header"]
        else:
            header, arrays = packed.read(*place)
        check_header(header)
        return header, arrays
    except Unreadable as error:
        raise damaged(source, error) from None


def damaged(source: Path, error: Exception | str) -> DecisionError:
    return DecisionError(f"{source} is not a readable decision file ({error}): write it again")


def match(decision: Decided, graph: Graph, source: str) -> None:
    """Raises DecisionError unless the decision is of this graph."""
    expected = decision.header["graph"]["hash"]
    if graph.hash != expected:
        raise DecisionError(
            f"{source} decides about graph {decision.header['graph']['name']!r} ({expected}), "
            f"but the graph given is {graph.name!r} ({graph.hash}): give the graph that it was made for"
        )
