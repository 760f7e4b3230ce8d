"""The table of measured ops: a file of JSON lines, one per op and environment, that processes append to in turns."""

import fcntl
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphopt.errors import UserError, writing
from graphopt.utils.channel import is_measurement

Line = Mapping[str, Any]


class OpTable:
    """path: the file; it need not exist. A line says `op`, `environment`, `seconds` and how it was measured.

    The first line of an op counts, so that what was priced by it stays priced by it. Lines that were cut short, or hold
    no measurement, are left out, with a warning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[str, str], Line] = {}
        self._read = 0  # bytes of the file
        self._refresh()

    def find(self, op: str, environment: str) -> Line | None:
        """The line of an op; None where it was not measured in that environment."""
        return self._known.get((op, environment))

    def environments(self) -> list[str]:
        """Where ops were measured."""
        return sorted({environment for _, environment in self._known})

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else measures for this table; what others have measured is known. Only then is `add` allowed."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        with file:
            self._refresh()
            yield

    def add(self, line: Line) -> None:
        """Appends a line. Raises UserError when the disk does not take it."""
        with writing(self.path):
            whole = not self.path.stat().st_size or self.path.read_bytes().endswith(b"\n")
            with self.path.open("a") as file:
                file.write(("" if whole else "\n") + json.dumps(line) + "\n")
        self._refresh()

    def _refresh(self) -> None:
        """Reads what was appended. A line without an end may still be being written."""
        if not self.path.is_file():
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                *lines, rest = file.read().split(b"\n")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}; make it readable") from error
        self._read += sum(len(text) + 1 for text in lines)
        damaged = sum(not self._keep(text) for text in lines if text)
        self._keep(rest)
        if damaged:
            warnings.warn(f"{self.path}: {damaged} lines cannot be read and do not count", stacklevel=2)

    def _keep(self, text: bytes) -> bool:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(line, dict) or not is_measurement(line):
            return False
        op, environment = line.get("op"), line.get("environment")
        if not isinstance(op, str) or not isinstance(environment, str):
            return False
        self._known.setdefault((op, environment), {**line, "seconds": float(line["seconds"])})
        return True
