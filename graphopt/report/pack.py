"""Makes a finished study small enough to be kept: one file of answers, one of rows, and its tables.

`graphopt study pack outputs/STUDY results/STUDY` writes a folder that `report` and `decision` read as they read the
study itself; `--unpack` writes the loose files again. Both read back all that they wrote, and leave nothing behind
where a file differs. The packed folder holds

- `answers.zip`: all answers, graphs, configurations and curves (`graphopt.run.records.packed`).
- `rows.jsonl.xz`: the rows of all cells; `decision` says `answers.zip#DIGEST`.
- `README.md`: the study's pages after each other, first about.md, then the tables.
- `measured.jsonl.gz`: what was measured, which `cost=inductor` and its like read where `measured.jsonl` is named.
- what else lies in the study's folder (measured ops) as it is, but no .csv: `graphopt report` writes tables again.

Left out is what no number needs: checkpoints (`ckpt/`), rewritten models (`models/`), pictures and locks.
"""

import argparse
import json
import lzma
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import UserError, writing
from graphopt.core.utils.limits import MIB, member_names, read_member
from graphopt.core.utils.terminal import Bar, say
from graphopt.core.utils.whole import whole_folder
from graphopt.hardware.measure import price_table
from graphopt.run.records import packed
from graphopt.run.records.answer_file import copy, read_answer
from graphopt.run.records.rows import PACKED_ROWS, ROWS, Row, as_lines, lines, parse

LEFT_OUT = ("ckpt", "models", "pictures")
PAGE, FIRST = "README.md", ("README.md", "about.md")  # the page of a packed study, and its names before
NOT_OWN = (packed.NAME, PACKED_ROWS, "multirun.yaml")  # in a study's folder
FILE_BYTES = 1024 * MIB  # of a cell's other file
_EPOCH = (1980, 1, 1, 0, 0, 0)  # of all parts: equal studies make equal packs
Array = tuple[str, tuple[int, ...], bytes]  # type, shape and content
Names = dict[str, str]  # CELL/decisions/NAME.npz -> digest


