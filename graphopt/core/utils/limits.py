"""Readers of untrusted files: the unpacked size is limited before memory is allocated.

`read_npz`, `read_gzip` and `read_json` read whole files, `read_member` a part of a zip file, `parse_json` and
`parse_npz` bytes in memory. `max_bytes` counts unpacked bytes in memory, not bytes on disk. All raise `Unreadable`, one
sentence that names the file.
"""

import gzip
import json
import lzma
import math
import os
import re
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable

MIB = 2**20
JSON_BYTES = 1024 * MIB  # of a graph as JSON
JSON_DEPTH = 64  # objects and lists within each other
NPZ_ARRAYS = 1000

_PLAIN_KINDS = "biuf"  # truth values and numbers: no pickles, texts or records
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def read_bytes(path: Path | str, max_bytes: int) -> bytes:
    """The content of an ordinary file (a device or a pipe could go on for ever)."""
    source = Path(path)
    if not source.is_file():
        raise Unreadable(f"there is no file {source}")
    try:
        with source.open("rb") as file:
            return _all_of(file, max_bytes, str(source))
    except OSError as error:
        raise Unreadable(f"{source} cannot be read ({error.strerror or error})") from None


def read_gzip(path: Path | str, max_bytes: int) -> bytes:
    """The unpacked content of a .gz file."""
    return unpack_gzip(read_bytes(path, max_bytes), max_bytes, str(path))


def unpack_gzip(packed: bytes, max_bytes: int, source: str) -> bytes:
    """Unpacks gzip. source: name for messages."""
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as file:
            return _all_of(file, max_bytes, source)
    except Unreadable:
        raise
    except Exception as error:  # zlib, end-of-file and format errors: whatever a damaged file raises
        raise Unreadable(f"{source} is damaged ({_short(error)})") from None


def read_text(path: Path | str, max_bytes: int) -> str:
    """A file's text, packed if its name ends in .gz."""
    content = _unpacked(path, max_bytes)
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise Unreadable(f"{path} is no text") from None


def _unpacked(path: Path | str, max_bytes: int) -> bytes:
    return (read_gzip if str(path).endswith(".gz") else read_bytes)(path, max_bytes)


def read_json(path: Path | str, max_bytes: int, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None) -> Any:
    """The value in a JSON file, packed if its name ends in .gz. pairs: makes objects, as `object_pairs_hook`."""
    return parse_json(_unpacked(path, max_bytes), str(path), max_bytes, pairs)


