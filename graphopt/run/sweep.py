"""Hydra's sweeper, without the jobs whose cells are finished: they are passed over before they are composed.

An experiment may have algorithms of its own: `hydra.sweeper.algos` says of each name which words make it of an option.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.errors import ConfigCompositionException

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import say
from graphopt.run.composed import find_composed, sources_of


class ResumingSweeper(BasicSweeper):
    """As Hydra's own in all else. algos: name -> words, the first of them `algo=OPTION`."""

    def __init__(
        self, max_batch_size: int | None, params: Mapping[str, str] | None, algos: Mapping[str, Sequence[str]]
    ) -> None:
        super().__init__(max_batch_size, dict(params or {}))
        self.algos = algos

    def split_arguments(self, overrides: Any, max_batch_size: int | None) -> list[list[list[str]]]:  # type: ignore[override]
        assert self.config is not None
        sources = sources_of(self.config.hydra)
        batches = BasicSweeper.split_arguments(overrides, max_batch_size)
        spelled = [[spelled_out(job, self.algos) for job in batch] for batch in batches]
        left = [[job for job in batch if not _finished(job, sources)] for batch in spelled]
        return [batch for batch in left if batch]

    def validate_batch_is_legal(self, batch: Any) -> None:
        """A key that only some jobs lack is no end of the sweep: it is handed on (`+`), and their cells refuse it."""
        assert self.hydra_context is not None and self.config is not None
        loader, errors = self.hydra_context.config_loader, dict[int, ConfigCompositionException]()
        for place, job in enumerate(batch):
            words = list(job)
            while True:
                try:
                    loader.load_sweep_config(self.config, words)
                    break
                except ConfigCompositionException as error:
                    errors.setdefault(place, error)
                    given = [_appended(word, str(error)) for word in words]
                    if given == words or len(errors) == len(batch):
                        raise errors[place] from None
                    words = given
            batch[place] = words


def spelled_out(job: list[str], algos: Mapping[str, Sequence[str]]) -> list[str]:
    """The job's words with an experiment's own algorithm in words of options; what comes later counts, as ever."""
    found: list[str] = []
    for word in job:
        name = word.removeprefix("algo=")
        found += [*algos[name], f"algo.name={name}"] if word != name and name in algos else [word]
    return found


def _appended(word: str, error: str) -> str:
    """The word as one that adds a key, where the error says that this one cannot be overridden."""
    found = re.search(r"Could not override '([^']+)'", error)
    return f"+{word}" if found and word.partition("=")[0] == found.group(1) else word


def _finished(job: list[str], sources: list[str]) -> bool:
    """Whether the job has nothing to do; says so."""
    from graphopt.run.cell import Cell

    config = find_composed(job, sources)
    try:
        cell = None if config is None else Cell(config)
        if cell is None or not (cell.settings.resume and cell.finished):
            return False
    except UserError:
        return False
    say(cell.finished_line)
    return True
