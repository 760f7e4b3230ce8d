"""`finished.json`: says that every row which a call asked for is there, so that the next call skips the cell.

    {"request": digest of what was asked for and of the data, "files": {"rows.jsonl": bytes, "decisions/NAME.npz": ...}}

It is believed as long as the request is the same and the files have the sizes that it names.
"""

import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable, writing
from graphopt.core.utils.limits import MIB, read_json
from graphopt.core.utils.whole import whole_file

MOST = 64 * MIB


class Finished:
    """folder: of the cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def file(self) -> Path:
        return self.folder / "finished.json"

    def of(self, request: str) -> bool:
        """Whether this very request was finished. What cannot be read says no."""
        try:
            said = read_json(self.file, MOST)
        except Unreadable:
            return False
        if not isinstance(said, dict) or said.get("request") != request or not isinstance(said.get("files"), dict):
            return False
        try:
            return all(os.stat(self.folder / name).st_size == size for name, size in said["files"].items())
        except (OSError, ValueError):
            return False

    def mark(self, request: str, rows: Collection[Mapping[str, Any]]) -> None:
        """rows: those that are done. Raises UserError when the disk does not take it."""
        names = [row[key] for row in rows for key in ("decision", "model") if row.get(key)]
        with writing(self.file), whole_file(self.file) as part:
            files = {name: os.stat(self.folder / name).st_size for name in ("rows.jsonl", *names) if rows}
            part.write(json.dumps({"request": request, "files": files}).encode())


def digest_of(files: Sequence[Path]) -> str:
    """Of the names and contents of files, empty where there are none. Raises OSError when one cannot be read."""
    return (
        ""
        if not files
        else hashlib.sha256("".join(map(_line, files)).encode(errors="backslashreplace")).hexdigest()[:16]
    )


def _line(file: Path) -> str:
    state = file.stat()
    return f"{file} {_content(file, state.st_size, state.st_mtime_ns, state.st_ctime_ns)}\n"


@lru_cache(maxsize=4096)
def _content(file: Path, size: int, modified: int, changed: int) -> str:
    """The cells of a sweep read the same files."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
