"""The toy learner, trained as the command line does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import pytest

from graphopt.run.cell import Cell
from graphopt.run.config.build import build
from graphopt.run.training.train import prepare


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., Any]:
    """Trains a cell with the toy learner, `settings` being those of the trainer; returns (learner, cell)."""

    def go(place: str = "a", lr: float = 0.3, break_at: int = -1, config: dict[str, Any] | None = None,
           **settings: Any) -> Any:  # fmt: skip
        algo = parts_of.node(parts_of.Learns, "learns", lr=lr, break_at=-1)
        base = parts_of.config(tmp_path / place, **({"algo": algo} | (config or {})))
        base["trainer"] = base["trainer"] | settings
        cell = Cell(base)
        cell.start()
        cell.log.open(cell.path, base)
        parts = build(base)
        parts.algo.break_at = break_at
        try:
            with cell.logged():
                prepare(parts, cell)
        finally:
            cell.stop()
        return parts.algo, cell

    return go
