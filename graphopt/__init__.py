"""Learned and classical graph optimisers for ML compilers, on the same problems, under the same budget."""

import hashlib
import os
from pathlib import Path


def cache_dir() -> Path:
    """Where compiled kernels and captured graphs are kept: $GRAPHOPT_CACHE, else ~/.cache/graphopt."""
    return Path(os.environ.get("GRAPHOPT_CACHE") or Path.home() / ".cache" / "graphopt")


def _numba_cache() -> str:
    """A folder per state of the compiled sources: Numba's own cache misses changes in functions of other files."""
    digest = hashlib.sha256()
    root = Path(__file__).parent
    for path in sorted([*root.glob("*.py"), *(root / "costs").glob("*.py"), *(root / "search").glob("*.py")]):
        digest.update(path.read_bytes())
    return str(cache_dir() / "numba" / digest.hexdigest()[:16])


os.environ.setdefault("NUMBA_CACHE_DIR", _numba_cache())
