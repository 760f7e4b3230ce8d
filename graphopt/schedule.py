"""How training goes: data only, so that it is checked without torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Config group `trainer`; conf/trainer/default.yaml explains every field."""

    name: str
    steps: int
    batch_graphs: int
    max_seconds: float | None
    val_every: int
    val_evals: int
    patience: int
    save_every: int
    save_seconds: float
    log_every: int
    accelerator: Literal["cpu", "gpu", "auto"]
