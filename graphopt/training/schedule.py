"""How training goes: data only, so that it is checked without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Config group `trainer`; conf/trainer/default.yaml explains every field. From `accelerator` on they are arguments
    of pytorch_lightning.Trainer under their own names; `options` holds any others of it."""

    name: str
    steps: int
    batch_graphs: int
    max_seconds: float | None
    val_every: int
    val_evals: int
    patience: int
    save_every: int
    save_seconds: float
    accelerator: str
    devices: int
    strategy: str
    precision: str
    accumulate_grad_batches: int
    log_every_n_steps: int
    profiler: str | None
    callbacks: list[Any]
    logger: list[Any]
    options: Mapping[str, Any]
