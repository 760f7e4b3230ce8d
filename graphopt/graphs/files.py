"""Graphs from files: task graphs, profiles, workflows, programs of XLA, traces of PyTorch and our own `.npz`."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import JSON_BYTES, read_json
from graphopt.core.utils.marks import UserPath
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.readers.formats.graph_files import load_graph
from graphopt.graphs.readers.formats.hlo_protobuf import read_hlo_protobuf, read_tuned
from graphopt.graphs.readers.formats.hlo_text import read_hlo
from graphopt.graphs.readers.formats.stable_hlo import read_stable_hlo
from graphopt.graphs.readers.formats.task_graphs import (
    is_layer_graph,
    read_costgraph,
    read_devices,
    read_layer_graph,
    read_lifetimes,
    read_profiled,
    read_stg,
)
from graphopt.graphs.readers.formats.workflows import is_workflow, read_workflow


def _read_trace(path: Path) -> Graph:
    from graphopt.graphs.readers.pytorch.execution_trace import read_execution_trace

    return read_execution_trace(path)


def _read_json(path: Path) -> Graph:
    """By content; files of unknown content are read, and refused, as layer graphs."""
    return JSON.get(json_format(path), read_layer_graph)(path)


READERS: dict[str, Callable[[Path], Graph]] = {
    "*.stg": read_stg,
    "*.graph.json": read_profiled,
    "LayerGraphs_*.json": read_layer_graph,
    "*.memory.json": read_lifetimes,
    "*.pbtxt": read_costgraph,
    "*.npz": load_graph,
    "*.json": _read_json,
    **dict.fromkeys(("*.hlo", "*.hlo.gz", "*optimizations.txt"), read_hlo),  # names of XLA's dumps
    **dict.fromkeys(("*.mlir", "*.mlir.gz"), read_stable_hlo),
    "*.pb": read_hlo_protobuf,
}  # by pattern of the file's name, the first that fits
JSON: dict[str, Callable[[Path], Graph]] = {"layers": read_layer_graph, "workflow": read_workflow, "trace": _read_trace}
DATA, DEFAULT = "GRAPHOPT_CHECK_DATA", "../shared/data"  # the folder of third parties' data
BY_CONTENT = "*.json"  # of a folder's only files that `json_format` knows are read; others may lie beside them


def json_format(path: Path) -> str:
    """Which key of `JSON` a file's content is; empty for none."""
    try:
        data = read_json(path, JSON_BYTES)
    except Unreadable:
        return ""
    known = {"layers": is_layer_graph, "workflow": is_workflow, "trace": is_execution_trace}
    return next((name for name, fits in known.items() if fits(data)), "")


def third_party(folder: str) -> Path:
    """Where third parties' data of that name lie: below $GRAPHOPT_CHECK_DATA."""
    return Path(os.environ.get(DATA, DEFAULT)) / folder


def find_files(path: str, names: tuple[str, ...]) -> list[Path]:
    """The file itself, or those of a folder and below, or those that match a pattern, whose names match; sorted."""
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    found = place.rglob("*") if place.is_dir() else map(Path, glob(str(place), recursive=True))
    files = sorted(f for f in found if f.is_file() and any(fnmatch(f.name, name) for name in names))
    if not files:
        raise GraphError(f"no file named {' or '.join(names)} at {path!r}; give a file, a folder or a pattern")
    return files


