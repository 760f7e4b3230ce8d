"""Third-party data for checks: a folder outside the repository, named by GRAPHOPT_CHECK_DATA."""

import os
from pathlib import Path

import pytest


def check_data(name: str) -> Path:
    """A file or folder of the check data; skips the test, saying so, where it is absent."""
    default = Path(__file__).parents[2] / "shared" / "data"
    path = Path(os.environ.get("GRAPHOPT_CHECK_DATA", default)) / name
    if not path.exists():
        pytest.skip(f"no check data at {path}; set GRAPHOPT_CHECK_DATA")
    return path
