"""`Memo`: what was measured, a file of JSON lines that processes append to in turns, and those packed beside it.

A line is of a subject alone (`op`, `environment`, `seconds`, `spread`, `blocks`), or against a default (`digest`,
`default`, `environment`, and the fields of `Timing`, or `failure`, a reason that lasts), or of a request to a compiler
(`request`, `environment`; `program`, of what, `requests` and `knobs`, what was asked; and `digest` of what it became,
`features` of that, or `failure`).
"""

import fcntl
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from graphopt.errors import UserError, writing
from graphopt.measure.table_file import packed_lines
from graphopt.utils.channel import is_finite, is_measurement, is_seconds
from graphopt.utils.plain_json import refuse_nan

Line = Mapping[str, Any]


class Memo:
    """path: the file; neither it nor its packed lines (`table_file`) need exist. The first line of a subject counts, so
    that what was priced by it stays priced by it. Lines that were cut short, or hold no measurement, are left out, with
    a warning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[str, str, str], Line] = {}
        self._lowered: dict[tuple[str, str], Line] = {}
        self._read = 0  # bytes of the file
        *lines, rest = packed_lines(path).split(b"\n")
        self._keep_all(lines, rest)
        self._refresh()

    def find(self, digest: str, environment: str, default: str = "") -> Line | None:
        """The line of a subject, alone or against a default; None where it was not measured in that environment."""
        return self._known.get((digest, default, environment))

    def lowered(self, request: str, environment: str) -> Line | None:
        """What became of a request to a compiler; None where it was not made in that environment."""
        return self._lowered.get((request, environment))

    def requests(self) -> list[Line]:
        """All lines of requests to a compiler."""
        return list(self._lowered.values())

    def environments(self) -> list[str]:
        """Where something was measured."""
        return sorted({environment for _, _, environment in self._known})

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else measures for this file; what others have measured is known. Only then is `add` allowed."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        with file:
            self._refresh()
            yield

    def add(self, line: Line) -> None:
        """Appends a line. Raises UserError when the disk does not take it: a price that stands nowhere could not be
        replayed, so the run ends, and what was measured before stays."""
        refuse_nan(line)
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
        self._keep_all(lines, rest)

    def _keep_all(self, lines: list[bytes], rest: bytes) -> None:
        damaged = sum(not self._keep(text) for text in lines if text)
        self._keep(rest)
        if damaged:
            warnings.warn(f"{self.path}: {damaged} lines cannot be read and do not count", stacklevel=2)

    def _keep(self, text: bytes) -> bool:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(line, dict):
            return False
        if "request" in line:
            return self._keep_lowered(line)
        sound = is_comparison(line) if "digest" in line else is_measurement(line) and "default" not in line
        own, default, environment = line.get("op", line.get("digest")), line.get("default", ""), line.get("environment")
        if not (sound and isinstance(own, str) and isinstance(default, str) and isinstance(environment, str)):
            return False
        seconds = {} if "failure" in line else {"seconds": float(line["seconds"])}
        self._known.setdefault((own, default, environment), {**line, **seconds})
        return True

    def _keep_lowered(self, line: dict[str, Any]) -> bool:
        request, environment = line["request"], line.get("environment")
        if not (is_lowered(line) and isinstance(request, str) and isinstance(environment, str)):
            return False
        self._lowered.setdefault((request, environment), line)
        return True


def is_lowered(line: Mapping[str, Any]) -> bool:
    """A line of a request to a compiler."""
    if "failure" in line:
        return isinstance(line["failure"], str)
    features = line.get("features")
    return isinstance(line.get("digest"), str) and isinstance(features, dict) and all(map(is_finite, features.values()))


def is_comparison(line: Mapping[str, Any]) -> bool:
    """A line of a subject against a default: all numbers of a `Timing`, or why there are none."""
    if "failure" in line:
        return isinstance(line["failure"], str)
    return (all(is_seconds(line.get(key)) for key in ("seconds", "ratio", "rounds", "aa"))
            and is_finite(line.get("noise")) and line["noise"] >= 0)  # fmt: skip
