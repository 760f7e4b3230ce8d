"""How training goes: data only, so that it is checked without torch."""

import os
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
    num_nodes: Annotated[int, Between(1, 1024)]
    strategy: str
    precision: str
    accumulate_grad_batches: Count
    log_every_n_steps: Count
    profiler: str | None
    callbacks: Annotated[list[Any], RUNS]
    logger: Annotated[list[Any], RUNS]
    options: Annotated[Mapping[str, Any], RUNS]

    @property
    def processes(self) -> int:
        """That train together."""
        return self.devices * self.num_nodes


def rank_of_slurm(devices: int, num_nodes: int) -> int | None:
    """Which of the processes of one training this is, where Slurm has started them all; None where it has not."""
    started = os.environ.get("SLURM_NTASKS", "1")
    if started == "1" or "SLURM_PROCID" not in os.environ or str(devices * num_nodes) != started:
        return None
    return int(os.environ["SLURM_PROCID"])
