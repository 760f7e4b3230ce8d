"""Checkpoints bring their network along: a tiny policy is trained, packaged and used as a user would use it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from commands import Answer, command

from graphopt.run.ship import ship
from graphopt.run.training import adopt
from graphopt.run.training.adopt import inherit

DATA = ["dataset=synthetic", "dataset.families=[layered]",
        "dataset.ops=[20]", "dataset.train=2", "dataset.val=1", "dataset.test=2", "budget.evals=4"]  # fmt: skip
NETWORK = ["encoder=message_passing", "encoder.width=8", "encoder.rounds=2", "algo.network.attention_layers=1",
           "algo.network.attention_heads=2"]  # fmt: skip
TRAINING = ["trainer.steps=2", "trainer.val_every=2", "trainer.val_evals=1", "algo.search.samples=3"]


def run(folder: Path, *words: str, sweep: bool = False) -> Answer:
    every_op = () if any(word.startswith("algo=") for word in words) else ("algo.placing=null",)
    return command(folder, "algo=go", *every_op, *DATA, *words, sweep=sweep)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(folder of a trained cell of GO on placement, folder with its packaged checkpoint)."""
    place = tmp_path_factory.mktemp("trained")
    answer = run(place, "task=placement", *NETWORK, *TRAINING)
    assert answer.code == 0, answer.err
    [best] = place.rglob("best.ckpt")
    return best.parent.parent, ship(best.parent.parent, place / "pretrained", half=False).parent


@pytest.fixture(autouse=True)
def own_package(trained: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(adopt, "PRETRAINED", trained[1])
    yield


def test_a_packaged_checkpoint_needs_no_word_about_its_network(trained: tuple[Path, Path], tmp_path: Path) -> None:
    bare = run(tmp_path / "bare", "task=placement", "ckpt=pretrained")
    assert bare.code == 0, bare.err
    said = next(line for line in bare.out.splitlines() if line.startswith("ckpt=pretrained brings "))
    assert "brings encoder=message_passing, encoder.width=8, encoder.rounds=2" in said
    assert said.endswith("algo.network.attention_layers=1, algo.network.attention_heads=2")
    spelt = run(tmp_path / "spelt", "task=placement", f"ckpt={trained[0]}", *NETWORK)
    assert [row["searched"] for row in bare.rows] == [row["searched"] for row in spelt.rows]
    assert {row["encoder"] for row in bare.rows} == {"message_passing"} and len(bare.rows) == 2
    assert {row["train_evals"] for row in bare.rows} == {row["train_evals"] for row in spelt.rows} != {0}
    [stored] = (tmp_path / "bare").rglob("config.yaml")
    config = yaml.safe_load(stored.read_text())
    assert config["encoder"]["width"] == 8 and config["algo"]["network"]["attention_heads"] == 2
    assert config["algo"]["search"]["samples"] == 32  # how to search is this run's own


def test_a_finished_cell_brings_its_network_too(trained: tuple[Path, Path], tmp_path: Path) -> None:
    answer = run(tmp_path, "task=placement", f"ckpt={trained[0]}", "algo.search.samples=2")
    assert answer.code == 0 and len(answer.rows) == 2, answer.err


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["task=placement", "encoder=gat"], 1, "was trained with encoder=message_passing, this run has encoder=gat"),
        (["task=placement", "encoder=message_passing", "encoder.width=16"], 1,
         "trained with encoder.width=8, this run has 16"),
        (["task=placement", "algo.network.attention_layers=3"], 1,
         "as configured (trained with algo.network.attention_layers=1, this run has 3); use its own settings"),
        (["task=placement", "machine=gpu4_pcie"], 1, "decide device (2 choices), this run decides device (4 choices)"),
        (["task=scheduling"], 2, "no checkpoint comes with graphopt for algo=go, task=scheduling, cost.objective="
         "runtime; there are: algo=go, task=placement, cost.objective=runtime; choose one"),
        (["task=placement", "cost.objective=peak_memory", "judge.objective=peak_memory"], 2,
         "task=placement, cost.objective=peak_memory"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, words: list[str], code: int, sentence: str) -> None:
    answer = run(tmp_path, *words, "ckpt=pretrained")
    assert answer.code == code and sentence in answer.err and answer.err.count("\n") == 1, answer.err


def test_in_a_sweep_it_is_a_row(tmp_path: Path) -> None:
    answer = run(tmp_path, "task=scheduling,placement", "ckpt=pretrained", sweep=True)
    assert answer.code == 1, answer.err
    status = {(row["task"], row["status"]) for row in answer.rows}
    assert status == {("scheduling", "failed"), ("placement", "ok")}


def test_a_classical_method_needs_no_checkpoint(tmp_path: Path) -> None:
    answer = run(tmp_path, "task=scheduling", "algo=default", "ckpt=pretrained")
    assert answer.code == 0 and {row["encoder"] for row in answer.rows} == {None}


def test_nothing_is_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt, "PRETRAINED", tmp_path / "none")
    assert "there are: none; choose" in run(tmp_path, "task=placement", "ckpt=pretrained").err


def test_what_was_left_alone_is_inherited() -> None:
    usual = {"a": 1, "b": {"c": 2, "d": 3}, "new": 0}
    chosen = {"a": 1, "b": {"c": 5, "d": 3, "own": 7}, "new": 0}
    stored = {"a": 10, "b": {"c": 20, "d": 30}, "gone": 1}
    assert inherit(chosen, usual, stored) == {"a": 10, "b": {"c": 5, "d": 30, "own": 7}, "new": 0}


def test_an_algorithm_without_an_encoder_takes_the_weights_under_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # the package's own policies
    words = ("algo=kernel_model", "task=fusion", "ckpt=pretrained")
    plain, other = (run(tmp_path / name, *words, f"encoder={name}") for name in ("graphsage", "gat"))
    assert plain.code == other.code == 0, other.err
    assert [row["searched"] for row in plain.rows] == [row["searched"] for row in other.rows] != []
    assert {row["encoder"] for row in other.rows} == {None}
