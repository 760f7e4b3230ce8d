"""Where samples of GraphNet lie: a folder of them, GraphNet's own tree, or an archive of either."""

import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from graphopt.core.errors import Unreadable
from graphopt.core.graph import GraphError
from graphopt.core.utils.limits import MIB, read_bytes

TEXT, WEIGHTS, INPUTS, FACTS = "model.py", "weight_meta.py", "input_meta.py", "graph_net.json"
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".tar.bz2")
PARTS = (TEXT, WEIGHTS, INPUTS, FACTS)
MOST_BYTES = 64 * MIB  # of one part
MOST_TOGETHER = 4096 * MIB  # of all parts of an archive, unpacked
MOST_MEMBERS = 10**6
SAMPLES = "samples"  # the folder of torch's samples in GraphNet's tree
Files = Mapping[str, bytes]  # name -> content
Samples = dict[str, Callable[[], Files]]  # name -> reader of its files


def samples_at(path: str) -> Samples:
    """Name -> reader of the files of that sample, in order of names, which are those of its folders below the place.
    Raises GraphError where there is none, or an archive is damaged."""
    place = Path(path).expanduser()
    if place.is_file() and place.name.lower().endswith(ENDINGS):
        found = _in_archive(place)
    elif place.is_dir():
        found = {_name(f.parent.relative_to(place).parts, place.name): _reader(f.parent) for f in _texts(place)}
    else:
        raise GraphError(f"{path!r} is neither a folder nor an archive ({', '.join(ENDINGS)}) of GraphNet's samples")
    if not found:
        raise GraphError(f"there is no {TEXT} below {path!r}; give a folder or an archive of GraphNet's samples")
    return dict(sorted(found.items()))


def files_at(place: Path) -> list[Path]:
    """The user's files that the samples are read from."""
    parts = (text.with_name(part) for text in _texts(place) for part in PARTS)
    return [place] if place.is_file() else [part for part in parts if part.is_file()]


def sample_at(path: str) -> Files:
    """The files of one sample: of its folder, or of a folder within an archive, `archive.tar.xz/timm/resnet200d`.
    Raises GraphError."""
    place = Path(path).expanduser()
    if place.is_dir():
        return _reader(place)()
    archive = next((parent for parent in place.parents if parent.is_file()), None)
    if archive is None:
        raise GraphError(f"there is no sample at {path!r}; give its folder, or an archive and the sample's name in it")
    name, found = place.relative_to(archive).as_posix(), samples_at(str(archive))
    if name not in found:
        raise GraphError(f"{archive} has no sample {name!r}; it has {', '.join(list(found)[:3])} and others")
    return found[name]()


def _texts(place: Path) -> list[Path]:
    inner = place / SAMPLES
    return sorted((inner if inner.is_dir() else place).rglob(TEXT))


def _name(folders: tuple[str, ...], instead: str) -> str:
    """`timm/resnet200d` of the folders of a sample."""
    after = folders[folders.index(SAMPLES) + 1 :] if SAMPLES in folders else folders
    return "/".join(after) or instead


def _reader(folder: Path) -> Callable[[], Files]:
    def read() -> Files:
        try:
            return {part: read_bytes(folder / part, MOST_BYTES) for part in PARTS if (folder / part).is_file()}
        except Unreadable as error:
            raise GraphError(str(error)) from None

    return read


def _in_archive(archive: Path) -> Samples:
    together: dict[str, dict[str, bytes]] = {}
    total = 0
    try:
        for name, size, read in _members(archive):
            path = PurePosixPath(name)
            total += size if (wanted := path.name in PARTS) else 0
            if wanted and (size > MOST_BYTES or total > MOST_TOGETHER):
                raise GraphError(f"{archive}: {name} unpacks to more than is read; unpack the archive into a folder")
            if wanted:
                together.setdefault(_name(path.parts[:-1], archive.stem), {})[path.name] = read()
    except (GraphError, MemoryError):
        raise
    except Exception as error:  # of tar, zip, and compression: any exception by a damaged file
        raise GraphError(f"{archive} is damaged ({' '.join(str(error).split())[:200]})") from None
    return {name: (lambda files=files: files) for name, files in together.items() if TEXT in files}  # type: ignore[misc]


def _members(archive: Path) -> Iterator[tuple[str, int, Callable[[], bytes]]]:
    """(path, size, reader) of every ordinary file; nothing is written to disk."""
    if archive.suffix.lower() == ".zip":
        with zipfile.ZipFile(archive) as stored:
            for member in stored.infolist()[:MOST_MEMBERS]:
                yield member.filename, member.file_size, lambda member=member: _limited(stored.open(member))  # type: ignore[misc]
        return
    with tarfile.open(archive) as packed:
        for i, entry in enumerate(packed):
            if i >= MOST_MEMBERS:
                raise GraphError(f"{archive} has more than {MOST_MEMBERS:,} members, the most that are read")
            if entry.isfile():
                yield entry.name, entry.size, lambda entry=entry: _limited(packed.extractfile(entry))  # type: ignore[misc]


def _limited(stream: object) -> bytes:
    content: bytes = stream.read(MOST_BYTES + 1)  # type: ignore[attr-defined]
    if len(content) > MOST_BYTES:
        raise ValueError("a member is larger than it says")
    return content