class FileDataset(Dataset):
    """Graphs of files; `read` makes one of each. Files are read when their split is first asked for, and once.

    Of files of one name in several folders the graphs are called after their folders too: rows go by names.
    One bad file among several is left out, with a warning, and stands in `unread`; a file alone is an error.
    train and val: patterns of file names without ending for those splits; all others are test graphs.
    """

    def __init__(self, name: str, train: list[str], val: list[str]) -> None:
        self.name = name
        self._patterns: dict[Split, list[str]] = {"train": list(train), "val": list(val)}
        self._graphs: dict[Path, list[Graph]] = {}

    @abstractmethod
    def files(self) -> list[Path]:
        """All files of the data set. Raises GraphError when there is none."""

    @abstractmethod
    def read(self, file: Path) -> Graph:
        """The graph of one file. Raises GraphError."""

    def read_all(self, file: Path) -> list[Graph]:
        """All graphs of one file. Raises GraphError."""
        return [self.read(file)]

    def graphs(self, split: Split) -> list[Graph]:
        files = self.files()
        chosen = [file for file in files if split_of(bare_name(file), self._patterns) == split]
        for file in chosen:
            if file not in self._graphs and str(file) not in self._left.get(split, {}):
                with self.leaving_out(split, str(file), alone=len(files) == 1):
                    found, place = self.read_all(file), distinguishing_place(file, files)
                    self._graphs[file] = [replace(g, name=f"{place}_{g.name}") if place else g for g in found]
        return [graph for file in chosen for graph in self._graphs.get(file, [])]

    def unread(self, split: Split) -> Mapping[str, str]:
        self.graphs(split)
        return self._left.get(split, {})


class GraphFiles(FileDataset):
    """Graphs from a file, a folder or a pattern; the name chooses the reader (`READERS`)."""

    def __init__(self, *, name: str, path: UserPath, train: list[str], val: list[str]) -> None:
        super().__init__(name, train, val)
        self._path = path

    def files(self) -> list[Path]:
        if self._path is None:
            raise GraphError(
                f"dataset={self.name} needs dataset.path=... (file, folder or pattern: {' '.join(READERS)})"
            )
        found = find_files(self._path, tuple(READERS))
        return found if len(found) == 1 else [f for f in found if _named(f) or json_format(f)]

    def suggested_devices(self) -> list[dict[str, dict[str, float]]]:
        facts = [read_devices(f) for f in self.files() if (reader := _reader(f)) is read_layer_graph
                 or (reader is _read_json and json_format(f) == "layers")]  # fmt: skip
        return [fact for i, fact in enumerate(facts) if fact and fact not in facts[:i]]

    def read(self, file: Path) -> Graph:
        reader = _reader(file)
        if reader is None:
            raise GraphError(
                f"{file} is named like none of {' '.join(READERS)}, so no reader fits; ONNX models: dataset=onnx"
            )
        return reader(file)

    def read_all(self, file: Path) -> list[Graph]:
        if _reader(file) is read_hlo_protobuf:
            return [tuned.graph for tuned in read_tuned(file)]
        return [self.read(file)]


def _reader(file: Path) -> Callable[[Path], Graph] | None:
    return next((reader for name, reader in READERS.items() if fnmatch(file.name, name)), None)


def _named(file: Path) -> bool:
    """Whether the name alone tells the file's format."""
    return any(fnmatch(file.name, name) for name in READERS if name != BY_CONTENT)


def bare_name(file: Path) -> str:
    """Without its ending, packed or not."""
    return Path(file.name.removesuffix(".gz")).stem


def is_execution_trace(data: Any) -> bool:
    """Whether JSON is an execution trace of PyTorch, as Chakra reads them."""
    return isinstance(data, dict) and "nodes" in data and "chakra" in str(data.get("schema", ""))


def split_of(stem: str, patterns: dict[Split, list[str]]) -> Split:
    """The first split one of whose patterns the name matches, else test."""
    return next((split for split, globs in patterns.items() if any(fnmatch(stem, g) for g in globs)), "test")


def distinguishing_place(file: Path, files: list[Path]) -> str:
    """A distinction between files of one name without ending: their folders, as few as needed, then their endings;
    empty where a name is unique."""
    same = [other for other in files if other.stem == file.stem and other != file]
    if not same:
        return ""
    for depth in range(1, len(file.parts)):
        place = file.parts[-depth - 1 : -1]
        if all(other.parts[-depth - 1 : -1] != place for other in same):
            return "_".join(place).strip("/")
    return file.suffix.removeprefix(".")
