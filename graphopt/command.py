"""The command `graphopt`, and `python run.py` in a clone: one cell is composed, built, trained if it learns, evaluated,
shown. `-m` makes a sweep of cells."""

import os
import sys

import hydra
from hydra.core.plugins import Plugins
from omegaconf import DictConfig

from graphopt import CONF
from graphopt.cli import config_dir, for_each_job, readable_help, sentences

SWEEPER = "hydra_plugins.graphopt.Resuming"  # where Hydra wants plugins to be


@hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")
def run_cell(config: DictConfig) -> None:
    """What Hydra calls with every composed configuration."""
    from graphopt.config.build import build
    from graphopt.config.suggested_machine import with_suggested_machine
    from graphopt.errors import RowsFailed
    from graphopt.run.cell import open_cell
    from graphopt.run.evaluate import evaluate_cell
    from graphopt.training.adopt import adopt

    with open_cell(with_suggested_machine(adopt(config))) as cell:
        if cell.skipped:
            return
        parts = build(cell.config)
        if parts.learns:
            from graphopt.training.train import prepare

            prepare(parts, cell)
        try:
            evaluate_cell(parts, cell)
        except RowsFailed:
            if cell.rows.done:
                cell.show()  # what the other rows say
            raise
        cell.show()


def main() -> None:
    """The command line. Modules of the user's own are looked for in the current folder too."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    register()
    sys.argv[1:] = for_each_job(sys.argv[1:])
    with sentences(), config_dir(sys.argv[1:]), readable_help(sys.argv[1:]):
        run_cell()


def register() -> None:
    """Lets the configuration choose `Resuming` by that name."""
    plugins = Plugins.instance()  # which loads its own plugins anew, so that theirs must not be imported before
    from graphopt.run.resuming import Resuming

    plugins.class_name_to_class[SWEEPER] = Resuming
