"""Checkpoints: how they are packaged, and those that come with graphopt."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest
import torch
from commands import command
from torch import nn

from graphopt.core.errors import ConfigError, UserError
from graphopt.run import ship
from graphopt.run.cell import Cell
from graphopt.run.training import adopt, checkpoint

# --- Packaged checkpoints: weights alone, small, and what older or other versions made is told apart.

pytestmark = pytest.mark.usefixtures("toy_options")


class Critical(parts_of.Learns):
    """The toy learner with a network that only training needs."""

    training_only = ("critic.",)

    def __init__(self, *, name: str, task: Any, cost: Any, encoder: Any, seed: int, lr: float, break_at: int) -> None:
        super().__init__(name=name, task=task, cost=cost, encoder=encoder, seed=seed, lr=lr, break_at=break_at)
        self.critic = nn.Linear(50, 50)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["secret"] = list(range(100))


Prepared = Callable[..., tuple[Critical, Cell]]


@pytest.fixture
def prepared(train: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """Trains a cell, or finds its checkpoint; packaged checkpoints of this test lie beside it."""
    monkeypatch.setattr(parts_of, "Critical", Critical, raising=False)
    monkeypatch.setattr(adopt, "PRETRAINED", tmp_path / "pretrained")
    algo = parts_of.node(Critical, "critical", lr=0.3, break_at=-1)
    return lambda place, **changes: train(place, config={"algo": algo, **changes})


@pytest.fixture
def cell(prepared: Prepared) -> Cell:
    return prepared("first")[1]


@pytest.mark.parametrize(("half", "atol"), [(False, 0.0), (True, 1e-3)])
def test_what_ships_is_what_solving_needs(cell: Cell, prepared: Prepared, half: bool, atol: float) -> None:
    path = ship.ship(cell.path, adopt.PRETRAINED, half=half)
    assert path.name == "critical-binary-runtime.ckpt"  # the toy cost says no objective
    state, best = checkpoint.load(path), checkpoint.load(cell.path / "ckpt" / "best.ckpt")
    assert state.keys() == {"state_dict", "torch_random", "plain"}
    assert [*state["state_dict"]] == ["encoder.logit"] and "critic.weight" in best["state_dict"]
    assert path.stat().st_size < 4_000 < (cell.path / "ckpt" / "best.ckpt").stat().st_size
    learner, _ = prepared("again", ckpt="pretrained")
    weights = best["state_dict"]["encoder.logit"]
    assert (
        torch.allclose(learner.encoder.logit, weights, atol=atol, rtol=0)
        and learner.encoder.logit.dtype == torch.float32
    )
    assert learner.train_evals == json.loads(best["plain"])["counters"]["evals"] > 0


def test_weights_that_solving_needs_may_not_lack(
    cell: Cell, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship.ship(cell.path, adopt.PRETRAINED, half=False)
    monkeypatch.setattr(Critical, "training_only", ())
    with pytest.raises(ConfigError, match=r"does not fit algo=critical as configured \(lacks critic.weight"):
        prepared("again", ckpt="pretrained")


def test_too_large_and_no_cell_are_sentences(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"is not a cell: it has no config.yaml"):
        ship.ship(tmp_path, adopt.PRETRAINED, half=False)
    monkeypatch.setattr(ship, "LIMIT", 1000)
    with pytest.raises(UserError, match=r"more than the 1,000 that ship; use --half"):
        ship.ship(cell.path, adopt.PRETRAINED, half=False)
    assert not adopt.PRETRAINED.exists()


def test_the_command(cell: Cell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ship.main([str(cell.path), "--half", "--folder", str(tmp_path / "there")]) == 0
    [path] = (tmp_path / "there").glob("*.ckpt")
    assert f"{path}: {path.stat().st_size:,} bytes" in capsys.readouterr().out


def rewritten(cell: Cell, path: Path, **plain: Any) -> str:
    """The cell's checkpoint with other things said of it; None: not said at all."""
    state = checkpoint.load(cell.path / "ckpt" / "best.ckpt")
    known = json.loads(state["plain"]) | plain
    if "settings" in plain:
        del state["hyper_parameters"]
    checkpoint.save(path, {**state, "plain": json.dumps({k: v for k, v in known.items() if v is not None})})
    return str(path)


