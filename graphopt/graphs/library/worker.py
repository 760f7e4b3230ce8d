"""A process that captures entries of the catalogue, one after another, within a limit of memory."""

import os
import resource
import warnings
from pathlib import Path
from typing import Any

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.process import Tell, serve
from graphopt.graphs.library.catalogue import LibraryModel, build
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.graphs.readers.pytorch.capture import capture

MEMORY = 12 << 30  # bytes of addresses


def main(arguments: list[str]) -> int:
    """Serves requests of `graphopt.report.gather`, each of one entry."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # what libraries print
        os.dup2(silence, stream)
    return serve(arguments, _answer)


def _answer(request: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """{"graph": file, ...} or {"reason": ...}."""
    entry, file = LibraryModel(**request["entry"]), Path(request["file"])
    try:
        graph = capture_entry(entry)
        if not 2 <= graph.num_ops <= request["most_ops"]:
            return {"reason": f"{graph.num_ops:,} ops"}
        save_graph(file, graph)
        return {"graph": file.name, "ops": graph.num_ops, "hash": graph.hash}
    except Exception as error:  # libraries raise whatever they like
        return {"reason": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def capture_entry(entry: LibraryModel) -> Graph:
    """The graph of an entry, by the first of its calls that the model takes. Raises GraphError: the first reason."""
    module, calls = build(entry)
    first: GraphError | None = None
    for call in calls:
        try:
            return capture(
                module, call, name=entry.name, family=entry.family, backward=entry.backward, keep_program=False
            )
        except GraphError as error:
            first = first or error
    raise first or GraphError(f"{entry.name}: no call is known")
