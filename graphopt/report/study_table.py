"""Hydra's callback `StudyTable`."""

from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback


class StudyTable(Callback):
    """Prints the table of the study when a sweep is over and no cell of it failed."""

    def on_multirun_end(self, config: Any, **kwargs: Any) -> None:
        from graphopt.report.command import print_table

        place = Path(config.output_dir) / config.study
        if any(place.glob("*/rows.jsonl")):
            print_table(place)
