"""Captured graphs on disk, by content: the same request, the same source code and the same torch give the same file."""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from graphopt import cache_dir as usual_folder
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph

log = logging.getLogger(__name__)

# Files that a capture depends on, relative to the package.
SOURCES = ("core/graph.py", "core/operators.py", "graphs/readers/formats/graph_files.py", "graphs/zoo/*.py",
           "hardware/datasets/programs.py", "graphs/library/packages.py", "hardware/inductor/*.py",
           "graphs/readers/pytorch/*.py", "graphs/readers/pytorch/graphnet/*")  # fmt: skip


class GraphCache:
    """A folder of graphs: `cache_dir`, else $GRAPHOPT_CACHE, else ~/.cache/graphopt."""

    def __init__(self, cache_dir: str | None) -> None:
        self.folder = Path(cache_dir).expanduser() if cache_dir else usual_folder()

    def path(self, name: str, request: Mapping[str, Any]) -> Path:
        """The file of a request (plain JSON values)."""
        text = json.dumps([request, source_digest(), version("torch")], sort_keys=True)
        return self.folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"

    def has(self, name: str, request: Mapping[str, Any]) -> bool:
        return self.path(name, request).is_file()

    def get(self, name: str, request: Mapping[str, Any], make: Callable[[], Graph]) -> Graph:
        """The stored graph, or a made one, which is then stored. Damaged files are made anew."""
        path = self.path(name, request)
        if path.is_file():
            try:
                return load_graph(path)
            except GraphError as error:
                log.warning("%s: making it again", error)
        graph = make()
        try:
            save_graph(path, graph)
        except OSError as error:
            log.warning(
                "cannot keep graphs in %s (%s); set GRAPHOPT_CACHE to a folder that can be written", path, error
            )
        return graph


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest of the code that captures."""
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for file in sorted(file for file in package.glob(pattern) if file.is_file()):  # not Python's __pycache__
            digest.update(file.read_bytes())
    return digest.hexdigest()