@dataclass(frozen=True)
class _Group:
    """The answers to one graph; distinct values and arrays have numbers in the order in which they came."""

    values: dict[str, int] = field(default_factory=dict)
    arrays: dict[Array, int] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)

    def add(self, digest: str, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        texts = {key: json.dumps(value) for key, value in header.items()}
        contents = {name: _content(array) for name, array in arrays.items()}
        self.answers[digest] = {
            "header": {key: self.values.setdefault(text, len(self.values)) for key, text in texts.items()},
            "arrays": {name: self.arrays.setdefault(one, len(self.arrays)) for name, one in contents.items()},
        }

    def text(self) -> str:
        """The content of .json."""
        arrays, values = [[dtype, shape] for dtype, shape, _ in self.arrays], [*map(json.loads, self.values)]
        return json.dumps({"values": values, "arrays": arrays, "answers": self.answers})


def _content(array: NDArray[Any]) -> Array:
    return array.dtype.str, array.shape, array.tobytes()


def pack(study: Path, target: Path) -> None:
    """Packs a study's folder. Raises UserError when it is none, or does not come back as it was."""
    cells = sorted(file.parent for file in study.glob("*/config.yaml"))
    if not cells:
        raise UserError(f"{study} is no study: it holds no folder with a config.yaml; give outputs/STUDY")

    def fill(folder: Path) -> None:
        names = _write_answers(study, cells, folder / packed.NAME)
        rows = [_renamed(row, lambda name: f"{packed.NAME}#{names[name]}") for cell in cells for row in _rows_of(cell)]
        (folder / PACKED_ROWS).write_bytes(lzma.compress(as_lines(rows).encode()))
        _write_own_files(study, folder, small=True)
        _check(study, folder)

    _filled(target, fill)


def unpack(study: Path, target: Path) -> None:
    """Writes the loose files of a packed study. Raises UserError when it is none, or does not come back as it was."""
    if not (study / packed.NAME).is_file():
        raise UserError(f"{study} is no packed study: it holds no {packed.NAME}")

    def fill(folder: Path) -> None:
        names = _names(study / packed.NAME)
        with Bar("unpack", len(names)) as bar:
            for name, digest in names.items():
                copy(packed.path_of(study / packed.NAME, digest), _inside(folder, name))
                bar.step(name)
        for name, content in _other_parts(study / packed.NAME):
            _write(_inside(folder, name), content)
        for cell, rows in _rows_by_cell(study, names).items():
            _write(_inside(folder, f"{cell}/{ROWS}"), as_lines(rows).encode())
        _write_own_files(study, folder, small=False)
        _check(folder, study)

    _filled(target, fill)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _filled(target: Path, fill: Callable[[Path], None]) -> None:
    """Makes a folder, all or nothing."""
    if target.exists():
        raise UserError(f"{target} exists: give a folder that is not there yet, or move that one away")
    with writing(target), whole_folder(target.absolute()) as part:
        fill(part)


def _write_answers(study: Path, cells: Sequence[Path], target: Path) -> Names:
    """Writes answers.zip; returns which answer is which file."""
    groups: dict[str, _Group] = defaultdict(_Group)
    names: Names = {}
    files = [file for cell in cells for file in sorted(cell.glob("decisions/*.npz"))]
    with Bar("pack", len(files)) as bar:
        for file in files:
            header, arrays = read_answer(file)
            digest = names[str(file.relative_to(study))] = packed.digest_of(header, arrays)
            groups[header["graph"]["hash"]].add(digest, header, arrays)
            bar.step(file.name)
    with zipfile.ZipFile(target, "w") as archive:
        graph_of = {digest: graph for graph, group in sorted(groups.items()) for digest in group.answers}
        _add(archive, packed.INDEX, json.dumps({"format": packed.FORMAT, "answers": graph_of}))
        for graph, group in sorted(groups.items()):
            content = b"".join(content for _, _, content in group.arrays)
            _add(archive, f"answers/{graph}.json.xz", lzma.compress(group.text().encode()))
            _add(archive, f"answers/{graph}.bin.xz", lzma.compress(content))
        for name, file in _other_files(study, cells):
            _add(archive, name, file.read_bytes())
        _add(archive, packed.NAMES, json.dumps(names))
    return names


def _add(archive: zipfile.ZipFile, name: str, content: str | bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED, 9)


def _other_files(study: Path, cells: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """(name in the pack, file) of all but answers and rows: graphs, and the cells' further files."""
    yield from ((f"graphs/{file.name}", file) for file in sorted((study / "graphs").glob("*.npz")))
    for cell in cells:
        for file in sorted(file for file in cell.rglob("*") if file.is_file()):
            name = file.relative_to(cell)
            taken = file.name == ROWS or (name.parts[0] == "decisions" and file.suffix == ".npz")
            if not taken and name.parts[0] not in LEFT_OUT and not file.name.startswith("."):
                yield f"cells/{file.relative_to(study)}", file


def _other_parts(pack: Path) -> Iterator[tuple[str, bytes]]:
    """(path below the study, content) of the same, from a pack and the graphs that it shares with its neighbours."""
    own, shared = member_names(pack), pack.parent.parent / packed.NAME
    for name in own:
        if name.startswith(("graphs/", "cells/")):
            yield name.removeprefix("cells/"), read_member(pack, name, FILE_BYTES)
    decided = {f"graphs/{graph}.npz" for graph in packed.digests(pack).values()}.difference(own)
    for name in sorted(decided.intersection(member_names(shared) if shared.is_file() else ())):
        yield name, read_member(shared, name, FILE_BYTES)


def _own_files(study: Path) -> dict[str, bytes]:
    """Name -> content of kept files in the study's folder itself: other files, measured times as one table, and all
    pages as one."""
    found = [f for f in sorted(study.iterdir()) if f.is_file() and f.name not in NOT_OWN and not f.name.startswith(".")]
    kept = {file.name: file.read_bytes() for file in found if file.suffix not in (".md", ".csv")}
    kept.pop(price_table.NAME + price_table.PACKED, None)
    if price_table.is_there(study / price_table.NAME):
        kept[price_table.NAME] = price_table.all_lines(study / price_table.NAME)
    pages = sorted((file for file in found if file.suffix == ".md"), key=lambda file: file.name not in FIRST)
    text = "\n\n".join(file.read_text().strip() for file in pages)
    return kept | ({PAGE: f"{text}\n".encode()} if text else {})


def _write_own_files(study: Path, target: Path, *, small: bool) -> None:
    for name, content in _own_files(study).items():
        if small and name == price_table.NAME:
            price_table.packed_path(target / name).write_bytes(price_table.pack(content))
        else:
            (target / name).write_bytes(content)


def _rows_of(cell: Path) -> list[Row]:
    """Its rows, with decisions as paths below the study. Raises UserError where one would not come back."""
    rows = []
    for line in lines(cell / ROWS):
        row = parse(line)
        if row is None or row.get("cell") != cell.name:
            raise UserError(f"{cell / ROWS} has a line that is no row of this cell: run the cell again, then pack")
        rows.append(_renamed(row, lambda name: f"{cell.name}/{name}"))
    return rows


def _rows_by_cell(study: Path, names: Names) -> dict[str, list[Row]]:
    """The rows of a packed study as its cells had them."""
    file_of = {(name.split("/")[0], digest): name.partition("/")[2] for name, digest in names.items()}
    cells: dict[str, list[Row]] = defaultdict(list)
    for row in map(parse, lines(study / PACKED_ROWS)):
        if row is None:
            raise UserError(f"{study / PACKED_ROWS} is damaged: it has a line that is no row")
        cell = str(row.get("cell"))
        cells[cell].append(_renamed(row, lambda name, cell=cell: file_of[cell, name.partition("#")[2]]))  # type: ignore[misc]
    return cells


def _renamed(row: Row, name_of: Callable[[str], str]) -> Row:
    """The row, its answer called otherwise."""
    try:
        return {**row, "decision": name_of(row["decision"])} if row.get("decision") else row
    except KeyError:
        raise UserError(f"a row's answer {row['decision']} is missing: solve {row.get('graph')} again") from None


def _names(pack: Path) -> Names:
    """Which answer is which file, those about one graph after each other: they are read together."""
    names = packed.json_of(pack, packed.NAMES)
    if not isinstance(names, dict) or not all(map(packed.is_digest, names.values())):
        raise UserError(f"{pack} is damaged: its {packed.NAMES} names no answers")
    graph_of = packed.digests(pack)
    return dict(sorted(names.items(), key=lambda item: graph_of.get(item[1], "")))


def _inside(folder: Path, name: str) -> Path:
    """A path that a pack names, if it is below the folder."""
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise UserError(f"the pack names a file outside its folder, {name[:80]}: it is not unpacked")
    return path


def _check(loose: Path, small: Path) -> None:
    """Raises UserError unless a packed study has the content of the loose one, by the usual readers."""
    names = _names(small / packed.NAME)
    with Bar("check", len(names)) as bar:
        for name, digest in names.items():
            if not _equal(read_answer(loose / name), read_answer(packed.path_of(small / packed.NAME, digest))):
                raise UserError(f"{loose / name} does not come back from its pack as it was")
            bar.step(name)
    for name, content in _other_parts(small / packed.NAME):
        if (loose / name).read_bytes() != content:
            raise UserError(f"{loose / name} does not come back from its pack as it was")
    for cell, rows in _rows_by_cell(small, names).items():
        if rows != [parse(line) for line in lines(loose / cell / ROWS)]:
            raise UserError(f"the rows of {loose / cell} do not come back from their pack as they were")
    if _own_files(loose) != _own_files(small):
        raise UserError(f"the tables and texts of {loose} do not come back from their pack as they were")


def _equal(a: tuple[Any, dict[str, NDArray[Any]]], b: tuple[Any, dict[str, NDArray[Any]]]) -> bool:
    """Whether headers and arrays are the same, with the order of keys and the types."""
    same = json.dumps(a[0]) == json.dumps(b[0]) and list(a[1]) == list(b[1])
    return same and all(_content(np.ascontiguousarray(a[1][name])) == _content(b[1][name]) for name in a[1])


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="graphopt study pack", description="Packs a finished study into a few small files, or unpacks it."
    )
    result.add_argument("study", type=Path, metavar="STUDY", help="the folder to read, such as outputs/STUDY")
    result.add_argument("target", type=Path, metavar="TARGET", help="the folder to make, such as results/STUDY")
    result.add_argument("--unpack", action="store_true", help="from a packed study to loose files")
    return result


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    (unpack if args.unpack else pack)(args.study, args.target)
    size = sum(file.stat().st_size for file in args.target.rglob("*") if file.is_file())
    say(f"wrote {args.target}: {size / MIB:.1f} MiB")
    return 0
