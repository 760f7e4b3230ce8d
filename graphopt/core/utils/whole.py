"""Files and folders that are whole at every moment: made beside their place under a name of their own, then renamed.

Leftovers of a killed process are deleted when the next process writes into that folder. Who makes a part holds the
system's lock on it, and the system gives locks back when a process ends: so no file of a living process is taken.
"""

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

_PART = re.compile(r"\..*\.[0-9a-f]{16}\.part", re.DOTALL)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """To be written; it is at `path` when the block ends, on the disk as well, and nowhere if the block raises. The
    folder is made. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_once(path.parent.resolve(), os.getpid())
    part, file = _locked_file(path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
        with suppress(OSError):  # the same write failure again
            file.close()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """To be filled; it is called `path` when the block ends, and is nowhere if the block raises. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _clear_once(path.parent.resolve(), os.getpid())
    part, handle = _locked_folder(path)
    try:
        yield part
        os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(handle)


def clear(folder: Path) -> None:
    """Removes the parts in a folder that no living process makes."""
    for entry in os.scandir(folder):
        if _PART.fullmatch(entry.name):
            with suppress(OSError):  # it is gone, or not ours
                _clear(Path(entry.path))


@cache
def _clear_once(folder: Path, process: int) -> None:
    clear(folder)


def _clear(part: Path) -> None:
    handle = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()
    finally:
        os.close(handle)


def _locked_file(path: Path) -> tuple[Path, BinaryIO]:
    while True:
        part = _beside(path)
        file = part.open("xb")
        if _held(file.fileno(), part):
            return part, file
        file.close()


def _locked_folder(path: Path) -> tuple[Path, int]:
    while True:
        part = _beside(path)
        part.mkdir()
        with suppress(FileNotFoundError):  # `clear` of another process took it
            handle = os.open(part, os.O_RDONLY)
            if _held(handle, part):
                return part, handle
            os.close(handle)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")


def _held(handle: int, part: Path) -> bool:
    """False where `clear` of another process came between making and locking: it takes the part."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), part.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:  # a file system without locks, on which `clear` takes nothing
        return True
