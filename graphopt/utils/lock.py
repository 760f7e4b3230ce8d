"""A lock between processes: a file that is never deleted, and that the system gives back when its process ends."""

import fcntl
import os
from pathlib import Path
from typing import IO

from graphopt.errors import writing


class Lock:
    """path: of a file for this alone; made when it is first taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    @property
    def taken(self) -> bool:
        """By this object."""
        return self._file is not None

    def take(self) -> bool:
        """False when another process (or object) has it. Raises UserError where the file cannot be made."""
        while not self.taken:
            with writing(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
                file = self.path.open("a")
            if not _locked(file):
                file.close()
                return False
            if self._in_place(file):
                self._file = file
            else:
                file.close()  # somebody deleted it (a whole study, say) between opening and locking
        return True

    def give_back(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _in_place(self, file: IO[str]) -> bool:
        """Whether the next process will find this very file."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), self.path.stat())
        except FileNotFoundError:
            return False


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