def parse_json(
    text: bytes, source: str, max_bytes: int, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """The value of JSON text. source: name for messages."""
    if len(text) > max_bytes:
        raise _too_large(source, max_bytes)
    if depth(text) > JSON_DEPTH:
        raise Unreadable(f"{source} holds JSON nested more than {JSON_DEPTH} levels deep, more than is read here")
    try:
        return json.loads(text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"{source} is no JSON ({_short(error)})") from None


def depth(text: bytes) -> int:
    """How many objects and lists of JSON text are open at once, at most."""
    if max(text.count(b"["), text.count(b"{")) == 0:
        return 0
    codes = np.frombuffer(_STRINGS.sub(b"", text), np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    return int(np.cumsum(opened.astype(np.int32) - closed, dtype=np.int64).max(initial=0))


def read_npz(path: Path | str, max_bytes: int) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name; numbers and truth values only."""
    return parse_npz(read_bytes(path, max_bytes), str(path), max_bytes)


def parse_npz(content: bytes, source: str, max_bytes: int) -> dict[str, NDArray[Any]]:
    """The same from a file's content in memory. source: name for messages."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as stored:
            members = stored.infolist()
            _check_members(members, max_bytes, source)
            return {m.filename.removesuffix(".npy"): _array(_member(stored, m, source)) for m in members}
    except Unreadable:
        raise
    except Exception as error:  # zip, zlib and header errors: whatever a damaged file raises
        raise Unreadable(f"{source} is damaged ({_short(error)})") from None


def unpack_xz(content: bytes, max_bytes: int, source: str) -> bytes:
    """Unpacks LZMA in the format of xz. source: name for messages."""
    try:
        with lzma.LZMAFile(BytesIO(content)) as file:
            return _all_of(file, max_bytes, source)
    except Unreadable:
        raise
    except Exception as error:  # as above
        raise Unreadable(f"{source} is damaged ({_short(error)})") from None


def read_member(path: Path | str, name: str, max_bytes: int) -> bytes:
    """One part of a .zip file. Raises KeyError when there is none of that name."""
    try:
        with zipfile.ZipFile(path) as stored:
            member = stored.NameToInfo.get(name)
            if member is None:
                raise KeyError(name)
            if member.file_size > max_bytes:
                raise _too_large(f"{name} of {path}", max_bytes)
            return _member(stored, member, str(path))
    except (Unreadable, KeyError):
        raise
    except Exception as error:  # as above
        raise Unreadable(f"{path} is damaged ({_short(error)})") from None


def member_names(path: Path | str) -> list[str]:
    """Names of the parts of a .zip file."""
    try:
        with zipfile.ZipFile(path) as stored:
            return stored.namelist()
    except Exception as error:  # as above
        raise Unreadable(f"{path} is damaged ({_short(error)})") from None


def check_zip(path: Path | str, max_bytes: int, *, whole: bool = False) -> None:
    """Raises Unreadable unless the file is a zip archive whose content is no larger. For readers of their own. whole:
    unless its check sums agree too, which not all readers look at."""
    try:
        with zipfile.ZipFile(path) as stored:
            _check_members(stored.infolist(), max_bytes, str(path))
            if whole and stored.testzip() is not None:
                raise zipfile.BadZipFile("a check sum does not agree")
    except Unreadable:
        raise
    except Exception as error:  # zip, zlib and header errors: whatever a damaged file raises
        raise Unreadable(f"{path} is damaged ({_short(error)})") from None


def _check_members(members: list[zipfile.ZipInfo], max_bytes: int, source: str) -> None:
    """The sum of the sizes that the entries state is a bound where no member is read beyond its own."""
    if sum(member.file_size for member in members) > max_bytes:
        raise _too_large(source, max_bytes)
    if len(members) > NPZ_ARRAYS or len({member.filename for member in members}) < len(members):
        raise Unreadable(f"{source} is damaged (more than {NPZ_ARRAYS:,} parts, or two of one name)")


def _member(stored: zipfile.ZipFile, member: zipfile.ZipInfo, source: str) -> bytes:
    """Of packings only those that are unpacked in steps of a limited size."""
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise Unreadable(f"{source} is packed in a way that is not read here (method {member.compress_type})")
    with stored.open(member) as file:
        return _all_of(file, member.file_size, source)


def _array(content: bytes) -> NDArray[Any]:
    """The array of an .npy file. Its header is believed only as far as the bytes that follow it."""
    file = BytesIO(content)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = header(file)
    if dtype.kind not in _PLAIN_KINDS or min(shape, default=0) < 0:
        raise ValueError(f"an array of type {dtype} and shape {shape}")
    data = content[file.tell() :]
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of shape {shape} in {len(data):,} bytes")
    array = np.frombuffer(data, dtype).copy()
    return array.reshape(shape[::-1]).T if by_column else array.reshape(shape)


def _all_of(file: IO[bytes] | gzip.GzipFile | lzma.LZMAFile, max_bytes: int, source: str) -> bytes:
    """The content of a stream, read in parts: a reader allocates, or unpacks, as much as one call asks for."""
    parts, left = [], max_bytes + 1
    while left and (part := file.read(min(left, MIB))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise _too_large(source, max_bytes)
    return b"".join(parts)


def machine_memory() -> int:
    """Bytes of this machine's main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _too_large(source: str, max_bytes: int) -> Unreadable:
    return Unreadable(f"{source} holds more than {_size(max_bytes)}, the most that is read of such a file")


def _size(count: int) -> str:
    return f"{count // MIB:,} MiB" if count >= MIB else f"{count:,} bytes"


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
