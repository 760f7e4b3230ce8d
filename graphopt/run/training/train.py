"""Training a learner: a Lightning module, data module and Trainer, with Lightning's own checkpoints. A killed training
that is started again ends as the one that was not interrupted (`graphopt.run.training.callbacks`)."""

import logging
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning.callbacks import Callback, Checkpoint, EarlyStopping, ModelCheckpoint

from graphopt.core.errors import ConfigError, UserError
from graphopt.graphs.module import GraphBatches
from graphopt.learn.learner import Learner
from graphopt.run.cell import Cell, digest
from graphopt.run.config.build import Parts
from graphopt.run.config.construct import construct
from graphopt.run.training import adopt, checkpoint
from graphopt.run.training.callbacks import CurveLogger, Progress, Pruning, Resumable
from graphopt.run.training.settings import TrainerSettings, rank_of_slurm
from graphopt.run.trials import reported_trial

MEET_MINUTES = 10


def prepare(parts: Parts, cell: Cell) -> None:
    """Leaves the cell's learner ready to solve: loaded from `ckpt`, or trained (or its training gone on with)."""
    learner = parts.algo
    assert isinstance(learner, Learner)
    schedule: TrainerSettings = construct(cell.config["trainer"], "trainer")
    about = checkpoint.about(cell.config, learner)
    learner.save_hyperparameters(checkpoint.settings_in(cell.config))
    source = Path(cell.path / "ckpt" / "best.ckpt")
    if cell.settings.ckpt is not None:
        source = adopt.find(cell.settings.ckpt, cell.config)
    else:
        train(learner, parts, cell, schedule, about)
    state = checkpoint.adopt_weights(learner, source, about)
    counted = state if cell.settings.ckpt is not None else checkpoint.load(cell.path / "ckpt" / "last.ckpt")
    checkpoint.restore_counters(learner, counted)
    learner.eval()
    learner.to(device_of(schedule))


