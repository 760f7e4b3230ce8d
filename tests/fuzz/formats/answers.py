"""Answers, loose (shown, compared, priced again, edited, drawn) and packed with their study (reported, unpacked)."""

import json
import lzma
import shutil
import zipfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.report import command as report
from graphopt.report import pack as packing
from graphopt.report.decision import main
from graphopt.run.records import packed
from graphopt.run.records.answer_file import load
from graphopt.run.records.rows import PACKED_ROWS

from ..judge import Format, Said, Wrong, spoken
from ..mutate import Draw, bomb, damaged, damaged_bytes, damaged_npz, json_text, zipped
from .studies import ASSIGNING, npz_parts, study, workshop


def beside(*names: str) -> Callable[[Draw, Path], Path]:
    """Writes a damaged answer of one of these studies beside the graphs that it is about; or, one in ten, a whole one
    beside damaged graphs."""

    def write(rng: Draw, folder: Path) -> Path:
        name = rng.choice(names)
        sound = rng.choice(sorted(study(name).rglob("decisions/*.npz")))
        shutil.copytree(study(name) / "graphs", folder / "graphs")
        shutil.copy(sound, folder / "sound.npz")
        file = Path(shutil.copy(sound, folder / "answer.npz"))
        if not rng.sound and rng.random() < 0.1:
            for graph in sorted((folder / "graphs").iterdir()):
                graph.write_bytes(damaged_bytes(rng, graph.read_bytes()))
        elif not rng.sound:
            texts = ("header", "original", "best") if name == "rewriting" else ("header", "op_names")
            file.write_bytes(damaged_npz(rng, *npz_parts(sound, texts)))
        return file

    return write


def show(file: Path) -> None:
    """show, replay, and diff with the sound one, which replays if it is that one."""
    spoken(main, "show", file, "--all")
    replayed, sound = spoken(main, "replay", file), file.parent / "sound.npz"
    if " replays: " not in replayed and file.read_bytes() == sound.read_bytes():
        raise Wrong(f"a sound answer does not replay: {replayed!r:.300}")
    spoken(main, "diff", file, sound)


def show_rewriting(file: Path) -> None:
    spoken(main, "show", file)
    spoken(main, "replay", file)


def edit(file: Path) -> None:
    """bisect, and a veto whose file must be readable and replay."""
    spoken(main, "bisect", file, "--all")
    spoken(main, "veto", file, load(file).op_names[0], "-o", file.parent / "vetoed.npz")
    again = spoken(main, "replay", file.parent / "vetoed.npz")
    if " replays: " not in again:
        raise Wrong(f"what veto wrote does not replay: {again!r:.300}")


def draw(file: Path) -> None:
    spoken(main, "draw", file, "-o", file.parent / "pictures")


ANSWERS = (
    Format("decision", beside(*ASSIGNING), show), Format("decision_edit", beside(*ASSIGNING), edit),
    Format("decision_draw", beside(*ASSIGNING), draw, share=0.05),
    Format("rewriting", beside("rewriting"), show_rewriting),
)  # fmt: skip


# --- Packed studies: their archive, what lies in it, and their rows.


Members = dict[str, bytes]


@lru_cache(maxsize=4)
def sound_pack(name: str) -> Path:
    place = workshop() / "packs" / name
    packing.pack(study(name), place)
    return place


def write_pack(rng: Draw, folder: Path) -> Path:
    place = folder / "study"
    shutil.copytree(sound_pack(rng.choice(("fusion", "keys", "rewriting"))), place)
    if not rng.sound:
        rng.choice((_rows, _archive, _member, _member, _member, _answer, _answer))(rng, place)
    return place


def _rows(rng: Draw, place: Path) -> None:
    """One line's values; or the packing."""
    file = place / PACKED_ROWS
    content = file.read_bytes()
    if rng.random() < 0.3:
        large = lzma.compress(bytes(64 << 20)) * 32 if rng.random() < 0.1 else None
        file.write_bytes(large or damaged_bytes(rng, content))
        return
    lines = lzma.decompress(content).decode().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json_text(damaged(rng, json.loads(lines[at])))
    file.write_bytes(lzma.compress("\n".join(lines).encode(errors="surrogatepass")))


