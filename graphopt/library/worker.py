"""A process that captures entries of the catalogue, one after another; started by `graphopt.gather`, which ends it when
an entry takes too long and starts another one."""

import contextlib
import os
import resource
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from graphopt.core.graph import Graph
from graphopt.library.catalogue import LibraryModel, library


def work(pipe: Connection, memory: int) -> None:
    """Answers {"graph": file} or {"reason": ...} to every (entry, file) until the pipe is closed. memory: bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    warnings.simplefilter("ignore")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        while True:
            try:
                entry, file, most_ops = pipe.recv()
            except EOFError:
                return
            pipe.send(_answer(entry, Path(file), most_ops))


def _answer(entry: LibraryModel, file: Path, most_ops: int) -> dict[str, Any]:
    from graphopt.readers.formats.graph_files import save_graph

    try:
        graph = capture_entry(entry)
        if not 2 <= graph.num_ops <= most_ops:
            return {"reason": f"{graph.num_ops:,} ops"}
        save_graph(file, graph)
        return {"graph": file.name, "ops": graph.num_ops, "hash": graph.hash}
    except Exception as error:  # libraries raise whatever they like
        return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def capture_entry(entry: LibraryModel) -> Graph:
    """The graph of an entry, by the first of its calls that the model takes. Raises GraphError: the first reason."""
    from graphopt.core.graph import GraphError
    from graphopt.readers.pytorch.capture import capture

    module, calls = library(entry.library).build(entry)
    first: GraphError | None = None
    for call in calls:
        try:
            return capture(
                module, call, name=entry.name, family=entry.family, backward=entry.backward, keep_program=False
            )
        except GraphError as error:
            first = first or error
    raise first or GraphError(f"{entry.name}: no call is known")
