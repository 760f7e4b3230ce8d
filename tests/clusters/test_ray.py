"""Sweeps and measuring on a real Ray of two nodes: `pytest -m clusters tests/clusters`."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sweeps import LONG, WAIT, begun, done, rows_are_those_of_this_process, rows_of, sweep, until, variables_of

from graphopt.report.status import states_of

pytestmark = [pytest.mark.clusters, pytest.mark.timeout(1100)]
ON_RAY = ("hydra/launcher=ray", "hydra.launcher.ray.init.address=127.0.0.1:6399")
MEASURED = ("dataset=torch", "dataset.module=sweeps:program", "task=rewrite", "algo=rewrite_greedy", "cost=torch",
            "cost@judge=torch", "budget.evals=[3]")  # fmt: skip


def processes(name: str) -> list[int]:
    """Numbers of those whose command line begins like this."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words.startswith(name) or f"/{name} " in words[:200]:
            found.append(int(folder.name))
    return sorted(found)


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    pytest.importorskip("ray", reason="pip install 'graphopt[ray]'")
    pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="pip install 'graphopt[ray]'")
    command = [sys.executable, "-m", "ray.scripts.scripts"]
    found = {**variables_of(os.environ), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    for words in (("--head", "--port=6399", "--include-dashboard=false"), ("--address=127.0.0.1:6399",)):
        subprocess.run([*command, "start", "--num-cpus=1", *words], env=found, check=True, capture_output=True)
    yield found
    subprocess.run([*command, "stop", "--force"], env=found, capture_output=True, timeout=120)


def single(folder: Path, *words: str) -> list[str]:
    """A run that is no sweep."""
    return [word for word in sweep(folder, *words) if word not in ("-m", "dataset=synthetic", "task=fusion")]


def test_sweeps_on_ray(variables: dict[str, str], tmp_path: Path, subtests: pytest.Subtests) -> None:
    with subtests.test("rows are those of this process"):
        rows_are_those_of_this_process(tmp_path, variables, *ON_RAY)

    with subtests.test("a pool with too few processors is an error, one with enough measures"):
        pool = ("measuring.pool=ray", "measuring.address=127.0.0.1:6399", "measuring.seconds=0.1")
        words = (*MEASURED, *(f"{group}.{word}" for group in ("cost", "judge") for word in pool))
        few = done(single(tmp_path / "few", *words, "cost.measuring.workers=3"), variables)
        assert few.returncode == 1 and "the cluster has 2 processors" in few.stderr, few.stderr
        enough = done(single(tmp_path / "enough", *words), variables)
        assert enough.returncode == 0 and rows_of(tmp_path / "enough"), enough.stderr

    with subtests.test("a killed worker and a lost node lose no cell"):
        assert done(sweep(tmp_path / "long", *LONG), variables).returncode == 0
        lost = tmp_path / "lost"
        driver = begun(sweep(lost, *LONG, *ON_RAY), variables)
        until(lambda: len([*lost.glob("s/*/rows.jsonl")]) > 1)
        os.kill(processes("ray::_run_job")[0], signal.SIGKILL)
        until(lambda: len(processes("ray::_run_job")) > 1)
        os.kill(processes("raylet")[-1], signal.SIGKILL)  # of the node that came last
        said, _ = driver.communicate(timeout=WAIT)
        assert driver.returncode == 0 and rows_of(lost) == rows_of(tmp_path / "long"), said
        assert [one.state for one in states_of(lost / "s")] == ["done"] * 3
