"""Training a learner: Lightning runs the steps; validation, checkpoints, early stop and the clock are here, by step, so
that a killed run goes on exactly where its last checkpoint was."""

import logging
import math
import signal
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import Logger

from graphopt import checkpoint
from graphopt.algos.learner import Learner
from graphopt.build import Parts
from graphopt.cell import Cell, digest
from graphopt.construct import construct
from graphopt.datasets.module import GraphBatches
from graphopt.errors import UserError
from graphopt.evaluate import solve
from graphopt.graph import Graph
from graphopt.loggers import RunLog
from graphopt.progress import Bar
from graphopt.schedule import Schedule

State = dict[str, Any]


def prepare(parts: Parts, cell: Cell) -> None:
    """Leaves the cell's learner ready to solve: loaded from `ckpt`, or trained (or its training gone on with)."""
    learner = parts.algo
    assert isinstance(learner, Learner)
    schedule: Schedule = construct(cell.config["trainer"], "trainer")
    about = checkpoint.about(cell.config, learner)
    if cell.settings.ckpt is not None:
        source = checkpoint.find(cell.settings.ckpt, cell.config)
    else:
        train(learner, parts, cell, schedule, about)
        source = cell.path / "ckpt" / "best.ckpt"
    state = checkpoint.adopt_weights(learner, source, about)
    if cell.settings.ckpt is not None:
        checkpoint.restore_counters(learner, state)
    learner.eval()
    learner.to(device_of(schedule))


