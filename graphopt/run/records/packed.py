"""A packed study: all its answers and their graphs in one file, `FOLDER/answers.zip`, read in place.

An answer in it is named `FOLDER/answers.zip#DIGEST`, where a loose one is `FOLDER/CELL/decisions/NAME.npz`; DIGEST is
of its header and arrays, and checked when it is read. The zip archive (`graphopt.report.pack` writes it) holds

- `index.json`: `format`, and `answers`: digest -> hash of the graph that is decided about.
- `graphs/HASH.npz`: each graph once, as `graphopt.graphs.readers.formats.graph_files` writes it. Graphs of several
  studies may lie in an `answers.zip` of the folder above instead.
- `answers/HASH.json.xz`, `answers/HASH.bin.xz` (older files: without .xz): all answers to that graph, each distinct
  part of them once. `values`: the values of a key in headers. `arrays`: [type, shape] of arrays, whose bytes follow
  each other in the .bin. `answers`: digest -> `header` {key: place in values} and `arrays` {name: place in arrays}. So
  op names, configurations, defaults and decisions that many answers share are there once.
- `cells/CELL/...`: the cells' other files, and `names.json`: CELL/decisions/NAME.npz -> digest, to unpack.
"""

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unreadable
from graphopt.core.utils.limits import MIB, parse_json, read_member, unpack_xz

Arrays = dict[str, NDArray[Any]]
Stamp = tuple[int, int]  # of a file: numbers that change when it does

NAME, FORMAT = "answers.zip", "graphopt pack 1"
INDEX, NAMES = "index.json", "names.json"
PART_BYTES = 1024 * MIB  # of a graph, or of all answers to a graph
TEXT_BYTES = 256 * MIB
_DIGEST = re.compile("[0-9a-f]{4,16}")
_TYPE = re.compile(r"[<>|][biuf]\d{1,2}")


@dataclass(frozen=True)
class Group:
    """All answers to one graph."""

    values: list[Any]
    types: list[tuple[np.dtype[Any], tuple[int, ...], int]]  # type, shape, first byte
    content: bytes
    answers: Mapping[str, Any]

    def array(self, place: int) -> NDArray[Any]:
        dtype, shape, first = self.types[place]
        size = math.prod(shape) * dtype.itemsize
        return np.frombuffer(self.content[first : first + size], dtype).reshape(shape).copy()


def place_of(path: Path) -> tuple[Path, str] | None:
    """(pack, digest or its start) of `answers.zip#DIGEST`; None for the path of another file."""
    name, _, digest = path.name.partition("#")
    return (path.with_name(NAME), digest) if name == NAME else None


