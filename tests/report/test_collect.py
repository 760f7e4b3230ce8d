"""A training of samples that are collected once; the command line's manners."""

import os
import warnings
from pathlib import Path

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra

from graphopt.core.cli import composed, sentences
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.learn.laf import LAF
from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.training.train import prepare

# --- The command line's manners end with the command.


@pytest.mark.parametrize("before", [None, "0"])
def test_what_a_command_changes_is_put_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], before: str | None
) -> None:
    """A second one shows no traceback either."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    if before is not None:
        monkeypatch.setenv("HYDRA_FULL_ERROR", before)
    format_before = warnings.formatwarning
    for _ in range(2):
        with pytest.raises(SystemExit) as ended, sentences():
            assert os.environ["HYDRA_FULL_ERROR"] == "1"
            raise UserError("one sentence")
        assert os.environ.get("HYDRA_FULL_ERROR") == before
        assert warnings.formatwarning is format_before
        assert (ended.value.code, capsys.readouterr().err) == (UserError("").exit_code, "one sentence\n")


# --- A training of samples that are collected once.

SMALL = ["dataset=synthetic", "dataset.families=[layered]",
         "dataset.ops=[30,40]", "dataset.train=2", "dataset.val=0", "dataset.test=1",
         "encoder.width=8", "encoder.layers=1", "cost.threads=1", "judge.threads=1", "algo.collection.workers=1",
         "algo.collection.sweeps=1", "trainer.steps=3"]  # fmt: skip


def settings(folder: Path, *more: str) -> list[str]:
    GlobalHydra.instance().clear()
    return [*SMALL, f"algo.collection.folder={folder}/samples", f"output_dir={folder}/out", *more]


def trained(tmp_path: Path, name: str) -> dict[str, torch.Tensor]:
    """Weights after all steps of a cell of its own; samples are shared."""
    config = composed(["algo=laf", *settings(tmp_path, f"study={name}", "trainer.steps=6", "trainer.save_every=1")])
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
