"""What a checkpoint of a training says wrong is found before the training goes on from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest
import torch

from graphopt.errors import UserError
from graphopt.training import checkpoint


def _other_counters(state: dict[str, Any]) -> None:
    state["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"] = 1


def _words_for_counters(state: dict[str, Any]) -> None:
    state["loops"]["fit_loop"]["epoch_loop.batch_progress"]["current"]["ready"] = "x"


def _other_shapes(state: dict[str, Any]) -> None:
    state["optimizer_states"][0]["state"] = {0: {"momentum_buffer": torch.ones(3, 3)}}


def _words_for_rates(state: dict[str, Any]) -> None:
    state["optimizer_states"][0]["param_groups"][0]["lr"] = "fast"


def _words_for_momentum(state: dict[str, Any]) -> None:
    for values in state["optimizer_states"][0]["state"].values():
        values["exp_avg"] = "x"


def _other_momentum(state: dict[str, Any]) -> None:
    state["optimizer_states"][0]["param_groups"][0]["betas"] = (2.0, 0.999)


def _sparse_scores(state: dict[str, Any]) -> None:
    [patience] = [held for key, held in state["callbacks"].items() if key.startswith("EarlyStopping")]
    patience["best_score"] = torch.tensor([1.0]).to_sparse()


def _no_optimizer(state: dict[str, Any]) -> None:
    state["optimizer_states"] = []


def _no_random_state(state: dict[str, Any]) -> None:
    state["torch_random"] = [torch.zeros(3)]


def _words_for_scores(state: dict[str, Any]) -> None:
    [best] = [held for key, held in state["callbacks"].items() if key.startswith("ModelCheckpoint")]
    best["best_model_score"] = "high"


@pytest.mark.parametrize(
    "damage",
    [_other_counters, _words_for_counters, _other_shapes, _words_for_rates, _no_optimizer, _no_random_state,
     _words_for_scores, _words_for_momentum, _other_momentum, _sparse_scores],
)  # fmt: skip
def test_a_checkpoint_that_contradicts_itself_is_a_sentence(
    train: Callable[..., Any], damage: Callable[[dict[str, Any]], None]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train("cut", break_at=7, patience=50)
    [last] = parts_of.whole_folder(train, "cut").rglob("last.ckpt")
    state = checkpoint.load(last)
    damage(state)
    checkpoint.save(last, state)
    with pytest.raises(UserError, match="train"):
        train("cut", patience=50)


def test_a_best_checkpoint_of_another_place_is_left_alone(train: Callable[..., Any], tmp_path: Path) -> None:
    """Lightning removes the file that was the best when a better one comes, wherever the checkpoint says it is."""
    with pytest.raises(KeyboardInterrupt):
        train("cut", break_at=7)
    [last] = parts_of.whole_folder(train, "cut").rglob("last.ckpt")
    theirs = last.parent / ".." / "theirs.ckpt"
    theirs.write_text("not ours")
    state = checkpoint.load(last)
    [best] = [held for key, held in state["callbacks"].items() if key.startswith("ModelCheckpoint")]
    low = torch.tensor(0.0)
    best |= {"best_k_models": {str(theirs): low}, "kth_best_model_path": str(theirs), "best_model_path": str(theirs),
             "kth_value": low, "best_model_score": low}  # fmt: skip
    checkpoint.save(last, state)
    train("cut")
    assert theirs.read_text() == "not ours"


def test_a_flipped_bit_of_a_weight_is_found(train: Callable[..., Any]) -> None:
    _, cell = train()
    path = cell.path / "ckpt" / "best.ckpt"
    weight = checkpoint.load(path)["state_dict"]["encoder.logit"].numpy().tobytes()
    content = path.read_bytes()
    at = content.index(weight)
    path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with pytest.raises(UserError, match="not a readable checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize("where", ["weights", "optimizer"])
def test_a_tensor_without_numbers_is_found(train: Callable[..., Any], where: str) -> None:
    """On torch's device `meta` a tensor has a shape and nothing else."""
    with pytest.raises(KeyboardInterrupt):
        train("cut", break_at=7)
    [last] = parts_of.whole_folder(train, "cut").rglob("last.ckpt")
    state = checkpoint.load(last)
    held = state["state_dict"] if where == "weights" else state["optimizer_states"][0]["state"][0]
    name = next(name for name, value in held.items() if isinstance(value, torch.Tensor))
    held[name] = torch.empty_like(held[name], device="meta")
    checkpoint.save(last, state)
    with pytest.raises(UserError, match="a tensor is on the device meta, without numbers"):
        checkpoint.load(last)
