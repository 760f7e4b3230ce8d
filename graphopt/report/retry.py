"""`graphopt study retry DIR`: gives the command of a sweep again, as this user gave it last. Cells that are missing or
failed are done; failed trials of a search over settings are tried again."""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from graphopt.core.errors import Unreadable, UserError
from graphopt.core.utils.limits import read_json
from graphopt.core.utils.terminal import say
from graphopt.run.sharing import MOST_BYTES, command_file


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt study retry", description="Does what is missing of a sweep.")
    parser.add_argument("study", type=Path, metavar="DIR", help="the folder of a study, outputs/STUDY")
    study = parser.parse_args(arguments).study
    try:
        kept = read_json(command_file(study), MOST_BYTES)
        folder, words = Path(kept["folder"]), [str(word) for word in kept["words"]]
    except (Unreadable, KeyError, TypeError):
        raise UserError(f"no sweep in {study} was started by this user; give its command again") from None
    say(f"in {folder}: graphopt {shlex.join(words)}")
    if "hydra/sweeper=optuna" in words:
        words.append("hydra.sweeper.retry=true")
    return subprocess.run([sys.executable, "-m", "graphopt", *words], cwd=folder).returncode
