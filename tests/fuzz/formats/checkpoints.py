"""Checkpoints: brought along, loaded into a learner that then solves, gone on from, shipped."""

import io
import json
import shutil
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml

from graphopt.problems.optimizer import solve
from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.config.construct import construct
from graphopt.run.ship import ship
from graphopt.run.training import checkpoint
from graphopt.run.training.adopt import find, with_network
from graphopt.run.training.train import train

from ..judge import Format, Wrong
from ..mutate import PICKLE, Draw, bomb, damaged, damaged_bytes, shifted, zipped
from .studies import SMALL, made

TRAINING = ("algo=go", "task=placement", "trainer.steps=2", "trainer.val_every=2", "trainer.val_evals=1",
            "trainer.save_every=1", "budget.evals=4", "algo.search.samples=3", "encoder=message_passing",
            "encoder.width=8", "encoder.rounds=1", "algo.network.attention_layers=1",
            "algo.network.attention_heads=2")  # fmt: skip


@lru_cache(maxsize=1)
def cell() -> Path:
    """A trained cell of GO."""
    return next(made("trained", *SMALL, *TRAINING).rglob("best.ckpt")).parent.parent


@lru_cache(maxsize=1)
def loaded() -> dict[str, Any]:
    """The checkpoint before the last: training has not ended with it."""
    return dict(torch.load(cell() / "ckpt" / "previous.ckpt", weights_only=True))


@shifted.register
def _(old: torch.Tensor, rng: Draw) -> Any:
    """The tensor with another type, shape or values; or no tensor."""
    match rng.randrange(8):
        case 0:
            return old.to(rng.choice((torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)))
        case 1:
            return old.reshape(-1)[: rng.randrange(old.numel() + 1)]
        case 2:
            return old.reshape(-1, *([1] * rng.randrange(5)))
        case 3:
            return rng.choice((None, "x", [1.0], torch.zeros(0), torch.zeros(()), torch.zeros(1).expand(10**10)))
        case 4:
            return rng.choice((old.to_sparse(), torch.nn.Parameter(old) if old.is_floating_point() else old))
    changed = old.clone().reshape(-1)
    if changed.numel():
        value = rng.choice((float("nan"), float("inf"), 1e30, -1e30, 0.0))
        changed[rng.randrange(changed.numel())] = value if changed.is_floating_point() else rng.randrange(-128, 128)
    return changed.reshape(old.shape)


def damaged_state(rng: Draw) -> Any:
    """The state of a checkpoint with one part changed: settings, weights, what Lightning puts back, or any."""
    state = dict(loaded())
    name = rng.choice(("plain", "plain", "plain", "state_dict", "state_dict", "hyper_parameters", "loops", "callbacks",
                       "optimizer_states", "torch_random", "past_rewards", "any", "any"))  # fmt: skip
    if name == "any":
        return damaged(rng, state)
    value = json.loads(state[name]) if name == "plain" else state[name]
    value = damaged(rng, value)
    return state | {name: json.dumps(value) if name == "plain" else value}


def write(rng: Draw, folder: Path) -> Path:
    """A cell with a damaged checkpoint, under the names of the best and of the last."""
    shutil.copytree(cell(), folder / "cell", ignore=shutil.ignore_patterns("*.ckpt"))
    buffer, file = io.BytesIO(), folder / "cell" / "ckpt" / "best.ckpt"
    torch.save(damaged_state(rng), buffer, _use_new_zipfile_serialization=rng.sound or rng.random() < 0.9)
    content = buffer.getvalue()
    if not rng.sound and rng.random() < 0.2:
        content = rng.choice((damaged_bytes(rng, content), PICKLE, _executable(content), bomb("archive/data.pkl")))
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    shutil.copy(file, file.with_name("last.ckpt"))
    return folder / "cell"


def _executable(content: bytes) -> bytes:
    """A zip of torch whose pickle calls the canary."""
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return PICKLE
    source = zipfile.ZipFile(io.BytesIO(content))
    return zipped({n: PICKLE if n.endswith("data.pkl") else source.read(n) for n in source.namelist()}, 0)


@lru_cache(maxsize=1)
def config() -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load((cell() / "config.yaml").read_text())
    plain["dataset"]["test"] = 1
    return plain


def read(place: Path) -> None:
    """A run with `ckpt=`: settings, weights, a solved graph with a finite price. Then shipping, then training goes on
    to its end, from `last.ckpt`."""
    asked = with_network({**config(), "ckpt": str(place)})
    parts = build(asked)
    source = find(str(place), asked)
    state = checkpoint.adopt_weights(parts.algo, source, checkpoint.about(asked, parts.algo))
    checkpoint.restore_counters(parts.algo, state)
    problem, _ = solve(parts.algo.eval(), parts.dataset.graphs("test")[0], parts.task, parts.cost, evals=2)
    if not 0 < problem.best_cost < float("inf"):
        raise Wrong(f"the answer costs {problem.best_cost}")
    ship(place, place.parent, half=False)
    parts, resumed = build(config()), Cell(config())
    resumed.path = place
    learner: Any = parts.algo
    learner.save_hyperparameters(checkpoint.settings_in(config()))
    train(learner, parts, resumed, construct(config()["trainer"], "trainer"), checkpoint.about(config(), learner))
    if not checkpoint.said(checkpoint.load(place / "ckpt" / "last.ckpt"), "note").get("finished"):
        raise Wrong("training went on and did not end")


CHECKPOINTS = (Format("checkpoint", write, read, share=0.5),)
