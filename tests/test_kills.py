"""Runs that are killed, or whose disk is full, and begun again: nothing is lost, and rows are those of an undisturbed
run (`tests/kills/accidents.py`, which has more)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


def through(*words: str) -> dict[str, int]:
    """What the command counts, in a process of its own: it forks."""
    path = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(HERE / "kills" / "accidents.py"), *words]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[str, int] = json.loads(done.stdout)
    return counted


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("study", "kills"), [("search", 3), ("profiled", 1)])
def test_killed_runs_end_with_the_same_rows(study: str, kills: int) -> None:
    found = through("--study", study, "--kills", str(kills))
    assert found["kills"] == kills and found["rows"] > 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("study", ["search", "profiled", "learner"])
def test_twenty_kills_and_a_full_disk_at_every_write(study: str) -> None:
    found = through("--study", study, "--kills", "20", "--full-every", "1")
    assert found["kills"] == 20 and found["full/full disks"] > 20
