"""`graphopt models`: the policies that come with the package, and their tasks."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import say
from graphopt.report.tables.table import Table, print_tables
from graphopt.run.training import checkpoint
from graphopt.run.training.adopt import PRETRAINED

NOTE = (
    "Used by `algo=ALGO ckpt=pretrained`, or graphopt.optimize(..., algo=ALGO, ckpt='pretrained'); any: whichever. "
    "docs/models.md says what each was trained on, and what it is worth."
)


def policies(folder: Path) -> Iterator[list[str]]:
    """(algorithm, task, objective, encoder, steps, evaluations, kB) of each. Raises UserError for a damaged file."""
    for file in sorted(folder.glob("*.ckpt")):
        algo, task, objective = file.stem.split("-")
        state = checkpoint.load(file)
        counted, settings = checkpoint.said(state, "counters"), checkpoint.said(state, "settings")
        yield [algo, task, objective, settings["encoder"]["name"], f"{counted['steps']:,}", f"{counted['evals']:,}",
               f"{file.stat().st_size / 1e3:,.0f}"]  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt models", description=__doc__)
    parser.parse_args(arguments)
    columns = ["algo", "task", "objective", "encoder", "steps", "training evaluations", "kB"]
    try:
        rows = list(policies(PRETRAINED))
        print_tables([Table("Policies that come with graphopt", columns, rows, left=4, note=NOTE)])
    except UserError as error:
        say(error, sys.stderr)
        return 1
    return 0
