"""Runs that are killed, or whose disk is full, and begun again: nothing is lost, and what they leave is what an
undisturbed run leaves (`tests/kills/`, which has more)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).resolve().parents[2]


def through(*words: str) -> dict[str, Any]:
    """What the command counts, in a process of its own: it forks."""
    command = [sys.executable, "-m", "tests.kills", *words]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    counted: dict[str, Any] = json.loads(done.stdout)
    return counted


@pytest.mark.parametrize(("study", "kills", "every"), [("search", 2, 40), ("learner", 2, 60), ("profiled", 3, 40)])
def test_killed_runs_and_full_disks_end_with_the_same_rows(study: str, kills: int, every: int) -> None:
    found = through("--study", study, "--kills", str(kills), "--full-every", str(every), "--seed", "1")
    assert found["kills"]["kills"] == kills and found["kills"]["rows"] > 0 and found["full"]["disks"] >= 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("study", ["search", "learner", "profiled"])
def test_twenty_kills_and_a_full_disk_at_every_write(study: str) -> None:
    found = through("--study", study, "--kills", "20", "--full-every", "1")
    assert found["kills"]["kills"] == 20 and found["full"]["disks"] > 20
