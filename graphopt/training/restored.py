"""What Lightning puts back from `last.ckpt`, checked before a step is made with it: Lightning believes all that a file
says, counters, paths and states of optimisers included. What does not fit ends training with `Unreadable`."""

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from graphopt.errors import Unreadable

MOST = 2**53


def check_loops(trainer: pl.Trainer, state: Mapping[str, Any], steps: int) -> None:
    """Before anything is put back: loops and callbacks are such as this run's own, and the loops stand where training
    does, after so many steps."""
    own = trainer.fit_loop.state_dict()
    loops = state["loops"]["fit_loop"]
    _require(alike(own, loops, whole=True), "its loops are not those of this version of Lightning")
    done, over = (loops[key]["current"]["completed"] for key in ("epoch_loop.batch_progress", "epoch_progress"))
    _require(done == steps and over == 0, "its counters contradict each other")
    for callback in (found for found in trainer.callbacks if found.state_key in state["callbacks"]):  # type: ignore[attr-defined]
        fits = alike(callback.state_dict(), state["callbacks"][callback.state_key])
        _require(fits, f"its state of {type(callback).__name__} is of another kind")


def check_optimizers(trainer: pl.Trainer, stored: int) -> None:
    """After they were put back, from the states of so many: all of them, and the schedules of their rates."""
    _require(len(trainer.optimizers) == stored, "it is of another number of optimisers")
    for optimizer in trainer.optimizers:
        _check_optimizer(optimizer)
    for schedule in (config.scheduler for config in trainer.lr_scheduler_configs):
        hidden = [name for name in vars(schedule) if callable(getattr(type(schedule), name, None))]
        steps = getattr(schedule, "last_epoch", 0)
        _require(not hidden and _number(steps, True) and steps >= 0, "its schedules of rates are of another kind")


def _check_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Numbers for every parameter, of its shape, and settings such as the optimiser's own."""
    kinds = set()
    for parameter, values in optimizer.state.items():
        kinds.add(frozenset(values))
        for value in values.values():
            fits = not isinstance(value, torch.Tensor) or value.numel() == 1 or value.shape == parameter.shape
            _require(fits and _usable(value), "its state of an optimiser does not fit the network")
    _require(len(kinds) < 2, "its state of an optimiser lacks something")
    for group in optimizer.param_groups:
        settings = {key: group.get(key) for key in optimizer.defaults}
        _require(alike(optimizer.defaults, settings), "its settings of an optimiser are of another kind")


def keep_best(best: ModelCheckpoint, path: str) -> None:
    """The best checkpoint is the one in this run's folder, whatever path the file gives: Lightning removes it when a
    better one comes."""
    score = best.best_model_score
    if score is not None:
        _require(_score(score), "its best score is no number")
        best.best_model_path = best.kth_best_model_path = path
        best.kth_value, best.best_k_models = score, {path: score}


def alike(own: Any, found: Any, *, whole: bool = False) -> bool:
    """Whether a state has the keys of a run's own and values of their kinds; what is None or unset there, and names in
    dictionaries of results, may be anything plain. whole: numbers are whole ones."""
    if isinstance(own, Mapping):
        if not isinstance(found, Mapping):
            return False
        return not own or (own.keys() == found.keys() and all(alike(own[key], found[key], whole=whole) for key in own))
    if isinstance(own, list | tuple):
        same = isinstance(found, list | tuple) and len(own) == len(found)
        return same and all(alike(a, b, whole=whole) for a, b in zip(own, found))
    if isinstance(own, bool | str):
        return type(found) is type(own)
    if isinstance(own, torch.Tensor):
        return _score(found)
    if isinstance(own, int | float):
        return _number(found, whole)
    return _usable(found)


def _number(value: Any, whole: bool) -> bool:
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    return fits and (value in (math.inf, -math.inf) or abs(value) < MOST)


def _score(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1 and value.is_floating_point()


def _usable(value: Any) -> bool:
    """No tensor but one of finite numbers."""
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_floating_point() and value.layout is torch.strided and bool(torch.isfinite(value).all())


def _require(fits: bool, why: str) -> None:
    if not fits:
        raise Unreadable(f"training cannot go on from its checkpoint: {why}; resume=false trains again")
