"""Learned and classical graph optimisers for ML compilers, on the same problems, under the same budget."""

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphopt.core.graph import Graph
    from graphopt.report.answer import Answer
    from graphopt.report.api import load, optimize

__all__ = ["CONF", "OWN_OPTIONS", "Answer", "Graph", "cache_dir", "load", "optimize"]

# yaml files of all options; in a clone a link to conf/ at its top
CONF = (Path(__file__).parent / "run" / "conf").resolve()
OWN_OPTIONS = "GRAPHOPT_CONFIG_DIR"  # environment variable: a folder of further options, which `--config-dir` sets
COMPILED = ("contests", "core", "costs", "hardware", "problems", "rewrite", "search")  # rooms with Numba


def cache_dir() -> Path:
    """Where compiled kernels and captured graphs are kept: $GRAPHOPT_CACHE, else ~/.cache/graphopt."""
    return Path(os.environ.get("GRAPHOPT_CACHE") or Path.home() / ".cache" / "graphopt")


def _numba_cache() -> str:
    """A folder per state of the compiled sources: Numba's own cache misses changes in functions of other files."""
    digest = hashlib.sha256()
    for source in sorted(_compiled(Path(__file__).parent)):
        digest.update(source)
    return str(cache_dir() / "numba" / digest.hexdigest()[:16])


def _compiled(root: Path) -> set[bytes]:
    """Sources with compiled functions, and those that they import from: their constants are compiled in."""
    files = [file for name in COMPILED for file in (root / name).rglob("*.py")]
    compiled = {text for text in map(Path.read_bytes, files) if b"@njit" in text}
    names = {name for text in compiled for name in re.findall(rb"^from graphopt\.([\w.]+) import", text, re.MULTILINE)}
    imported = (root / f"{name.decode().replace('.', '/')}.py" for name in names)
    return compiled | {file.read_bytes() for file in imported if file.is_file()}


os.environ.setdefault("NUMBA_CACHE_DIR", _numba_cache())

_LATE = {
    "optimize": "graphopt.report.api",
    "load": "graphopt.report.api",
    "Answer": "graphopt.report.answer",
    "Graph": "graphopt.core.graph",
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def __getattr__(name: str) -> Any:
    """What users import, loaded when it is first used: `graphopt --help` needs none of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("graphopt")
    if name not in _LATE:
        raise AttributeError(f"module 'graphopt' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATE[name]), name)
