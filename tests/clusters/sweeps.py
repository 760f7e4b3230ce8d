"""What tests of sweeps on clusters share: commands, and the rows that they leave."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from graphopt import CONF, AssignProblem, Optimizer
from graphopt.run.records.rows import RowFile

TIMES = ("seconds", "trace", "approach", "commit")  # of a row: what differs from run to run
SHORT = ("algo=local,scan", "budget.evals=[300]", "seed=0,1")  # four cells of a second each
LONG = (
    "algo=sleeper",
    "budget.evals=[5]",
    "dataset.test=30",
    "seed=0,1,2",
)  # three cells of nine seconds, mostly asleep

LEARNER = ("algo=go", "budget.evals=[20]", "trainer.steps=6", "trainer.val_every=3", "trainer.max_seconds=null",
           "dataset.val=4")  # fmt: skip


class Sleeper(Optimizer):
    """The default decision after a while: long cells that leave the processor to others."""

    def __init__(self, *, name: str, seconds: float) -> None:
        self.name, self.seconds = name, seconds

    def solve(self, problem: AssignProblem) -> None:
        time.sleep(self.seconds)
        problem.cost(problem.initial[None])


def variables_of(found: Mapping[str, str]) -> dict[str, str]:
    """With the options and the modules of these tests."""
    here = Path(__file__).parent
    return {**found, "PYTHONPATH": f"{CONF.parent}:{here}", "GRAPHOPT_CONFIG_DIR": str(here / "options")}


def sweep(folder: Path, *words: str) -> list[str]:
    folder.mkdir(exist_ok=True)
    return [sys.executable, str(CONF.parent / "run.py"), "--config-dir", str(Path(__file__).parent / "options"), "-m",
            "dataset=synthetic", "task=fusion", "study=s",
            f"output_dir={folder}", *words]  # fmt: skip


WAIT = 500  # seconds, on a machine that others use as well


def done(command: list[str], variables: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=WAIT)


def rows_are_those_of_this_process(folder: Path, variables: Mapping[str, str], *launcher: str) -> None:
    for name, more in (("here", ()), ("there", launcher)):
        said = done(sweep(folder / name, *SHORT, *more), variables)
        assert said.returncode == 0 and "s: fusion on gpu2" in said.stdout, said.stderr
    assert rows_of(folder / "here") == rows_of(folder / "there") != {}


def begun(command: list[str], variables: Mapping[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rows_of(folder: Path) -> dict[Any, dict[str, Any]]:
    """By cell, graph, method and budget, without what differs from run to run. No row is doubled."""
    found = [row for file in sorted(folder.glob("s/*/rows.jsonl")) for row in RowFile(file).rows]
    found = [row for row in found if row["status"] == "ok"]
    rows = {(row["cell"], row["graph"], row["algo"], row["evals_cap"]): row for row in found}
    assert len(rows) == len(found)
    return {key: {name: value for name, value in row.items() if name not in TIMES} for key, row in rows.items()}


def curves(folder: Path) -> set[str]:
    """The points of its trainings."""
    return {line for file in folder.glob("s/*/metrics.csv") for line in file.read_text().splitlines()}


def program() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Something to measure: `dataset.module=sweeps:program`."""
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Identity(), torch.nn.ReLU()), (torch.zeros(32, 64),)


def until(ready: Callable[[], object], seconds: float = WAIT) -> None:
    """Waits until a function gives something."""
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.1)
