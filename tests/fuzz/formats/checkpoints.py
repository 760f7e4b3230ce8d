"""Checkpoints: brought along, loaded into a learner that then solves, gone on from, shipped."""

import copy
import io
import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
import yaml
from commands import command

from graphopt.problems.optimizer import solve
from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.config.construct import construct
from graphopt.run.ship import ship
from graphopt.run.training import checkpoint
from graphopt.run.training.adopt import find, with_network
from graphopt.run.training.train import train

from ..judge import Format, Wrong
from ..mutate import Draw, damaged, damaged_bytes, nasty, number, places
from .archives import BOMB, _zip, pickled_canary
from .studies import SMALL, workshop

TRAINING = ["algo=go", "task=placement", "trainer.steps=2", "trainer.val_every=2", "trainer.val_evals=1",
            "trainer.save_every=1", "budget.evals=4",
            "algo.search.samples=3", "encoder=message_passing", "encoder.width=8", "encoder.rounds=1",
            "algo.network.attention_layers=1", "algo.network.attention_heads=2"]  # fmt: skip


@lru_cache(maxsize=1)
def cell() -> Path:
    """A trained cell of GO."""
    answer = command(workshop() / "trained", *SMALL, *TRAINING)
    if answer.code:
        raise RuntimeError(answer.err)
    return next(answer.folder.rglob("best.ckpt")).parent.parent


@lru_cache(maxsize=1)
def loaded() -> dict[str, Any]:
    """The checkpoint before the last: training has not ended with it."""
    return dict(torch.load(cell() / "ckpt" / "previous.ckpt", weights_only=True))


def _tensor(rng: Draw, tensor: torch.Tensor) -> Any:
    """The tensor with another type, shape or values; or no tensor."""
    what = rng.randrange(8)
    if what == 0:
        return tensor.to(rng.choice((torch.float64, torch.int64, torch.bool, torch.complex64, torch.bfloat16)))
    if what == 1:
        return tensor.reshape(-1)[: rng.randrange(tensor.numel() + 1)]
    if what == 2:
        return tensor.reshape(-1, *([1] * rng.randrange(5)))
    if what == 3:
        return rng.choice((None, 0, "x", [1.0], torch.zeros(0), torch.zeros(()), torch.zeros(1).expand(10**10)))
    if what == 4:
        return rng.choice((tensor.to_sparse(), torch.nn.Parameter(tensor) if tensor.is_floating_point() else tensor))
    changed = tensor.clone().reshape(-1)
    if changed.numel():
        value = rng.choice((float("nan"), float("inf"), 1e30, -1e30, 0.0))
        changed[rng.randrange(changed.numel())] = value if changed.is_floating_point() else rng.randrange(-128, 128)
    return changed.reshape(tensor.shape)


def damaged_state(rng: Draw) -> dict[str, Any]:
    """The state of a checkpoint with one part changed."""
    state = dict(loaded())
    if rng.sound:
        return state
    if rng.random() < 0.4:
        return _damaged_parts(rng, state)
    what, weights = rng.randrange(10), dict(state["state_dict"])
    name = rng.choice(list(weights))
    if what < 4:
        state["plain"] = json.dumps(damaged(rng, json.loads(state["plain"])))
    elif what < 7:
        weights[name] = _tensor(rng, weights[name])
    elif what == 7:
        weights[rng.choice((name + "x", "", "self.__class__"))] = weights.pop(name)
    elif what == 8:
        state[rng.choice(list(state))] = rng.choice(
            (None, 0, "x", [], {}, [[]], b"{}", "NaN", torch.zeros(2), number(rng))
        )
    else:
        state.pop(rng.choice(list(state)))
    if state.get("state_dict") is not None and isinstance(state["state_dict"], dict) and what < 8:
        state["state_dict"] = weights
    return state


def _damaged_parts(rng: Draw, state: dict[str, Any]) -> dict[str, Any]:
    """What Lightning puts back when training goes on, and the settings, with one to three changes."""
    state = copy.deepcopy(state)
    name = rng.choice(("hyper_parameters", "loops", "callbacks", "optimizer_states", "torch_random", "past_rewards"))
    for _ in range(rng.choice((1, 1, 3))):
        spots = places([state[name]])
        inner, key = rng.choice(spots)
        old, what = inner[key], rng.randrange(6)
        if what == 0 and inner is not state and isinstance(inner, dict):
            del inner[key]
        elif isinstance(old, torch.Tensor):
            inner[key] = _tensor(rng, old)
        elif what < 3 and isinstance(old, int | float) and not isinstance(old, bool):
            inner[key] = rng.choice((old + 1, -old - 1, old * 2**40, float(old), 0))
        elif isinstance(inner, dict | list) and spots:
            inner[key] = nasty(rng)
    return state


def write(rng: Draw, folder: Path) -> Path:
    """A cell with a damaged checkpoint, under the names of the best and of the last."""
    shutil.copytree(cell(), folder / "cell", ignore=shutil.ignore_patterns("*.ckpt"))
    buffer, file = io.BytesIO(), folder / "cell" / "ckpt" / "best.ckpt"
    torch.save(damaged_state(rng), buffer, _use_new_zipfile_serialization=rng.sound or rng.random() < 0.9)
    content = buffer.getvalue()
    if not rng.sound and rng.random() < 0.2:
        content = rng.choice(
            (lambda: damaged_bytes(rng, content), pickled_canary, lambda: _executable(content), _bomb)
        )()
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    shutil.copy(file, file.with_name("last.ckpt"))
    return folder / "cell"


def _executable(content: bytes) -> bytes:
    """A zip of torch whose pickle calls the canary."""
    import zipfile

    if not zipfile.is_zipfile(io.BytesIO(content)):
        return pickled_canary()
    source, buffer = zipfile.ZipFile(io.BytesIO(content)), io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as target:
        for name in source.namelist():
            target.writestr(name, pickled_canary() if name.endswith("data.pkl") else source.read(name))
    return buffer.getvalue()


def _bomb() -> bytes:
    from ..mutate import deflated_zeros

    return _zip("archive/data.pkl", deflated_zeros(BOMB), BOMB << 20)


@lru_cache(maxsize=1)
def config() -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load((cell() / "config.yaml").read_text())
    plain["dataset"]["test"] = 1
    return plain


def read(place: Path) -> None:
    """A run with `ckpt=`: settings, weights, a solved graph with a finite price. Then resuming, then shipping."""
    asked = with_network({**config(), "ckpt": str(place)})
    parts = build(asked)
    source = find(str(place), asked)
    state = checkpoint.adopt_weights(parts.algo, source, checkpoint.about(asked, parts.algo))
    checkpoint.restore_counters(parts.algo, state)
    problem, _ = solve(parts.algo.eval(), parts.dataset.graphs("test")[0], parts.task, parts.cost, evals=2)
    if not 0 < problem.best_cost < float("inf"):
        raise Wrong(f"the answer costs {problem.best_cost}")
    ship(place, place.parent, half=False)
    _go_on(place, config())


def _go_on(place: Path, config: dict[str, Any]) -> None:
    """Training to its end, from `last.ckpt`."""
    parts, resumed = build(config), Cell(config)
    resumed.path = place
    learner: Any = parts.algo
    learner.save_hyperparameters(checkpoint.settings_in(config))
    train(learner, parts, resumed, construct(config["trainer"], "trainer"), checkpoint.about(config, learner))
    if not checkpoint.said(checkpoint.load(place / "ckpt" / "last.ckpt"), "note").get("finished"):
        raise Wrong("training went on and did not end")


CHECKPOINTS = (Format("checkpoint", write, read, share=0.5),)
