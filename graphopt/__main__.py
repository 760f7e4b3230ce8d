"""The command `graphopt`. Without a subcommand it runs: one cell is composed, built, trained if it learns, evaluated,
shown, as by `python run.py` in a clone. `graphopt task=fusion algo=go`; `-m` makes a sweep of cells."""

import atexit
import gc
import os
import sys
from importlib import import_module
from typing import Any

SUBCOMMANDS = {  # one word, or two: the module of its `main`, and its purpose
    "report": ("graphopt.report.command", "tables, curves, pictures, figures and replay of a study"),
    "answer": ("graphopt.report.decision", "show, replay, compare, edit and draw the file of an answer"),
    "board": ("graphopt.report.leaderboard.board", "price the entries again, write the page, enter a study"),
    "board tile": ("graphopt.report.tile", "solve or check a tiling problem of the contest"),
    "models": ("graphopt.report.shipped", "the policies that come with the package"),
    "compat": ("graphopt.run.config.compatibility", "which algorithms fit which tasks"),
    "rules check": ("graphopt.rewrite.check", "what rewriting sees of an ONNX model"),
    "rules generate": ("graphopt.rewrite.generate", "generate and verify rewrite rules"),
    "rules verify": ("graphopt.rewrite.verify", "verify rewrite rules"),
    "measure calibrate": ("graphopt.hardware.costs.calibrated", "measure operations, reads and loops of this machine"),
    "measure race": ("graphopt.hardware.measure.race", "run two ONNX models by turns"),
    "measure backends": ("graphopt.backends.against_eager", "compilers against eager execution on GraphNet's programs"),
    "study status": ("graphopt.report.status", "how far a sweep is: cells done, running, failed, not begun"),
    "study cancel": ("graphopt.report.cancel", "end a sweep: who starts its jobs, its jobs of Slurm, its processes"),
    "study retry": ("graphopt.report.retry", "do what is missing of a sweep, and failed trials again"),
    "study pack": ("graphopt.report.pack", "pack a finished study into a few small files"),
    "study ship": ("graphopt.run.ship", "put a trained policy beside those of the package"),
}
PLUGINS = "hydra_plugins.graphopt."  # where Hydra wants plugins to be


def main() -> None:
    """Runs the subcommand of the command line, and ends the process with its exit code."""
    words = sys.argv[1:]
    if words == ["--version"]:
        import graphopt

        print(f"graphopt {graphopt.__version__}")
        return
    atexit.register(gc.freeze)  # called last: looking for reference cycles at the end would take a second
    name = next((name for name in (" ".join(words[:2]), " ".join(words[:1])) if name in SUBCOMMANDS), None)
    if name is None and words[:1] and words[0] in {known.split()[0] for known in SUBCOMMANDS}:
        sys.exit(_listed(words[0]))
    if name is None:
        return run()
    from graphopt.core.cli import sentences

    with sentences():
        sys.exit(import_module(SUBCOMMANDS[name][0]).main(words[len(name.split()) :]))


def run() -> None:
    """The cells that the command line composes. Modules of the user's own are looked for in the current folder too."""
    import hydra
    from hydra.core.plugins import Plugins

    from graphopt import CONF
    from graphopt.core.cli import config_dir, for_each_job, readable_help, sentences

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    plugins = Plugins.instance()  # which loads its own plugins anew, so that theirs must not be imported before
    from graphopt.run.optuna_sweeper import OptunaSweeper
    from graphopt.run.sweep import ResumingSweeper

    for sweeper in (ResumingSweeper, OptunaSweeper):
        plugins.class_name_to_class[PLUGINS + sweeper.__name__] = sweeper
    sys.argv[1:] = for_each_job(sys.argv[1:])
    with sentences(), config_dir(sys.argv[1:]), readable_help(sys.argv[1:]):
        hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(run_cell)()


def run_cell(config: Any) -> Any:
    """Hydra calls this with every composed configuration. Returns the `CellOutcome` of its cell."""
    from hydra.core.hydra_config import HydraConfig

    from graphopt.core.errors import RowsFailed
    from graphopt.run.cell import in_sweep, open_cell
    from graphopt.run.config.compatibility import with_peers
    from graphopt.run.config.suggested_machine import with_suggested_machine
    from graphopt.run.evaluate import run_through
    from graphopt.run.training.adopt import adopt
    from graphopt.run.training.settings import rank_of_slurm

    config = with_suggested_machine(adopt(config))
    if rank_of_slurm(config.trainer.get("devices", 1), config.trainer.get("num_nodes", 1)):
        return follow(config)
    if not in_sweep() and HydraConfig.get().runtime.choices.get("experiment") is None:
        config = with_peers(config)
    with open_cell(config) as cell:
        if not cell.skipped:
            try:
                run_through(cell)
            except RowsFailed:
                if cell.rows.done:
                    _show(cell)  # the results of the other rows
                raise
            _show(cell)
    return cell.outcome


def follow(config: Any) -> None:
    """A process of Slurm that trains with the first one: only the first holds the cell and makes rows."""
    from omegaconf import OmegaConf

    from graphopt.run.cell import Cell
    from graphopt.run.config.build import build
    from graphopt.run.training.train import prepare

    cell = Cell(OmegaConf.to_container(config, resolve=True))  # type: ignore[arg-type]
    if not (cell.settings.resume and cell.finished) and (parts := build(cell.config)).learns:
        prepare(parts, cell)


def _show(cell: Any) -> None:
    """The tables of a single run; one line in a sweep, whose table comes last."""
    from graphopt.core.utils.terminal import say
    from graphopt.report.command import cell_line, print_cell
    from graphopt.run.cell import in_sweep

    if in_sweep():
        say(f"{cell.path}: {cell_line(cell.rows.rows)}")
    else:
        print_cell(cell.rows.path, cell.rows.rows, str(cell.config["algo"]["name"]))
        say(f"stored in {cell.path}\npictures: graphopt report {cell.study_path} --plots", keep="\n")


def _listed(group: str) -> int:
    """Lists the second words of a subcommand; returns the exit code of an invalid command line."""
    lines = [f"  graphopt {name:19} {does}" for name, (_, does) in SUBCOMMANDS.items() if name.split()[0] == group]
    print("\n".join([f"graphopt {group} needs one of these words; each has --help:", *lines]), file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
