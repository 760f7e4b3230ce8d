"""Hydra's callback `StudyTable`."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback


class StudyTable(Callback):
    """Prints the table of the study when a sweep is over and no cell of it failed. brief: the verdict, one short table
    and where the page is."""

    def __init__(self, brief: bool = False) -> None:
        self.brief = brief

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from graphopt.report.command import print_table, print_verdict

        if config.hydra.sweeper._target_.endswith("OptunaSweeper"):
            return  # whose cells differ in settings: its own table says which are best
        place = Path(config.output_dir) / config.study
        if any(place.glob("*/rows.jsonl")):
            (print_verdict if self.brief else print_table)(place)
