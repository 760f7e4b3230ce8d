"""What several runs of one study know of each other: who holds a cell, and which jobs were asked for. It loads no
Hydra: its plugins may not be imported before Hydra loads them itself."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from graphopt.core.errors import Unreadable
from graphopt.core.utils.limits import read_json
from graphopt.core.utils.whole import whole_file
from graphopt.run.cell import LOCKS

JOBS, MOST_BYTES = "jobs.json", 256 * 2**20


def held(lock: str) -> bool:
    """Whether another run holds it at this moment."""
    try:
        with FileLock(lock, timeout=0, thread_local=False):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # no locks there
        return False


def keep_jobs(study: Path, jobs: Sequence[Sequence[str]]) -> None:
    """Adds the jobs of a sweep to those that its study was asked for; `graphopt study status` counts the missing."""
    known = jobs_of(study)
    asked = {" ".join(sorted(job)) for job in jobs} | known
    if asked != known:
        with suppress(OSError), whole_file(study / LOCKS / JOBS) as file:
            file.write(json.dumps(sorted(asked)).encode())


def jobs_of(study: Path) -> set[str]:
    """All that were asked for; none where that is not known."""
    try:
        found = read_json(study / LOCKS / JOBS, MOST_BYTES)
    except Unreadable:
        return set()
    return {job for job in found if isinstance(job, str)} if isinstance(found, list) else set()