def _archive(rng: Draw, place: Path) -> None:
    """The container, whose directory is at its end."""
    file = place / packed.NAME
    content = file.read_bytes()
    cut = max(0, len(content) - rng.choice((0, 100, 400)))
    large = rng.random() < 0.05
    file.write_bytes(bomb("texts.npy") if large else content[:cut] + damaged_bytes(rng, content[cut:] or content))


def _member(rng: Draw, place: Path) -> None:
    """A file in it: damaged, missing, called otherwise, or there twice."""
    members = _members(place)
    name = rng.choice(sorted(members))
    what = rng.random()
    if what < 0.1:
        members.pop(name)
    elif what < 0.25:
        other = rng.choice(("../out", "/tmp/out", "cells/../../out", "cells/x\x1b[2J", "graphs/.npz"))
        members[other] = members.pop(name)
    elif name.endswith(".json"):
        members[name] = json_text(damaged(rng, json.loads(members[name]))).encode(errors="surrogatepass")
    else:
        members[name] = damaged_bytes(rng, members[name])
    (place / packed.NAME).write_bytes(zipped(members))


def _answer(rng: Draw, place: Path) -> None:
    """An answer's header or bytes, under the digest of what they now are: so that readers come to it."""
    members = _members(place)
    name = rng.choice(sorted(name for name in members if name.startswith("answers/") and name.endswith(".json")))
    group = json.loads(members[name])
    content = name.removesuffix("json") + "bin"
    if rng.random() < 0.7:
        at = rng.randrange(len(group["values"]))
        text = json_text(damaged(rng, group["values"][at])).encode(errors="replace")
        try:
            group["values"][at] = json.loads(text, parse_int=lambda n: int(n) if len(n) < 4000 else float("inf"))
        except RecursionError:  # a nest that no digest can be made of: `_member` has such
            return
    else:
        members[content] = bytes(byte ^ (rng.random() < 0.01) for byte in members[content])
    members[name] = json.dumps(group).encode()
    file, rows = place / packed.NAME, lzma.decompress((place / PACKED_ROWS).read_bytes())
    file.write_bytes(zipped(members))
    digests = {old: packed.digest_of(*packed._answer(file, Path(name).stem, old)) for old in group["answers"]}
    for old, digest in digests.items():  # index, group, names and rows
        for member in (packed.INDEX, packed.NAMES, name):
            members[member] = members[member].replace(old.encode(), digest.encode())
        rows = rows.replace(old.encode(), digest.encode())
    file.write_bytes(zipped(members))
    (place / PACKED_ROWS).write_bytes(lzma.compress(rows))


def _members(place: Path) -> Members:
    with zipfile.ZipFile(place / packed.NAME) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    return {n.removesuffix(".xz"): lzma.decompress(c) if n.endswith(".xz") else c for n, c in parts.items()}


def read_pack(place: Path) -> None:
    """Tables and replay, some answers shown and priced again, the loose files; what one of them refuses the others may
    take, so each is tried, and the first refusal is the outcome."""
    commands: list[tuple[Any, ...]] = [(report.main, place), (report.main, place, "--replay"),
                                       (packing.main, place, place.parent / "loose", "--unpack")]  # fmt: skip
    refused: list[Exception] = []
    try:
        answers = [packed.path_of(place / packed.NAME, digest) for digest in [*packed.digests(place / packed.NAME)][:3]]
        commands += [(main, word, answer) for answer in answers for word in ("show", "replay")]
    except Unreadable as error:
        refused.append(error)
    for command in commands:
        try:
            spoken(*command)
        except Said as error:
            refused.append(error)
    if (place.parent / "out").exists() or (place.parent.parent / "out").exists():
        raise Wrong("a file outside the folder was written")
    if refused:
        raise refused[0]


PACKS = (Format("pack", write_pack, read_pack),)
