"""The command that collects without training: what it prints, refuses and leaves behind."""

from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from graphopt import collect
from graphopt.algos.laf import LAF
from graphopt.config.build import build
from graphopt.core.graph import Graph
from graphopt.run.cell import Cell
from graphopt.training.train import prepare

SMALL = ["dataset=layered", "dataset.ops=[30,40]", "dataset.train=2", "dataset.val=0", "dataset.test=1",
         "encoder.width=8", "encoder.layers=1", "cost.threads=1", "judge.threads=1", "algo.collection.workers=1",
         "algo.collection.sweeps=1", "trainer.steps=3"]  # fmt: skip


def settings(folder: Path, *more: str) -> list[str]:
    GlobalHydra.instance().clear()
    return [*SMALL, f"algo.collection.folder={folder}/samples", f"output_dir={folder}/out", *more]


def test_it_collects_and_a_second_call_finds_it_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for _ in range(2):
        assert collect.main(settings(tmp_path)) == 0
        said.append(capsys.readouterr())
    assert said[0].out == said[1].out and said[0].out.endswith("prices around decisions of 2 graphs\n")
    assert "collect" in said[0].err and "collect" not in said[1].err
    assert len([*(tmp_path / "samples").glob("*/header.json")]) == 2


def test_with_a_checkpoint_it_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The checkpoint brings its encoder along; training finds the samples of the first call."""
    config = collect.composed(settings(tmp_path))
    cell = Cell(config)
    cell.start()
    parts = build(config)
    with cell.logged():
        prepare(parts, cell)
    cell.stop()
    collect.main(settings(tmp_path))
    priced = int(capsys.readouterr().out.split(" prices")[0].split()[-1])
    assert parts.algo.train_evals == priced  # type: ignore[attr-defined]
    words = [word for word in settings(tmp_path, "--split", "test", f"ckpt={cell.path}") if "encoder" not in word]
    assert collect.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "encoder.width=8" in lines[0]
    assert lines[2].startswith("| graph | rank correlation |") and len(lines[4].split("|")) == 6


def test_only_learners_of_advantages_collect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for word in settings(tmp_path, "algo=go") if "collection" not in word]
    assert collect.main(words) == 1
    assert "algo=go learns from no samples; choose algo=laf" in capsys.readouterr().err


def trained(tmp_path: Path, name: str) -> dict[str, torch.Tensor]:
    """Weights after all steps of a cell of its own; samples are shared."""
    config = collect.composed(settings(tmp_path, f"study={name}", "trainer.steps=6", "trainer.save_every=1"))
    cell = Cell(config)
    cell.start()
    parts = build(config)
    try:
        with cell.logged():
            prepare(parts, cell)
    finally:
        cell.stop()
    assert isinstance(parts.algo, LAF)
    return {**parts.algo.state_dict(), "evals": torch.tensor(parts.algo.train_evals)}


def test_a_killed_training_goes_on_as_if_nothing_had_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, step = trained(tmp_path, "whole"), LAF.training_step

    def killed(learner: LAF, graphs: list[Graph], batch_idx: int) -> None:
        if learner.train_steps == 3:
            raise KeyboardInterrupt
        step(learner, graphs, batch_idx)

    monkeypatch.setattr(LAF, "training_step", killed)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, "killed")
    monkeypatch.setattr(LAF, "training_step", step)
    resumed = trained(tmp_path, "killed")
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)
