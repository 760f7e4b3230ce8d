"""The wheel, as somebody has it who never saw the repository: the command, its options, an algorithm of his own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from graphopt import CONF
from graphopt.records.rows import read

STRANGE = """
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.assign_problem import AssignProblem

class Coin(Optimizer):
    def __init__(self, *, name: str, odds: float) -> None:
        self.name, self.odds = name, odds

    def solve(self, problem: AssignProblem) -> None:
        free = problem.task.mask(problem.graph)
        while problem.open:
            flip = free & (problem.rng.random(free.shape) < self.odds)
            problem.cost((problem.best ^ flip)[None].astype("int16"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, made from a copy: setuptools leaves files behind where it builds."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CONF.parent / name, source)
    for name in ("graphopt", "conf"):
        shutil.copytree(CONF.parent / name, source / name, symlinks=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


def graphopt(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The installed command, called in a folder of the user's."""
    around = {**os.environ, "PYTHONPATH": str(site)}
    command = [str(site / "bin" / "graphopt"), *words]
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True)


SMALL = ("dataset=synthetic", "task=placement", "logger=none", "dataset.test=1", "dataset.ops=20", "budget.evals=50")


def test_the_command_solves_from_an_empty_folder(site: Path, tmp_path: Path) -> None:
    done = graphopt(site, tmp_path, "algo=scan", *SMALL)
    assert done.returncode == 0, done.stderr
    (rows,) = (read(file) for file in tmp_path.rglob("rows.jsonl"))
    assert [(row["algo"], row["status"]) for row in rows] == [("scan", "ok")]
    assert {path.name for path in tmp_path.iterdir()} == {"outputs"}


def test_every_option_is_in_the_wheel(site: Path) -> None:
    def files(top: Path) -> set[Path]:
        return {path.relative_to(top) for path in top.rglob("*.yaml")}

    assert files(site / "graphopt" / "conf") == files(CONF)


def test_an_algorithm_of_ones_own_needs_no_change_of_the_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "coin.py").write_text(STRANGE)
    (tmp_path / "options" / "algo").mkdir(parents=True)
    (tmp_path / "options" / "algo" / "coin.yaml").write_text("_target_: coin.Coin\nname: coin\nodds: 0.1\n")
    done = graphopt(site, tmp_path, "--config-dir", "options", "algo=local", "compare=[coin]", *SMALL)
    assert done.returncode == 0, done.stderr
    (rows,) = (read(file) for file in tmp_path.rglob("rows.jsonl"))
    assert {row["algo"]: row["evals"] for row in rows} == {"local": 50, "coin": 50}
    wrong = graphopt(site, tmp_path, "algo=coin", *SMALL)
    assert wrong.returncode == 1 and "algo=coin does not exist" in wrong.stderr and wrong.stderr.count("\n") == 1
