"""Graphs as files: one `.npz` per graph, without pickles; of programs those that are the content of a program file."""

import json
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import MIB, parse_json, parse_npz, read_bytes
from graphopt.core.utils.whole import whole_file

FORMAT = 1  # of the file; a reader refuses others
ARRAYS = ("kind", "input_ptr", "input_tensor", "producer", "is_weight", "is_output", "dtype", "tensor_bytes",
           "shape_ptr", "shape", "flops")  # fmt: skip
_KINDS = {name: np.dtype(kind) for name, kind in {
    "kind": np.int16, "input_tensor": np.int32, "producer": np.int32, "is_weight": np.bool_, "is_output": np.bool_,
    "dtype": np.int8, "flops": np.float64, "together": np.int32,
}.items()}  # fmt: skip # of all others: int64
FILE_BYTES = 1024 * MIB  # of all arrays and texts of a graph: about 100 bytes an op
TEXT_BYTES = 256 * MIB
_PROGRAM = "program"  # the content of a program file, where a graph has one
_MEASURED = "measured_"  # start of the names of arrays that not every graph has


def save_graph(path: str | Path, graph: Graph) -> None:
    """Writes the graph, all or nothing: a reader never sees half a file. Attributes must be plain JSON values."""
    with whole_file(Path(path)) as file:
        _write(file, graph)


def graph_content(graph: Graph) -> bytes:
    """The content of a file of `save_graph`."""
    content = BytesIO()
    _write(content, graph)
    return content.getvalue()


def _write(file: IO[bytes], graph: Graph) -> None:
    texts = {"format": FORMAT, "name": graph.name, "family": graph.family, "op_names": graph.op_names,
             "attributes": [dict(a) for a in graph.attributes], "hash": graph.hash}  # fmt: skip
    packed = np.frombuffer(json.dumps(texts).encode(), np.uint8)
    np.savez_compressed(file, texts=packed, **_arrays(graph))


def _arrays(graph: Graph) -> dict[str, Any]:
    """All arrays of the graph by name; those that are empty for most graphs only where they are not."""
    arrays = {name: getattr(graph, name) for name in ARRAYS}
    shared = {"together": graph.together} if len(graph.together) else {}
    if isinstance(graph.program, bytes):
        shared[_PROGRAM] = np.frombuffer(graph.program, np.uint8)
    return {**arrays, **shared, **{_MEASURED + kind: seconds for kind, seconds in graph.measured.items()}}


class _OtherFormat(Exception):
    """The file's format, as text."""


def _check_texts(texts: Any) -> None:
    """Raises ValueError unless the texts of a file are as `save_graph` writes them."""
    if isinstance(texts, dict) and texts.get("format") != FORMAT:
        raise _OtherFormat(str(texts.get("format"))[:40])
    names = [texts["name"], texts["family"], texts["hash"], *texts["op_names"]]
    if not all(isinstance(name, str) for name in names) or not isinstance(texts["op_names"], list):
        raise ValueError("a name is no text")
    attributes = texts["attributes"]
    if not isinstance(attributes, list) or not all(isinstance(of, dict) for of in attributes):
        raise ValueError("attributes are no objects")


def stored_arrays(file: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """The graph's arrays in the types that it has. Raises ValueError where one is of another kind."""
    arrays = {}
    for name in (*ARRAYS, *(["together"] if "together" in file else [])):
        kind = _KINDS.get(name, np.dtype(np.int64))
        if not np.can_cast(file[name].dtype, kind) or file[name].ndim != 1:
            raise ValueError(f"{name} is {file[name].dtype} {file[name].shape}, not {kind} in one dimension")
        arrays[name] = file[name].astype(kind)
    return arrays


def load_graph(path: str | Path) -> Graph:
    """Reads a file of `save_graph`. Raises GraphError when the file is missing, damaged or of another format."""
    path = Path(path)
    if not path.is_file():
        raise GraphError(f"no graph file {path}; save_graph writes such files")
    try:
        content = read_bytes(path, FILE_BYTES)
    except Unreadable as error:
        raise _damaged(path, error) from error
    return parse_graph(content, path)


def parse_graph(content: bytes, path: str | Path) -> Graph:
    """The same of a file's content that is at hand. path: where it is of, for messages."""
    try:
        file = parse_npz(content, str(path), FILE_BYTES)
        texts = parse_json(file["texts"].tobytes(), "its text", TEXT_BYTES)
        _check_texts(texts)
        measured = {name.removeprefix(_MEASURED): file[name] for name in file if name.startswith(_MEASURED)}
        program = file[_PROGRAM].astype(np.uint8).tobytes() if _PROGRAM in file else None
        graph = Graph(name=texts["name"], family=texts["family"], op_names=tuple(texts["op_names"]),
                      attributes=tuple(texts["attributes"]), measured=measured, program=program,
                      **stored_arrays(file))  # fmt: skip
    except _OtherFormat as error:
        raise GraphError(f"graph file {path} has format {error}, this version reads {FORMAT}; write it anew") from None
    except (Unreadable, KeyError, ValueError, TypeError, IndexError) as error:
        raise _damaged(path, error) from error
    if graph.hash != texts["hash"]:
        raise _damaged(path, "its content does not match its digest")
    return graph


def _damaged(path: str | Path, why: Exception | str) -> GraphError:
    return GraphError(f"graph file {path} is damaged ({why}); delete it and write it anew")
