"""Graphs as files: one `.npz` per graph, without pickles; the executable program is not stored."""

import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.graph import Graph, GraphError

FORMAT = 1  # of the file; a reader refuses others
_ARRAYS = ("kind", "input_ptr", "input_tensor", "producer", "is_weight", "is_output", "dtype", "tensor_bytes",
           "shape_ptr", "shape", "flops")  # fmt: skip
_MEASURED = "measured_"  # start of the names of arrays that not every graph has


def save_graph(path: str | Path, graph: Graph) -> None:
    """Writes the graph, all or nothing: a reader never sees half a file. Attributes must be plain JSON values."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = {"format": FORMAT, "name": graph.name, "family": graph.family, "op_names": graph.op_names,
             "attributes": [dict(a) for a in graph.attributes], "hash": graph.hash}  # fmt: skip
    packed = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez_compressed(file, texts=packed, **_arrays(graph))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _arrays(graph: Graph) -> dict[str, Any]:
    """All arrays of the graph by name; those that are empty for most graphs only where they are not."""
    arrays = {name: getattr(graph, name) for name in _ARRAYS}
    shared = {"together": graph.together} if len(graph.together) else {}
    return {**arrays, **shared, **{_MEASURED + kind: seconds for kind, seconds in graph.measured.items()}}


def load_graph(path: str | Path) -> Graph:
    """Reads what `save_graph` wrote. Raises GraphError when the file is missing, damaged or of another format."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no graph file {path}; save_graph writes such files")
    try:
        with np.load(path, allow_pickle=False) as file:
            texts = json.loads(file["texts"].tobytes())
            if texts["format"] != FORMAT:
                raise GraphError(
                    f"graph file {path} has format {texts['format']}, this version reads {FORMAT}; write it anew"
                )
            arrays = {name: file[name] for name in (*_ARRAYS, *(["together"] if "together" in file else []))}
            measured = {name.removeprefix(_MEASURED): file[name] for name in file if name.startswith(_MEASURED)}
        graph = Graph(name=texts["name"], family=texts["family"], op_names=tuple(texts["op_names"]),
                      attributes=tuple(texts["attributes"]), measured=measured, **arrays)  # fmt: skip
    except (zipfile.BadZipFile, OSError, EOFError, KeyError, ValueError, TypeError, IndexError) as error:
        if isinstance(error, GraphError) and "format" in str(error):
            raise
        raise GraphError(f"graph file {path} is damaged ({error}); delete it and write it anew") from error
    if graph.hash != texts["hash"]:
        raise GraphError(
            f"graph file {path} is damaged (its content does not match its digest); delete it and write it anew"
        )
    return graph
