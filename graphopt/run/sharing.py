"""Shared knowledge of several runs of one study: who holds a cell, who starts jobs, and which were asked for. It loads
no Hydra: its plugins may not be imported before Hydra loads them itself."""

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout

from graphopt import cache_dir
from graphopt.core.errors import Unreadable
from graphopt.core.utils.limits import read_json
from graphopt.core.utils.whole import whole_file

LOCKS, JOBS, MOST_BYTES = ".locks", "jobs.json", 256 * 2**20
DRIVER, NOTE = "driver-", ".by"  # start of the lock of who starts jobs; ending of the file that says who holds a lock


@dataclass(frozen=True)
class CellOutcome:
    """The result of a sweep's job for its cell. busy: the file of the lock that another run holds; measures: its
    results (`graphopt.run.loggers.scalars`), none where it is not finished or illegal."""

    cell: str
    busy: str | None = None
    pruned: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)


def held(lock: str) -> bool:
    """Whether another run holds it at this moment."""
    try:
        with FileLock(lock, timeout=0, thread_local=False):
            return False
    except Timeout:
        return True
    except (OSError, NotImplementedError):  # no locks there
        return False


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock, as it says itself. job: of Slurm, None where Slurm did not start it."""

    lock: Path
    pid: int
    host: str
    job: str | None

    @property
    def here(self) -> bool:
        """It is a process of this machine that has the file open: the note may be old, or anybody's."""
        files = Path(f"/proc/{self.pid}/fd")
        with suppress(OSError):
            return self.host == socket.gethostname() and any(
                os.path.samefile(file, self.lock) for file in files.iterdir() if file.exists()
            )
        return False


def write_note(lock: Path) -> None:
    """Says beside a lock that this process holds it."""
    job = os.environ.get("SLURM_JOB_ID")
    with suppress(OSError):
        Path(f"{lock}{NOTE}").write_text(
            f"process {os.getpid()} on {socket.gethostname()}" + (f", job {job} of Slurm" if job else "")
        )


def note_of(lock: Path | str) -> str:
    """The note of `write_note`; empty where it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return Path(f"{lock}{NOTE}").read_text()[:100]
    return ""


def holders(study: Path) -> list[Holder]:
    """Of all locks that are held at this moment: who starts jobs, and who works on cells."""
    locks = [file for file in sorted((study / LOCKS).glob("*")) if Path(f"{file}{NOTE}").is_file()]
    found = []
    for lock in locks:
        said = re.fullmatch(r"process (\d{1,9}) on (\S+?)(?:, job (\d{1,12}) of Slurm)?", note_of(lock))
        if said and held(str(lock)):
            found.append(Holder(lock, int(said[1]), said[2], said[3]))
    return found


@contextmanager
def driving(study: Path) -> Iterator[str]:
    """While it lasts, this process starts jobs of the study's sweep. Gives the name of its lock."""
    place = study / LOCKS / f"{DRIVER}{socket.gethostname()}-{os.getpid()}-{time.time_ns()}"
    place.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(place, thread_local=False)
    with suppress(OSError, NotImplementedError):  # no locks there: the cells say so
        lock.acquire()
    write_note(place)
    try:
        yield place.name
    finally:
        lock.release(force=True)
        for file in (place, Path(f"{place}{NOTE}")):
            file.unlink(missing_ok=True)


def keep_jobs(study: Path, jobs: Sequence[Sequence[str]]) -> None:
    """Adds the jobs of a sweep to those that its study was asked for; `graphopt study status` counts the missing."""
    known = jobs_of(study)
    asked = {" ".join(sorted(job)) for job in jobs} | known
    if asked != known:
        with suppress(OSError), whole_file(study / LOCKS / JOBS) as file:
            file.write(json.dumps(sorted(asked)).encode())


def command_file(study: Path) -> Path:
    """Where the last command of a study's sweep is kept: in the user's own cache, so that a folder of somebody else
    brings no command along."""
    return cache_dir() / "sweeps" / f"{hashlib.sha256(str(study.resolve()).encode()).hexdigest()[:16]}.json"


def keep_command(study: Path, words: Sequence[str]) -> None:
    """words: of the command line, which `graphopt study retry` gives again."""
    file = command_file(study)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"folder": os.getcwd(), "words": list(words)}))


def jobs_of(study: Path) -> set[str]:
    """All that were asked for; none where that is not known."""
    try:
        found = read_json(study / LOCKS / JOBS, MOST_BYTES)
    except Unreadable:
        return set()
    return {job for job in found if isinstance(job, str)} if isinstance(found, list) else set()
