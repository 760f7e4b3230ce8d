"""`graphopt study cancel DIR`: ends a sweep, wherever its parts run. Finished cells stay; begun ones go on when the
command of the sweep is given again."""

import argparse
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import say
from graphopt.run.sharing import DRIVER, LOCKS, held, holders

SECONDS = 60.0  # that are waited for processes to end


def jobs_of_slurm(study: Path) -> list[str]:
    """Jobs of this user that wait or run and whose logs lie in the study's folder."""
    if shutil.which("squeue") is None:
        return []
    asked = ["squeue", "--me", "-h", "-r", "-O", "JobArrayID:|,STDERR:"]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    logs = str((study / ".submitit").resolve())
    found = [line.partition("|") for line in done.stdout.splitlines()]
    return [job.strip() for job, _, log in found if str(Path(log.strip()).resolve()).startswith(logs)]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt study cancel", description="Ends a sweep.")
    parser.add_argument("study", type=Path, metavar="DIR", help="the folder of a study, outputs/STUDY")
    study = parser.parse_args(arguments).study
    if not (study / LOCKS).is_dir():
        raise UserError(f"{study} is no folder of a study that was run; give outputs/STUDY")
    running = holders(study)
    running.sort(key=lambda one: not one.lock.name.startswith(DRIVER))  # who starts jobs first, so that none comes
    jobs = jobs_of_slurm(study)
    ended = [one for one in running if one.job is None and one.here]
    cancelled = [one for one in running if one.job is not None or one in ended]
    for one in ended:
        with suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGTERM)
    if jobs:
        subprocess.run(["scancel", *jobs], check=False, timeout=60)
    end = time.monotonic() + SECONDS
    while (left := [one for one in cancelled if held(str(one.lock))]) and time.monotonic() < end:
        time.sleep(0.2)
    say(f"{study}: told to end: processes: {len({one.pid for one in ended})}, jobs of Slurm: {len(jobs)}")
    for one in running:
        if one in left or one not in cancelled:
            say(f"still working: process {one.pid} on {one.host}; end it there")
    return int(bool(left) or len(cancelled) < len(running))