def device_of(schedule: TrainerSettings) -> torch.device:
    if schedule.accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError("trainer.accelerator=gpu, but torch sees no GPU; choose trainer.accelerator=cpu")
    return torch.device("cuda" if schedule.accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def train(learner: Learner, parts: Parts, cell: Cell, schedule: TrainerSettings, about: dict[str, Any]) -> None:
    """Trains until the steps, the seconds or the patience end; ckpt/best.ckpt holds the result."""
    _meet(schedule)
    graphs, val_graphs = parts.dataset.graphs("train"), parts.dataset.graphs("val")
    if not graphs:
        raise UserError(
            f"algo={learner.name} has to be trained, but dataset={parts.dataset.name} has no graphs in split train; "
            "give ckpt=..., or a dataset with training graphs"
        )
    if not learner.applies_train_mask and any(graph.held_out.any() for graph in graphs):
        raise UserError(
            f"dataset={parts.dataset.name} holds ops of its training graphs out, which algo={learner.name} would be "
            "taught by; choose dataset.purged=false, or an algorithm that heeds it, such as laf or kernel_model"
        )
    about["taught"] = taught = digest([graph.hash for graph in (*graphs, *val_graphs)])
    found = checkpoint.newest(cell.path / "ckpt")
    if found is not None:
        state = found[1]
        if checkpoint.said(state, "taught") != taught:
            raise UserError(
                f"{cell.path} was trained on other graphs than the data set has now; resume=false trains again, "
                "study=NAME keeps both"
            )
        if checkpoint.said(state, "note").get("finished"):
            return
        checkpoint.restore_counters(learner, state)
        print(f"training goes on from step {learner.train_steps}")
    elif schedule.start is not None:
        checkpoint.adopt_weights(learner, adopt.find(schedule.start, cell.config), about)
    cell.log.rewind(learner.train_steps if found is not None else -1)
    learner.val_evals = schedule.val_evals
    learner.prepare_training(graphs)
    batches = GraphBatches(graphs, val_graphs, schedule.batch_graphs, cell.settings.seed)
    trainer = trainer_for(learner, schedule, cell, about, validates=bool(val_graphs))
    fit(trainer, learner, batches, found[0] if found else None)


def trainer_for(
    learner: Learner, schedule: TrainerSettings, cell: Cell, about: dict[str, Any], *, validates: bool
) -> pl.Trainer:
    """Lightning's Trainer as configured. One epoch is the whole training, since batches are endless. Before the first
    step all validation graphs are solved (Lightning's sanity check), so that no training ends worse than it began."""
    callbacks = callbacks_for(learner, schedule, cell.path / "ckpt", about, validates=validates)
    options: dict[str, Any] = {
        "accelerator": device_of(schedule).type.replace("cuda", "gpu"), "devices": schedule.devices,
        "num_nodes": schedule.num_nodes, "strategy": strategy_of(schedule), "precision": schedule.precision,
        "accumulate_grad_batches": schedule.accumulate_grad_batches, "profiler": schedule.profiler,
        "log_every_n_steps": schedule.log_every_n_steps, "max_epochs": 1, "limit_train_batches": schedule.steps,
        "val_check_interval": max(1, min(schedule.val_every, schedule.steps)),
        "limit_val_batches": None if validates else 0, "num_sanity_val_steps": -1 if validates else 0,
        "logger": [CurveLogger(learner, cell.log), *schedule.logger],
        "callbacks": callbacks, "enable_checkpointing": any(isinstance(each, Checkpoint) for each in callbacks),
        "enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False,
        "default_root_dir": cell.path,
    }  # fmt: skip
    taken = [key for key in schedule.options if key in options]
    if taken:
        raise ConfigError(f"trainer.options.{taken[0]} is decided by graphopt, or is trainer.{taken[0]}")
    plugins = [checkpoint.WholeFiles(), *schedule.options.get("plugins", [])]
    try:
        with quiet():
            return pl.Trainer(**{**options, **schedule.options, "plugins": plugins})
    except (MisconfigurationException, TypeError, ValueError, ModuleNotFoundError) as error:
        raise ConfigError(f"trainer: Lightning refuses it: {' '.join(str(error).split())[:300]}") from None


def strategy_of(schedule: TrainerSettings) -> str:
    """DDP where several devices train. Processes are forked or spawned, not started as scripts, unless Slurm starts
    them: only the first one may hold the cell. Networks have parts that a step may leave out, such as heads of actions
    that are switched off."""
    if schedule.strategy != "auto" or schedule.processes == 1:
        return schedule.strategy
    if rank_of_slurm(schedule.devices, schedule.num_nodes) is not None:
        return "ddp_find_unused_parameters_true"
    if schedule.num_nodes > 1:
        raise ConfigError(
            f"trainer.num_nodes={schedule.num_nodes} needs Slurm to start {schedule.processes} processes; give "
            f"hydra/launcher=submitit_slurm hydra.launcher.nodes={schedule.num_nodes} "
            f"hydra.launcher.tasks_per_node={schedule.devices}, or srun"
        )
    return f"ddp_{'fork' if device_of(schedule).type == 'cpu' else 'spawn'}_find_unused_parameters_true"


def _meet(schedule: TrainerSettings) -> None:
    """Processes of Slurm that train together wait for the first one, which takes the cell and may empty it: all then
    read the same checkpoint, or none. Lightning goes on with the process group."""
    rank = rank_of_slurm(schedule.devices, schedule.num_nodes)
    if rank is None or torch.distributed.is_initialized():
        return
    from lightning_fabric.plugins.environments.slurm import SLURMEnvironment

    slurm = SLURMEnvironment()
    backend = "gloo" if device_of(schedule).type == "cpu" else "nccl"
    where = f"tcp://{slurm.main_address}:{slurm.main_port}"
    try:
        torch.distributed.init_process_group(backend, init_method=where, rank=rank, world_size=schedule.processes,
                                             timeout=timedelta(minutes=MEET_MINUTES))  # fmt: skip
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise UserError(
            f"{schedule.processes} processes of Slurm do not meet at {where} ({why}); set MASTER_ADDR and MASTER_PORT"
        ) from None


def callbacks_for(
    learner: Learner, schedule: TrainerSettings, folder: Path, about: dict[str, Any], *, validates: bool
) -> list[Callback]:
    """Lightning's for the best checkpoint and for stopping early; the user's; ours, which Lightning lacks."""
    monitor, folder = f"val/{learner.metric}", folder.resolve()  # by another path Lightning removes the best
    best = ModelCheckpoint(
        folder, "best", monitor=monitor, mode="max", save_top_k=1, enable_version_counter=False, save_last=False
    )
    patience = EarlyStopping(monitor, patience=schedule.patience, mode="max", check_on_train_epoch_end=False)
    watching: list[Callback] = [best, *([patience] if schedule.patience else [])] if validates else []
    trial = reported_trial() if validates and schedule.processes == 1 else None
    watching += [] if trial is None else [Pruning(trial, schedule.steps)]
    return [Progress(schedule), *schedule.callbacks, *watching, Resumable(folder, about, schedule)]


def fit(trainer: pl.Trainer, learner: Learner, batches: GraphBatches, last: Path | None) -> None:
    """Lightning's part. Ctrl-C raises KeyboardInterrupt, as everywhere else."""
    try:
        with quiet():
            trainer.fit(learner, batches, ckpt_path=last, weights_only=True)
    except SystemExit:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Lightning leaves it switched off
        raise KeyboardInterrupt from None
    except MisconfigurationException as error:
        raise ConfigError(f"trainer: Lightning refuses it: {' '.join(str(error).split())[:300]}") from None
    except OSError as error:
        raise UserError(
            f"cannot write {error.filename or trainer.default_root_dir}: {error.strerror or error}; make room or "
            "choose another output_dir=..."
        ) from error
    except Exception as error:
        begun = any(each.begun for each in trainer.callbacks if isinstance(each, Resumable))  # type: ignore[attr-defined]
        if isinstance(error, UserError) or last is None or trainer.num_devices > 1 or begun:
            raise
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise UserError(f"training cannot go on from {last} ({why}); resume=false trains again") from error


_TALKATIVE = ("pytorch_lightning", "lightning_fabric", "pytorch_lightning.utilities.rank_zero")


@contextmanager
def quiet() -> Iterator[None]:
    """Without Lightning's advice and hardware report."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="pytorch_lightning|lightning_fabric|torch.utils._pytree")
        warnings.filterwarnings("ignore", message=".*(does not have many workers|LeafSpec|tensorboardX|resumable).*")
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
