"""Hydra's sweeper, without the jobs whose cells are finished: they are passed over before they are composed."""

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

from graphopt.errors import UserError
from graphopt.run.sweep import sources_of
from graphopt.utils.printable import say


class Resuming(BasicSweeper):
    """As Hydra's own in all else."""

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        assert self.config is not None
        sources = sources_of(self.config.hydra)
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        left = [[job for job in batch if not _finished(job, sources)] for batch in batches]
        return [batch for batch in left if batch]


def _finished(job: list[str], sources: list[str]) -> bool:
    """Whether the job has nothing to do; says so."""
    from graphopt.run import composed
    from graphopt.run.cell import Cell

    config = composed.find(job, sources)
    try:
        cell = None if config is None else Cell(config)
        if cell is None or not (cell.settings.resume and cell.finished):
            return False
    except UserError:
        return False
    say(cell.finished_line)
    return True