def is_digest(value: Any) -> bool:
    """Whether it can be the name of an answer, or the start of one: it becomes a part of a path."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def path_of(pack: Path, digest: str) -> Path:
    """How an answer of a pack is called."""
    return pack.with_name(f"{pack.name}#{digest}")


def label_of(path: Path) -> str:
    """A short name of an answer, for columns and pictures: of its file, or its digest."""
    place = place_of(path)
    return path.stem if place is None else place[1]


def is_there(path: Path) -> bool:
    """Whether the path is of an answer that can be looked at: a file, or one in a pack."""
    place = place_of(path)
    return path.is_file() if place is None else place[0].is_file() and place[1] in digests(place[0])


def digests(pack: Path) -> Mapping[str, str]:
    """Digest of every answer -> hash of its graph. Raises Unreadable."""
    return _index(pack, stamp(pack))


def read(pack: Path, digest: str) -> tuple[dict[str, Any], Arrays]:
    """(header, arrays) of an answer; the start of its digest will do where it is the only one. Raises Unreadable."""
    index = digests(pack)
    found = [digest] if digest in index else [full for full in index if full.startswith(digest)]
    if not is_digest(digest) or len(found) != 1:
        raise Unreadable(
            f"{pack} holds {len(index):,} answers, {len(found) if digest else 'none'} called {digest[:20]!r}: give "
            f"{NAME}#DIGEST as a row's decision says it, or at least four of its digits"
        )
    header, arrays = _answer(pack, index[found[0]], found[0])
    if digest_of(header, arrays) != found[0]:
        raise Unreadable(f"the answer {found[0]} in {pack} is damaged: its content is not what its digest says")
    return header, arrays


def graph_bytes(pack: Path, graph_hash: str) -> bytes | None:
    """The file of a graph; None when the pack has none of that hash. Raises Unreadable."""
    try:
        return read_member(pack, f"graphs/{graph_hash}.npz", PART_BYTES)
    except KeyError:
        return None


def digest_of(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Of all that an answer says. The order of the header's keys counts: that of a machine's devices matters."""
    digest = sha256(json.dumps(header).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _answer(pack: Path, graph_hash: str, digest: str) -> tuple[dict[str, Any], Arrays]:
    group = _group(pack, graph_hash, stamp(pack))
    try:
        said = group.answers[digest]
        header = {key: group.values[place] for key, place in said["header"].items()}
        arrays = {name: group.array(place) for name, place in said["arrays"].items()}
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _damaged(pack, f"the answer {digest}: {type(error).__name__} {error}") from None
    return json.loads(json.dumps(header)), arrays  # whoever changes it changes nobody else's


def stamp(pack: Path) -> Stamp:
    """Numbers that differ where the pack differs. Raises Unreadable."""
    try:
        stat = pack.stat()
    except OSError as error:
        raise Unreadable(f"{pack} cannot be read ({error.strerror or error})") from None
    return stat.st_mtime_ns, stat.st_size


@lru_cache(maxsize=4)
def _index(pack: Path, at: Stamp) -> Mapping[str, str]:
    index = json_of(pack, INDEX)
    if not isinstance(index, dict) or index.get("format") != FORMAT:
        raise Unreadable(f"{pack} is no pack of the format {FORMAT!r}: graphopt study pack writes such files")
    answers = index.get("answers")
    if (
        not isinstance(answers, dict)
        or not all(isinstance(graph, str) for graph in answers.values())
        or not all(map(is_digest, answers))
    ):
        raise _damaged(pack, "its index names no answers")
    return answers


@lru_cache(maxsize=4)
def _group(pack: Path, graph_hash: str, at: Stamp) -> Group:
    said, content = json_of(pack, f"answers/{graph_hash}.json"), _member(pack, f"answers/{graph_hash}.bin", PART_BYTES)
    try:
        values, listed, answers = said["values"], said["arrays"], said["answers"]
        types, first = [], 0
        for name, shape in listed:
            dtype, size = _dtype(name), tuple(map(_size, shape))
            types.append((dtype, size, first))
            first += math.prod(size) * dtype.itemsize
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(pack, f"answers to {graph_hash}: {type(error).__name__} {error}") from None
    if first != len(content) or not isinstance(values, list) or not isinstance(answers, dict):
        raise _damaged(pack, f"answers to {graph_hash}: {len(content):,} bytes instead of {first:,}")
    return Group(values, types, content, answers)


def _dtype(name: Any) -> np.dtype[Any]:
    if not _TYPE.fullmatch(name):
        raise ValueError(f"an array of type {name[:20]}")
    dtype: np.dtype[Any] = np.dtype(name)
    return dtype


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a shape of {str(value)[:20]}")
    return value


def json_of(pack: Path, name: str) -> Any:
    """The value in one of its parts. Raises Unreadable."""
    return parse_json(_member(pack, name, TEXT_BYTES), f"{name} of {pack}", TEXT_BYTES)


def _member(pack: Path, name: str, max_bytes: int) -> bytes:
    with suppress(KeyError):
        return unpack_xz(read_member(pack, f"{name}.xz", max_bytes), max_bytes, f"{name} of {pack}")
    try:
        return read_member(pack, name, max_bytes)
    except KeyError:
        raise _damaged(pack, f"it has no {name[:80]}") from None


def _damaged(pack: Path, why: str) -> Unreadable:
    return Unreadable(f"{pack} is damaged ({why}): take it from its source again")
