"""Checkpoints of learners: state dicts and plain values only, so that they load with `weights_only=True`.

`last.ckpt` holds what training needs to go on; the one before it is kept as `previous.ckpt`, in case the last is
damaged. `best.ckpt` is the best by validation.
"""

import io
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graphopt.algos.learner import Learner
from graphopt.errors import ConfigError, UserError

State = dict[str, Any]


def state_of(learner: Learner, made_for: Mapping[str, Any], note: Mapping[str, Any]) -> State:
    """Everything of a learner at this moment. made_for: what it fits. note: plain values of the caller."""
    counters = {"steps": learner.train_steps, "evals": learner.train_evals, "seconds": learner.train_seconds}
    plain = {"made_for": dict(made_for), "counters": counters, "random": learner.random_state(), "note": dict(note)}
    own: State = {}
    learner.on_save_checkpoint(own)
    tensors = {"state_dict": learner.state_dict(), "torch_random": torch_random()}
    return {**tensors, "own": own, "plain": json.dumps(plain)}


def restore(learner: Learner, state: State) -> dict[str, Any]:
    """Puts a state back, all but torch's generators; returns the caller's note."""
    plain = json.loads(state["plain"])
    load_weights(learner, state, "the checkpoint")
    restore_counters(learner, state)
    learner.set_random_state(plain["random"])
    learner.on_load_checkpoint(state["own"])
    return dict(plain["note"])


def torch_random() -> list[torch.Tensor]:
    """The state of torch's generators: of the CPU, then of every GPU in use."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return [torch.get_rng_state(), *gpus]


def set_torch_random(states: list[torch.Tensor]) -> None:
    torch.set_rng_state(states[0])
    if torch.cuda.is_available() and len(states) == 1 + torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states[1:])


def restore_counters(learner: Learner, state: State) -> None:
    """What training has cost so far."""
    counters = json.loads(state["plain"])["counters"]
    learner.train_steps, learner.train_evals, learner.train_seconds = (
        int(counters["steps"]), int(counters["evals"]), float(counters["seconds"]),
    )  # fmt: skip


def load_weights(learner: Learner, state: State, source: str) -> None:
    """Raises ConfigError when the weights have other names or shapes."""
    try:
        learner.load_state_dict(state["state_dict"])
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{source} does not fit algo={learner.name} as configured ({detail}); use its own settings"
        ) from None


def check_made_for(state: State, made_for: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError when the checkpoint is of another algorithm, encoder or kind of decision."""
    stored = json.loads(state["plain"])["made_for"]
    for key, value in made_for.items():
        if stored.get(key) != value:
            raise ConfigError(
                f"{source} was trained with {key}={stored.get(key)}, this run has {key}={value}; choose the same"
            )


def save(path: Path, state: State) -> None:
    """Writes all or nothing. Raises UserError when the disk does not take it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    temporary = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; make room or choose another output_dir=..."
        ) from error


def save_last(folder: Path, state: State) -> None:
    """The new last.ckpt; the old one becomes previous.ckpt."""
    last = folder / "last.ckpt"
    if last.exists():
        os.replace(last, folder / "previous.ckpt")
    save(last, state)


def load(path: Path) -> State:
    """Raises UserError when there is no readable checkpoint."""
    if not path.is_file():
        raise UserError(f"no checkpoint {path}; give a .ckpt file or the folder of a finished run")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        json.loads(state["plain"])
        state["state_dict"], state["torch_random"], state["own"]
    except Exception as error:  # whatever a damaged zip or pickle raises
        raise UserError(
            f"{path} is not a readable checkpoint ({type(error).__name__}); train again or give another"
        ) from None
    return dict(state)


def load_last(folder: Path) -> State | None:
    """The newest readable of last.ckpt and previous.ckpt, with a warning when one is damaged; None without any."""
    for path in (folder / "last.ckpt", folder / "previous.ckpt"):
        if path.exists():
            try:
                return load(path)
            except UserError as error:
                warnings.warn(f"{error}; going on from an older state", stacklevel=2)
    return None


def find(place: str) -> Path:
    """The file meant by `ckpt=`: itself, or ckpt/best.ckpt of a run's folder."""
    path = Path(place)
    return path / "ckpt" / "best.ckpt" if path.is_dir() else path
