"""SIGTERM ends a command as Ctrl-C does: one sentence, nothing half written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOLVE = [
    "dataset=layered", "dataset.ops=[400]", "dataset.train=2", "dataset.val=1", "dataset.test=40",
    "task=joint", "budget.evals=100000",
]  # fmt: skip
TRAIN = ["algo=go", "trainer.steps=100000", "trainer.save_every=1"]


def wait_for(ready: "subprocess.Popen[str]", place: Path, pattern: str) -> None:
    until = time.monotonic() + 100
    while not list(place.rglob(pattern)):
        assert ready.poll() is None and time.monotonic() < until, ready.communicate()
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["terminated", "interrupted"]
)
@pytest.mark.parametrize(("words", "begun"), [(["algo=annealing"], "decisions/*.npz"), (TRAIN, "last.ckpt")])
def test_a_signal_is_one_sentence(tmp_path: Path, number: int, code: int, words: list[str], begun: str) -> None:
    command = [sys.executable, "run.py", *SOLVE, *words, f"output_dir={tmp_path}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=-1, stderr=-1, text=True)
    wait_for(run, tmp_path, begun)
    time.sleep(1.0)
    run.send_signal(number)
    _, said = run.communicate(timeout=60)
    assert run.returncode == code
    assert said.splitlines()[-1] == "interrupted; the same command goes on where it stopped"
    assert "Traceback" not in said
    assert not list(tmp_path.rglob("*.part*"))
