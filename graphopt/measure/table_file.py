"""Files of measurements: NAME.jsonl, which lines are appended to, and beside it NAME.jsonl.gz, older lines, packed.

Both together are the table; the packed ones come first. Its path is always that of NAME.jsonl, which need not exist.
"""

import gzip
from pathlib import Path

from graphopt.errors import UserError
from graphopt.utils.limits import MIB, read_gzip

NAME = "measured.jsonl"  # in a study's folder
PACKED = ".gz"
BYTES = 512 * MIB  # of the lines of a packed file


def packed_path(table: Path) -> Path:
    return table.with_name(table.name + PACKED)


def is_there(table: Path) -> bool:
    """Whether there are lines, packed or not."""
    return table.is_file() or packed_path(table).is_file()


def tables_below(folder: Path) -> list[Path]:
    """Those called NAME, however deep."""
    packed = (file.with_name(NAME) for file in folder.rglob(NAME + PACKED))
    return sorted({*folder.rglob(NAME), *packed})


def packed_lines(table: Path) -> bytes:
    """Those of the packed file, nothing without one. Raises Unreadable."""
    file = packed_path(table)
    return read_gzip(file, BYTES) if file.is_file() else b""


def all_lines(table: Path) -> bytes:
    """Those of both files, whole lines only at their border. Raises UserError."""
    before = packed_lines(table)
    try:
        after = table.read_bytes() if table.is_file() else b""
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror or error}; make it readable") from error
    return before + (b"\n" if before and after and not before.endswith(b"\n") else b"") + after


def pack(lines: bytes) -> bytes:
    """Equal lines make equal bytes."""
    return gzip.compress(lines, 9, mtime=0)
