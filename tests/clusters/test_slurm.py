"""Sweeps on a real Slurm with accounting and two nodes: `pytest -m clusters tests/clusters`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm
from sweeps import (
    LEARNER,
    LONG,
    WAIT,
    begun,
    curves,
    done,
    rows_are_those_of_this_process,
    rows_of,
    sweep,
    until,
    variables_of,
)

from graphopt.report.status import states_of

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1100)]
ON_SLURM = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=main")


def running(variables: dict[str, str]) -> list[str]:
    """Numbers of the jobs that run on the two nodes."""
    command = ["squeue", "-h", "-r", "-t", "R", "-o", "%i", "-p", "main"]
    return subprocess.check_output(command, env=variables, text=True).split()


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster, and what commands need in their environment."""
    if why := slurm.missing():
        pytest.skip(why)
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="pip install 'graphopt[slurm]'")
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield variables_of(found)


@pytest.fixture(scope="module")
def long(variables: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three cells of nine seconds, by one process here."""
    folder = tmp_path_factory.mktemp("here") / "long"
    here = done(sweep(folder, *LONG), variables)
    assert here.returncode == 0, here.stderr
    return folder


def test_rows_are_those_of_this_process(variables: dict[str, str], tmp_path: Path) -> None:
    rows_are_those_of_this_process(tmp_path, variables, *ON_SLURM)


def test_killed_and_cancelled_jobs_are_named_and_retried_here(
    variables: dict[str, str], tmp_path: Path, long: Path
) -> None:
    lost = tmp_path / "lost"
    driver = begun(sweep(lost, *LONG, *ON_SLURM), variables)
    until(lambda: len([*lost.glob("s/*/rows.jsonl")]) > 1)
    killed, cancelled = running(variables)[:2]
    subprocess.run(["scancel", "--signal=KILL", "--full", killed], env=variables, check=True)
    subprocess.run(["scancel", cancelled], env=variables, check=True)
    said, _ = driver.communicate(timeout=WAIT)
    assert driver.returncode != 0 and ".submitit" in said  # where its log is
    assert [one.state for one in states_of(lost / "s")].count("done") == 1
    again = done(sweep(lost, *LONG), variables)  # another launcher, in the middle
    assert again.returncode == 0 and rows_of(lost) == rows_of(long), again.stderr


@pytest.mark.slow
def test_limits_urgent_jobs_nodes_and_cancel(
    variables: dict[str, str], tmp_path: Path, long: Path, subtests: pytest.Subtests
) -> None:
    # Slurm counts limits in minutes and looks at them every 30 s: one job of 54 s, on a node of its own meanwhile
    limits = ("hydra.launcher.partition=apart", "hydra.launcher.timeout_min=1", "hydra.launcher.signal_delay_s=50")
    one = [*LONG[:-1], "seed=0", "algo.seconds=1.8"]
    limited = begun(sweep(tmp_path / "limited", *one, ON_SLURM[0], *limits), variables)

    with subtests.test("a job that a more urgent one displaces goes on"):
        displaced = tmp_path / "displaced"
        driver = begun(sweep(displaced, *LONG, *ON_SLURM), variables)
        until(lambda: [*displaced.glob("s/*/rows.jsonl")])
        urgent = ["sbatch", "-p", "urgent", "-N2", "-o", "/dev/null", "--wrap", "sleep 1"]
        subprocess.run(urgent, env=variables, check=True)
        said, _ = driver.communicate(timeout=WAIT)
        assert driver.returncode == 0 and rows_of(displaced) == rows_of(long), said

    with subtests.test("two nodes train as two processes of one machine do"):
        here, there = tmp_path / "two", tmp_path / "nodes"
        nodes = ("hydra.launcher.nodes=2", "trainer.num_nodes=2")
        assert done(sweep(here, *LEARNER, "trainer.devices=2"), variables).returncode == 0
        found = done(sweep(there, *LEARNER, *ON_SLURM, *nodes), {**variables, "MASTER_ADDR": "127.0.0.1"})
        assert found.returncode == 0 and len(rows_of(there)) == 60, found.stderr
        assert curves(here) == curves(there) != set()

    with subtests.test("cancel ends the driver and its jobs; retry does the rest"):
        stopped, study = tmp_path / "stopped", [sys.executable, "-m", "graphopt", "study"]
        driver = begun(sweep(stopped, *LONG, *ON_SLURM), variables)
        until(lambda: [*stopped.glob("s/*/rows.jsonl")])
        found = done([*study, "cancel", str(stopped / "s")], variables)
        assert found.returncode == 0 and driver.wait(30) == 143, found.stdout + found.stderr
        until(lambda: not running(variables), 30)
        assert rows_of(stopped) != rows_of(long)
        found = done([*study, "retry", str(stopped / "s")], variables)
        assert found.returncode == 0 and rows_of(stopped) == rows_of(long), found.stderr

    with subtests.test("a job that reaches its time limit goes on"):
        said, _ = limited.communicate(timeout=WAIT)
        assert limited.returncode == 0 and len(rows_of(tmp_path / "limited")) == 30, said
        logs = "".join(file.read_text() for file in (tmp_path / "limited/s/.submitit").glob("*/*_log.err"))
        assert "this job is timed-out" in logs
