"""What Lightning puts back from `last.ckpt`, checked before a step is made with it: Lightning believes all that a file
says, counters, paths and states of optimisers included. What does not fit ends training with `Unreadable`."""

import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.core.optimizer import _configure_optimizers

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


def check_optimizers(trainer: pl.Trainer, learner: pl.LightningModule, stored: int) -> None:
    """After they were put back, from the states of so many: all of them, and the schedules of their rates, are as those
    that the learner makes anew."""
    made: Any = learner.configure_optimizers()
    own, schedules, _ = _configure_optimizers(made)
    _require(len(trainer.optimizers) == stored, "it is of another number of optimisers")
    for optimizer, fresh in zip(trainer.optimizers, own, strict=True):
        _check_states(optimizer, _first_state(fresh))
        _check_settings(optimizer, fresh)
    for config, anew in zip(trainer.lr_scheduler_configs, schedules, strict=True):
        usual = (anew["scheduler"] if isinstance(anew, dict) else anew).state_dict()
        fits = alike(usual, config.scheduler.state_dict()) and getattr(config.scheduler, "last_epoch", 0) >= 0
        _require(fits, "its schedules of rates are of another kind")


_PROBE = (2, 3)  # no parameter that is one number


def _first_state(fresh: torch.optim.Optimizer) -> dict[str, Any]:
    """What an optimiser of its kind knows of a parameter of shape _PROBE after a step."""
    parameter = torch.nn.Parameter(torch.zeros(_PROBE))
    parameter.grad = torch.zeros(_PROBE)
    probe: torch.optim.Optimizer = type(fresh)([parameter], **fresh.defaults)
    probe.step()
    return dict(probe.state[parameter])


def _check_states(optimizer: torch.optim.Optimizer, usual: Mapping[str, Any]) -> None:
    """Numbers of the parameter's shape where the optimiser has such, and single ones where it has those."""
    for parameter, values in optimizer.state.items():
        _require(values.keys() == usual.keys(), "its state of an optimiser lacks something, or has more")
        for key, own in usual.items():
            fits = _state_fits(values[key], own, parameter)
            _require(fits, "its state of an optimiser does not fit the network")


def _state_fits(value: Any, own: Any, parameter: torch.Tensor) -> bool:
    if not isinstance(own, torch.Tensor):
        return value is None if own is None else alike(own, value)
    if own.shape == _PROBE:
        return isinstance(value, torch.Tensor) and value.shape == parameter.shape and _usable(value)
    return _score(value) and 0 <= float(value) < MOST


def _check_settings(optimizer: torch.optim.Optimizer, fresh: torch.optim.Optimizer) -> None:
    """Those of the configuration, but for the rate, which changes, and momenta where a schedule changes them too."""
    for group, own in zip(optimizer.param_groups, fresh.param_groups, strict=True):
        fixed = own.keys() - {"params", "lr"}
        if "max_momentum" in own and "betas" in own:  # of OneCycleLR
            fixed -= {"betas"}
            fits = alike(own["betas"], group.get("betas")) and all(0.0 <= beta < 1.0 for beta in group["betas"])
            _require(fits, "its settings of an optimiser are of another kind")
        same = all(alike(own[key], group.get(key)) and own[key] == group.get(key) for key in fixed)
        rate: Any = group.get("lr")
        _require(same and _number(rate, False) and rate >= 0, "its settings of an optimiser are of another kind")


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
    single = isinstance(value, torch.Tensor) and value.numel() == 1 and value.layout is torch.strided
    return bool(single and value.is_floating_point())


def _usable(value: Any) -> bool:
    """No tensor but one of finite numbers."""
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_floating_point() and value.layout is torch.strided and bool(torch.isfinite(value).all())


def _require(fits: bool, why: str) -> None:
    if not fits:
        raise Unreadable(f"training cannot go on from its checkpoint: {why}; resume=false trains again")
