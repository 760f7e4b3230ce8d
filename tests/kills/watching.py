"""Every write of a run, as it happens: `watch(folders, notice)`.

Files are opened, folders made and files renamed (all seen by an audit hook), and bytes handed to the system (seen by a
file class of our own, which `open` gives for files below the folders).
"""

import builtins
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

Kind = Literal["open", "rename", "mkdir", "bytes"]
Notice = Callable[[Kind, str, int], int]  # (kind, path, number of bytes) -> how many of them are taken
CHANGING = os.O_WRONLY | os.O_RDWR


def watch(folders: tuple[Path, ...], notice: Notice) -> None:
    """From now on, in this process, for good. What `notice` raises comes out of the write."""
    below = tuple(f"{folder}{os.sep}" for folder in folders)
    sys.addaudithook(lambda event, arguments: _audit(event, arguments, below, notice))
    plain = io.open

    def opened(file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None, errors: str | None = None,
               newline: str | None = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        path = os.path.realpath(f"/proc/self/fd/{file}") if isinstance(file, int) else os.fspath(file)
        if not (isinstance(path, str) and path.startswith(below) and {*mode} & {*"wax"}) or "+" in mode:
            return plain(file, mode, buffering, encoding, errors, newline, closefd, opener)
        buffered = io.BufferedWriter(_Watched(file, mode.strip("bt"), closefd, opener, path, notice))
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    io.open = builtins.open = opened  # type: ignore[assignment]


class _Watched(io.FileIO):
    def __init__(self, file: Any, mode: str, closefd: bool, opener: Any, path: str, notice: Notice) -> None:
        super().__init__(file, mode, closefd, opener)
        self._path, self._notice = path, notice

    def write(self, data: Any) -> int:
        """As the system does it: perhaps not all of it."""
        return super().write(memoryview(data).cast("B")[: self._notice("bytes", self._path, memoryview(data).nbytes)])


def _audit(event: str, arguments: tuple[Any, ...], below: tuple[str, ...], notice: Notice) -> None:
    if event == "open" and arguments[2] is not None and not arguments[2] & CHANGING:
        return
    kinds: dict[str, Kind] = {"open": "open", "os.rename": "rename", "os.mkdir": "mkdir"}
    for path in arguments[: 2 if event == "os.rename" else 1] if event in kinds else ():
        if not isinstance(path, str | os.PathLike) or not os.fspath(path).startswith(below):
            continue
        if event != "os.mkdir" or not os.path.exists(path):
            notice(kinds[event], os.fspath(path), 0)
        return