def test_other_features_are_one_sentence(cell: Cell, prepared: Prepared, tmp_path: Path) -> None:
    ckpt = rewritten(cell, tmp_path / "other.ckpt", features="00000000")
    with pytest.raises(ConfigError, match="was trained on other features of graphs than this version") as caught:
        prepared("again", ckpt=ckpt)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_of_an_older_version_loads_where_it_fits(cell: Cell, prepared: Prepared, tmp_path: Path) -> None:
    ckpt = rewritten(cell, tmp_path / "old.ckpt", features=None, settings=None)
    learner, _ = prepared("again", ckpt=ckpt)
    assert learner.train_steps > 0
    wider = parts_of.node(parts_of.Bias, "bias", width=5)
    with pytest.raises(ConfigError, match=r"does not fit algo=critical as configured \(Error.* size mismatch"):
        prepared("third", ckpt=ckpt, encoder=wider)


# --- The checkpoints that come with the package answer, with the commands that docs/using.md gives.

PACKAGED = sorted(adopt.PRETRAINED.glob("*.ckpt"))
ENCODERS = {"go": "graphsage", "regal": "message_passing", "gas": "sequence", "kernel_model": None, "run_model": None,
            "xrlflow": None}  # fmt: skip
DATA = ["dataset=synthetic", "dataset.families=[layered]",
        "dataset.ops=[40]", "dataset.train=1", "dataset.val=1", "dataset.test=2"]  # fmt: skip
PROGRAMS = ["dataset=rewrite_models", "dataset.train=[{model: nasrnn, steps: 1, width: 8}]", "dataset.val=[]",
            "dataset.test=[{model: nasrnn, steps: 2, width: 8}, {model: nasrnn, steps: 2, width: 16}]",
            "dataset.apart=sizes"]  # fmt: skip


ANY = [("placement", "runtime"), ("scheduling", "runtime"), ("fusion", "runtime"), ("joint", "runtime"),
       ("placement_scheduling", "peak_memory")]  # fmt: skip
PURPOSES = [(file, *purpose) for file in PACKAGED
            for purpose in (ANY if "-any-" in file.stem else [tuple(file.stem.split("-")[1:])])]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "task", "objective"),
    [
        pytest.param(
            file, *purpose, id="-".join((file.stem, *purpose)), marks=[pytest.mark.slow] * ("rewrite" in purpose)
        )
        for file, *purpose in PURPOSES
    ],
)
def test_answers_at_once(file: Path, task: str, objective: str, tmp_path: Path) -> None:
    algo = file.stem.split("-")[0]
    machine = "gpu2" if file.stem.startswith("go-joint") else "gpu4_pcie"  # which places op by op
    costs = [f"cost.objective={objective}", f"judge.objective={objective}", f"machine={machine}", "budget.evals=60"]
    data = PROGRAMS if task == "rewrite" else DATA
    answer = command(tmp_path, f"task={task}", f"algo={algo}", "ckpt=pretrained", *data, *costs)
    assert answer.code == 0, answer.err
    assert len(answer.rows) == 2
    for row in answer.rows:
        assert row["status"] == "ok" and row["train_evals"] > 0
        ends = task in ("fusion", "rewrite")  # a scan ends where nothing helps, episodes where nothing is new
        assert row["evals"] == 60 or (ends and 0 < row["evals"] < 60)
        assert row["encoder"] == ENCODERS[algo]


def test_there_are_some_and_they_are_small() -> None:
    assert {file.stem for file in PACKAGED} >= {f"regal-placement_scheduling-{o}" for o in ("peak_memory", "runtime")}
    assert sum(file.stat().st_size for file in PACKAGED) < 2_000_000
