"""Callbacks that Lightning lacks. There are checkpoints from which training goes on as if nothing had happened, and
counters of its cost. There are a progress bar and curves of the run's log, too.

Lightning does not keep the state of random generators, and a checkpoint that its ModelCheckpoint writes after a step
loses a validation that is due at the same step. So `Resumable` writes `last.ckpt`, a checkpoint of Lightning's own,
before a step begins, and puts the generators back when that step begins again.
"""

import os
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, ModelCheckpoint, Timer
from pytorch_lightning.loggers.logger import Logger
from pytorch_lightning.utilities import rank_zero_only

from graphopt.core.errors import Pruned
from graphopt.core.utils.terminal import Bar
from graphopt.learn.learner import Learner
from graphopt.run.loggers import RunLog
from graphopt.run.training import checkpoint
from graphopt.run.training.settings import TrainerSettings
from graphopt.run.trials import ReportedTrial


class CurveLogger(Logger):
    """Hands Lightning's `self.log` values to the run's log, by the learner's own step."""

    def __init__(self, learner: Learner, log: RunLog) -> None:
        super().__init__()
        self._learner, self._log = learner, log

    @property
    def name(self) -> str:
        return "graphopt"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        values = {name: value for name, value in metrics.items() if name != "epoch"}
        if values:
            self._log.metrics(self._learner.train_steps, values)

    def log_hyperparams(self, params: Any) -> None: ...


class Progress(Timer):
    """Counts steps and seconds into the learner, shows them, and ends training when the seconds are over. It comes
    before all other callbacks, so that they see the step counted."""

    def __init__(self, schedule: TrainerSettings) -> None:
        cap = schedule.max_seconds
        super().__init__(duration=None if cap is None else timedelta(seconds=cap), interval="step")
        self._steps, self._bar = schedule.steps, Bar("train", schedule.steps)

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        if trainer.is_global_zero:
            self._bar.__enter__()
            self._bar.step("", _learner(pl_module).train_steps)

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any, **kwargs: Any) -> None:
        learner = _learner(trainer.lightning_module)
        learner.train_steps += 1
        learner.train_seconds = self.time_elapsed()
        super().on_train_batch_end(trainer, *args, **kwargs)
        if learner.train_steps == self._steps:
            trainer.should_stop = True  # so that the last step is validated too
        if trainer.is_global_zero:
            self._bar.step(self._note(trainer, learner))

    def _note(self, trainer: pl.Trainer, learner: Learner) -> str:
        reward = trainer.callback_metrics.get("reward")
        parts = [] if reward is None else [f"reward {float(reward):.3f}"]
        best = best_checkpoint(trainer)
        known = best is not None and best.best_model_score is not None
        return ", ".join([*parts, f"best val {learner.metric} {float(best.best_model_score):.3f}"] if known else parts)  # type: ignore[union-attr,arg-type]

    def teardown(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        self._bar.__exit__(None, None, None)


class Resumable(pl.Callback):
    """Keeps `last.ckpt` and, in case that is damaged, the one before as `previous.ckpt`; see the module's docstring.

    about: the facts of checkpoints (`graphopt.run.training.checkpoint.about`).
    """

    def __init__(self, folder: Path, about: Mapping[str, Any], schedule: TrainerSettings) -> None:
        self.folder, self.about = folder, dict(about)
        self._every, self._seconds = schedule.save_every, schedule.save_seconds
        self._saved_step, self._saved_at = -1, time.monotonic()
        self._random: list[torch.Tensor] | None = None  # of torch, to be put back once the first batch is at hand
        self._finished = False
        self.begun = False  # a checkpoint was put back

    # ---- the content of a checkpoint

    def on_save_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, state: dict[str, Any]) -> None:  # type: ignore[override]
        learner = _learner(pl_module)
        evals = trainer.strategy.reduce(torch.tensor(float(learner.train_evals)), reduce_op="sum")
        state.update(checkpoint.extra(learner, self.about, evals=int(evals), finished=self._finished))

    def on_load_checkpoint(self, trainer: pl.Trainer, pl_module: pl.LightningModule, state: dict[str, Any]) -> None:  # type: ignore[override]
        self._random = checkpoint.put_back(_learner(pl_module), state, counts=trainer.is_global_zero)

    # ---- when it is written

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        learner, best = _learner(pl_module), best_checkpoint(trainer)
        if best is not None and best.best_model_score is not None:
            # In this run's folder, not at the file's path: Lightning removes it when a better one comes.
            path = str(self.folder / "best.ckpt")
            best.best_model_path = best.kth_best_model_path = path
            best.kth_value, best.best_k_models = best.best_model_score, {path: best.best_model_score}
        self.begun = True
        self._saved_step, self._saved_at = learner.train_steps, time.monotonic()
        if learner.train_steps == 0 and trainer.world_size > 1:
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)  # else all processes would draw alike

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._random is not None:  # not earlier: opening the data loader draws from the generator
            checkpoint.set_torch_random(self._random)
            self._random = None
        learner = _learner(pl_module)
        late = time.monotonic() - self._saved_at > self._seconds
        due = late or learner.train_steps % self._every == 0
        if trainer.strategy.reduce_boolean_decision(due and learner.train_steps != self._saved_step, all=False):
            self._save(trainer, learner)

    def on_sanity_check_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The untrained network is the first candidate for the best one."""
        learner, best = _learner(pl_module), best_checkpoint(trainer)
        assert best is not None
        path, score = str(self.folder / "best.ckpt"), torch.tensor(learner.last_metric)
        trainer.save_checkpoint(path)
        best.best_model_path = best.kth_best_model_path = path
        best.best_model_score = best.kth_value = score
        best.best_k_models = {path: score}
        for stopping in (callback for callback in trainer.callbacks if isinstance(callback, EarlyStopping)):  # type: ignore[attr-defined]
            stopping.best_score = score
        values = {f"val/{learner.metric}": learner.last_metric, "train_evals": float(learner.train_evals)}
        for logger in trainer.loggers:
            logger.log_metrics(values, 0)

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Marks training as over; without validation graphs the last state is the best."""
        self._finished = True
        if not (self.folder / "best.ckpt").exists():
            trainer.save_checkpoint(self.folder / "best.ckpt")
        self._save(trainer, _learner(pl_module))

    def _save(self, trainer: pl.Trainer, learner: Learner) -> None:
        last = self.folder / "last.ckpt"
        if trainer.is_global_zero and last.exists():
            os.replace(last, self.folder / "previous.ckpt")
        trainer.save_checkpoint(last)
        self._saved_step, self._saved_at = learner.train_steps, time.monotonic()


class Pruning(pl.Callback):
    """Reports each validation to a search over settings, and ends training where the search gives it up."""

    def __init__(self, trial: ReportedTrial, steps: int) -> None:
        self._trial, self._steps = trial, steps

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        learner = _learner(pl_module)
        step = learner.train_steps
        if not trainer.sanity_checking and self._trial.hopeless(step, learner.last_metric) and step < self._steps:
            raise Pruned(f"pruned after {step} steps of training, at {learner.metric} {learner.last_metric:.4g}")


def best_checkpoint(trainer: pl.Trainer) -> ModelCheckpoint | None:
    """Lightning's callback that keeps best.ckpt."""
    return next((found for found in trainer.checkpoint_callbacks if isinstance(found, ModelCheckpoint)), None)


def _learner(module: pl.LightningModule) -> Learner:
    assert isinstance(module, Learner)
    return module
