"""Sweeps on a real Slurm with accounting and two nodes: `pytest -m clusters tests/clusters`."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import slurm

from graphopt import CONF
from graphopt.report.status import states_of
from graphopt.run.records.rows import RowFile

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(600)]
TIMES = ("seconds", "trace", "approach", "commit")  # of a row: what differs from run to run


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    if why := slurm.missing():
        pytest.skip(why)
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install 'graphopt[slurm]'")
    root = tmp_path_factory.mktemp("slurm")
    with slurm.cluster(root) as found:
        yield {**found, "PYTHONPATH": str(CONF.parent)}


def sweep(folder: Path, *words: str) -> list[str]:
    return [sys.executable, str(CONF.parent / "run.py"), "-m", "dataset=synthetic", "task=fusion", "study=s",
            f"output_dir={folder}", *words]  # fmt: skip


ON_SLURM = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=main")


def rows_of(folder: Path) -> dict[Any, dict[str, Any]]:
    found = [row for file in sorted(folder.glob("s/*/rows.jsonl")) for row in RowFile(file).rows]
    rows = {(row["cell"], row["graph"], row["algo"], row["evals_cap"]): row for row in found}
    assert len(rows) == len(found)  # none is doubled
    return {key: {name: value for name, value in row.items() if name not in TIMES} for key, row in rows.items()}


def test_rows_are_those_of_this_process(variables: dict[str, str], tmp_path: Path) -> None:
    words = ("algo=local,scan", "budget.evals=[300]", "seed=0,1")
    for name, more in (("here", ()), ("there", ON_SLURM)):
        (tmp_path / name).mkdir()
        done = subprocess.run(sweep(tmp_path / name, *words, *more), env=variables, capture_output=True, text=True)
        assert done.returncode == 0 and "s: fusion on gpu2" in done.stdout, done.stderr
    assert rows_of(tmp_path / "here") == rows_of(tmp_path / "there") != {}


def test_a_killed_job_is_named_and_the_same_command_finishes(variables: dict[str, str], tmp_path: Path) -> None:
    command = sweep(tmp_path, "algo=annealing", "budget.evals=[20000]", "seed=0,1,2", *ON_SLURM)
    driver = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 120
    while time.monotonic() < end and not [*tmp_path.glob("s/*/rows.jsonl")]:
        time.sleep(0.1)
    running = subprocess.check_output(["squeue", "-h", "-r", "-t", "R", "-o", "%i"], env=variables, text=True).split()
    subprocess.run(["scancel", "--signal=KILL", "--full", running[0]], env=variables, check=True)
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode != 0 and ".submitit" in said  # where its log is
    assert [one.state for one in states_of(tmp_path / "s")].count("done") == 2
    again = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert again.returncode == 0 and [one.state for one in states_of(tmp_path / "s")] == ["done"] * 3
    assert len(rows_of(tmp_path)) == 3 * 60
