"""The checkpoints that come with the package answer, with the commands that docs/using.md gives."""

from pathlib import Path

import pytest
from commands import command

from graphopt.training import checkpoint

PACKAGED = sorted(checkpoint.PRETRAINED.glob("*.ckpt"))
ENCODERS = {"regal": "message_passing", "gas": "sequence"}
DATA = ["dataset=layered", "dataset.ops=[40]", "dataset.train=1", "dataset.val=1", "dataset.test=2"]


@pytest.mark.parametrize("file", PACKAGED, ids=lambda file: file.stem)
def test_answers_at_once(file: Path, tmp_path: Path) -> None:
    algo, task, objective = file.stem.split("-")
    costs = [f"cost.objective={objective}", f"judge.objective={objective}", "machine=gpu4_pcie", "budget.evals=300"]
    answer = command(tmp_path, f"task={task}", f"algo={algo}", "ckpt=pretrained", *DATA, *costs)
    assert answer.code == 0, answer.err
    assert len(answer.rows) == 2
    for row in answer.rows:
        assert row["status"] == "ok" and row["evals"] == 300 and row["train_evals"] > 0
        assert row["encoder"] == ENCODERS[algo]


def test_there_are_some_and_they_are_small() -> None:
    assert {file.stem for file in PACKAGED} >= {f"regal-placement_scheduling-{o}" for o in ("peak_memory", "runtime")}
    assert sum(file.stat().st_size for file in PACKAGED) < 2_000_000
