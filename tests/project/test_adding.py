"""The examples of docs/adding.md run as they stand there, and find the optimum."""

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hydra.core.global_hydra import GlobalHydra

import graphopt
from graphopt import CONF, OWN_OPTIONS, command
from graphopt.config import compatibility
from graphopt.core.fusible import view_inline
from graphopt.core.machine import Device, Machine, make_machine
from graphopt.costs.kernel_time import kernel_graph
from graphopt.records.rows import Row, read
from graphopt.utils import registry

ROOT = CONF.parent
FOLDERS = ("tasks", "costs", "datasets", "search")
BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, and the package extended by them."""
    for name, text in BLOCK.findall((ROOT / "docs" / "adding.md").read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for folder in FOLDERS:
        package = importlib.import_module(f"{graphopt.__name__}.{folder}")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / "graphopt" / folder)])
    monkeypatch.setenv(OWN_OPTIONS, str(tmp_path / "conf"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, place: Path, *words: str) -> list[Row]:
    """Rows of one command."""
    monkeypatch.setattr(sys, "argv", ["graphopt", "--config-dir", str(place / "conf"), *words])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    try:
        command.main()
    finally:
        GlobalHydra.instance().clear()
    return [row for file in place.glob("outputs/*/*/rows.jsonl") for row in read(file)]


def best(width: int, machine: Machine) -> float:
    """Nothing overlaps, so every op takes its faster device."""
    graph = importlib.import_module("graphopt.datasets.chains").chain(6, width)
    return float(kernel_graph(graph, view_inline(graph), machine.devices).time.min(1).sum())


def test_the_four_examples_together(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = "task=offload machine=cpu_gpu cost=serial cost@judge=serial dataset=chains algo=hill logger=none"
    rows = run(monkeypatch, copy, *words.split(), "budget.evals=[0,200]", "compare=[default,local]")
    assert [row["status"] for row in rows] == ["ok"] * 4 * 2 * 3
    node = {key: value for key, value in registry.option("machine", "cpu_gpu").items() if key != "_target_"}
    optimum = {f"chain{width}": best(width, make_machine(**node)) for width in (16, 64, 256, 1024)}
    for row in rows:
        if row["algo"] == "hill" and row["evals_cap"] == 200:
            assert row["judged"] == pytest.approx(optimum[row["graph"]], rel=1e-12)
    assert any(row["judged"] < 0.9 * row["initial"] for row in rows)
    assert "| hill | yes | yes | yes | yes | yes |" in compatibility.matrix()


def test_the_example_task_is_consistent(copy: Path) -> None:
    machine = Machine(name="two", devices=(Device(), Device()))
    task = importlib.import_module("graphopt.tasks.offload").Offload(name="offload", machine=machine)
    graph = importlib.import_module("graphopt.datasets.chains").chain(2, 8)
    keys = np.array([[0.1, 0.9, 0.5, 0.49]])
    assert task.realise_keys(graph, keys).device.tolist() == [[0, 1, 1, 0]]