def device_of(schedule: Schedule) -> torch.device:
    if schedule.accelerator == "gpu" and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu, but torch sees no GPU; choose trainer.accelerator=cpu")
    return torch.device("cuda" if schedule.accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def train(learner: Learner, parts: Parts, cell: Cell, schedule: Schedule, about: Mapping[str, Any]) -> None:
    """Trains until the steps, the seconds or the patience end; ckpt/best.ckpt holds the result."""
    graphs = parts.dataset.graphs("train")
    if not graphs:
        raise UserError(
            f"algo={learner.name} has to be trained, but dataset={parts.dataset.name} has no graphs in split train; "
            "give ckpt=..., or a dataset with training graphs"
        )
    folder = cell.path / "ckpt"
    val_graphs = parts.dataset.graphs("val")
    taught = digest([graph.hash for graph in (*graphs, *val_graphs)])
    keeper = Keeper(learner, val_graphs, schedule, folder, about, cell.log, cell.settings.seed, taught)
    state = checkpoint.load_last(folder)
    if state is not None:
        keeper.resume(state)
        print(f"training goes on from step {learner.train_steps}")
    if not keeper.done:
        learner.gather(graphs)
        batches = GraphBatches(graphs, schedule.batch_graphs, cell.settings.seed, learner.train_steps)
        with Bar("train", schedule.steps) as keeper.bar:
            keeper.bar.step("", learner.train_steps)
            fit(learner, batches, keeper, schedule, cell.path)
    keeper.finish()


def fit(learner: Learner, batches: GraphBatches, keeper: "Keeper", schedule: Schedule, folder: Path) -> None:
    """Lightning's part. Ctrl-C raises KeyboardInterrupt, as everywhere else."""
    with quiet():
        trainer = pl.Trainer(
            accelerator=device_of(schedule).type.replace("cuda", "gpu"), devices=1, max_epochs=1,
            limit_train_batches=schedule.steps - learner.train_steps, limit_val_batches=0, num_sanity_val_steps=0,
            logger=CurveLogger(learner, keeper.curves), callbacks=[keeper], log_every_n_steps=schedule.log_every,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False, default_root_dir=folder,
        )  # fmt: skip
        try:
            trainer.fit(learner, batches)
        except SystemExit:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it switched off
            raise KeyboardInterrupt from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice and hardware report."""
    for name in ("pytorch_lightning", "lightning_fabric", "pytorch_lightning.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.utils._pytree")
        warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec|tensorboardX).*")
        yield


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

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self._log.metrics(self._learner.train_steps, {k: v for k, v in metrics.items() if k != "epoch"})

    def log_hyperparams(self, params: Any) -> None: ...


class Keeper(pl.Callback):
    """Counts, validates, saves, stops."""

    bar: Bar

    def __init__(self, learner: Learner, val_graphs: Sequence[Graph], schedule: Schedule, folder: Path,
                 about: Mapping[str, Any], log: RunLog, seed: int, taught: str) -> None:  # fmt: skip
        self.learner, self.val_graphs, self.schedule, self.folder = learner, val_graphs, schedule, folder
        self.about, self.curves, self.seed = about, log, seed
        self.taught = taught  # digest of the graphs that training sees
        self.best, self.worse, self.ended = -math.inf, 0, False  # best validation, validations since, training is over
        self._measure = "speedup"  # what validation measures
        self._optimizers: list[State] = []
        self._torch_random: list[torch.Tensor] | None = None  # to be put back once the first batch is at hand
        self._tick = self._saved = time.monotonic()

    # ---- state

    def resume(self, state: State) -> None:
        note = checkpoint.restore(self.learner, state)
        if note.get("taught", self.taught) != self.taught:
            raise UserError(
                f"{self.folder} was trained on other graphs than the data set has now; resume=false trains again, "
                "study=NAME keeps both"
            )
        self.best, self.worse, self.ended = float(note["best"]), int(note["worse"]), bool(note["ended"])
        self._optimizers, self._torch_random = state["optimizers"], state["torch_random"]

    @property
    def done(self) -> bool:
        return self.ended or self.learner.train_steps >= self.schedule.steps

    def _state(self) -> State:
        note = {"best": self.best, "worse": self.worse, "ended": self.ended, "taught": self.taught}
        return checkpoint.state_of(self.learner, self.about, note) | {"optimizers": self._optimizers}

    def _save(self) -> None:
        checkpoint.save_last(self.folder, self._state())
        self._saved = time.monotonic()

    def finish(self) -> None:
        """Marks training as over; without validation graphs the last state is the best."""
        if not self.ended or not (self.folder / "best.ckpt").exists():
            self.ended = True
            if self.best == -math.inf or not (self.folder / "best.ckpt").exists():
                checkpoint.save(self.folder / "best.ckpt", self._state())
            self._save()

    # ---- Lightning's hooks

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for optimizer, state in zip(trainer.optimizers, self._optimizers):
            optimizer.load_state_dict(state["optimizer"])
        for config, state in zip(trainer.lr_scheduler_configs, self._optimizers):
            config.scheduler.load_state_dict(state["scheduler"])
        self._tick = self._saved = time.monotonic()
        if self.learner.train_steps == 0:
            self._validate()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self._torch_random is not None:  # not earlier: opening the data loader draws from the generator
            checkpoint.set_torch_random(self._torch_random)
            self._torch_random = None

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any,
                           batch_idx: int) -> None:  # fmt: skip
        learner, schedule = self.learner, self.schedule
        learner.train_steps += 1
        self._count_seconds()
        if learner.train_steps % schedule.val_every == 0 or learner.train_steps == schedule.steps:
            self._validate()
        out_of_time = schedule.max_seconds is not None and learner.train_seconds >= schedule.max_seconds
        if out_of_time or (schedule.patience and self.worse >= schedule.patience):
            if out_of_time and learner.train_steps % schedule.val_every:
                self._validate()
            self.ended = trainer.should_stop = True
        self._optimizers = _optimizer_states(trainer)
        due = time.monotonic() - self._saved > schedule.save_seconds
        if due or self.ended or learner.train_steps % schedule.save_every == 0:
            self._save()
        self._show(trainer)

    def _count_seconds(self) -> None:
        now = time.monotonic()
        self.learner.train_seconds += now - self._tick
        self._tick = now

    def _show(self, trainer: pl.Trainer) -> None:
        reward = trainer.callback_metrics.get("reward")
        parts = [] if reward is None else [f"reward {float(reward):.3f}"]
        best = f"val skill {self.best:.3f}" if self._measure == "skill" else f"val speed-up {self.best:.3f}x"
        self.bar.step(", ".join([*parts, best] if self.best > -math.inf else parts))

    # ---- validation

    def _validate(self) -> None:
        """The learner's own measure, else the same `solve` that evaluation uses, on a small budget; what is priced is
        training cost."""
        if not self.val_graphs:
            return
        self.learner.eval()
        found, self._measure = self.learner.skill(self.val_graphs), "skill"
        if found is None:
            found, self._measure = self._speedup(), "speedup"
        self.learner.train()
        self._count_seconds()
        note = {f"val/{self._measure}": found, "train_evals": self.learner.train_evals}
        self.curves.metrics(self.learner.train_steps, note)
        if found > self.best:
            self.best, self.worse = found, 0
            checkpoint.save(self.folder / "best.ckpt", self._state())
        else:
            self.worse += 1

    def _speedup(self) -> float:
        """Geometric mean over the validation graphs of initial / best price."""
        learner, logs, evals = self.learner, [], self.schedule.val_evals
        for graph in self.val_graphs:
            problem, _ = solve(learner, graph, learner.task, learner.cost, evals=evals, seed=self.seed)
            learner.train_evals += problem.evals
            if math.isfinite(problem.initial_cost) and math.isfinite(problem.best_cost) and problem.best_cost > 0:
                logs.append(math.log(problem.initial_cost / problem.best_cost))
        return math.exp(sum(logs) / len(logs)) if logs else 0.0


def _optimizer_states(trainer: pl.Trainer) -> list[State]:
    schedulers = [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs]
    return [
        {"optimizer": optimizer.state_dict(), "scheduler": schedulers[i] if i < len(schedulers) else {}}
        for i, optimizer in enumerate(trainer.optimizers)
    ]
