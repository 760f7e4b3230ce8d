"""Real measuring and build processes that know strange targets and functions."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A line for everything that was made ready."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "strange"), prepend=os.pathsep)
    monkeypatch.setenv("STRANGE_LOG", str(tmp_path / "log"))
    monkeypatch.setattr("graphopt.hardware.measure.pool.WORKER", "strange")
    monkeypatch.setattr("graphopt.hardware.measure.builds.BUILDER", "strange")
    return tmp_path / "log"
