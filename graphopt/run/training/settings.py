"""How training goes: data only, so that it is checked without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from graphopt.core.utils.marks import RUNS, Between, Count, NotNegative, UserPath, Whole


@dataclass(frozen=True, kw_only=True)
class TrainerSettings:
    """Config group `trainer`; conf/trainer/default.yaml explains every field. From `accelerator` on they are arguments
    of pytorch_lightning.Trainer under their own names; `options` holds any others of it."""

    name: str
    steps: Whole
    start: UserPath
    batch_graphs: Count
    max_seconds: NotNegative | None
    val_every: Count
    val_evals: Count
    patience: Whole
    save_every: Count
    save_seconds: NotNegative
    accelerator: str
    devices: Annotated[int, Between(1, 64)]
    strategy: str
    precision: str
    accumulate_grad_batches: Count
    log_every_n_steps: Count
    profiler: str | None
    callbacks: Annotated[list[Any], RUNS]
    logger: Annotated[list[Any], RUNS]
    options: Annotated[Mapping[str, Any], RUNS]
