"""Answers, loose (shown, compared, priced again, edited, drawn) and packed with their study (reported, unpacked)."""

import io
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
from graphopt.report import decision
from graphopt.report import pack as packing
from graphopt.report.decision import main
from graphopt.run.records import packed
from graphopt.run.records.rows import PACKED_ROWS

from ..judge import Format, Said, Wrong, spoken
from ..mutate import Draw, damaged, damaged_bytes, json_text
from .archives import bomb, damaged_archive
from .studies import ASSIGNING, arrays_of, decisions, study, workshop

HEADER = ("header", "op_names")
PROGRAMS = ("header", "original", "best")


def write_decision(rng: Draw, folder: Path) -> Path:
    """A damaged answer (or, one in ten, a whole one with a damaged graph) beside the graph that it is about."""
    name = rng.choice(list(ASSIGNING))
    sound = rng.choice(decisions(name))
    return _beside(rng, folder, study(name), sound, HEADER)


def write_rewriting(rng: Draw, folder: Path) -> Path:
    return _beside(rng, folder, study("rewriting"), rng.choice(decisions("rewriting")), PROGRAMS)


def _beside(rng: Draw, folder: Path, place: Path, sound: Path, texts: tuple[str, ...]) -> Path:
    shutil.copytree(place / "graphs", folder / "graphs")
    shutil.copy(sound, folder / "sound.npz")
    arrays, values = arrays_of(sound, texts)
    file = folder / "answer.npz"
    if rng.sound:
        shutil.copy(sound, file)
    elif rng.random() < 0.1:
        shutil.copy(sound, file)
        for graph in (folder / "graphs").iterdir():
            graph.write_bytes(damaged_bytes(rng, graph.read_bytes()))
    else:
        file.write_bytes(damaged_archive(rng, dict(arrays), values))
    return file


def show(file: Path) -> None:
    """show, replay and diff with the sound one, which replays if it is that one."""
    shown = spoken(main, ["show", str(file), "--all"])
    replayed = spoken(main, ["replay", str(file)])
    if not shown or not replayed:
        raise Wrong("nothing is shown")
    if " replays: " not in replayed and file.read_bytes() == (file.parent / "sound.npz").read_bytes():
        raise Wrong(f"a sound answer does not replay: {replayed!r:.300}")
    spoken(main, ["diff", str(file), str(file.parent / "sound.npz")])


def show_rewriting(file: Path) -> None:
    shown, replayed = spoken(main, ["show", str(file)]), spoken(main, ["replay", str(file)])
    if not shown or not replayed:
        raise Wrong("nothing is shown")


def edit(file: Path) -> None:
    """bisect, and a veto whose file must be readable and replay."""
    spoken(main, ["bisect", str(file), "--all"])
    first = _some_op(file)
    spoken(main, ["veto", str(file), first, "-o", str(file.parent / "vetoed.npz")])
    again = spoken(main, ["replay", str(file.parent / "vetoed.npz")])
    if " replays: " not in again:
        raise Wrong(f"what veto wrote does not replay: {again!r:.300}")


def _some_op(file: Path) -> str:
    from graphopt.run.records.answer_file import load

    return load(file).op_names[0]


def draw(file: Path) -> None:
    spoken(main, ["draw", str(file), "-o", str(file.parent / "pictures")])


ANSWERS = (
    Format("decision", write_decision, show),
    Format("decision_edit", write_decision, edit),
    Format("decision_draw", write_decision, draw, share=0.05),
    Format("rewriting", write_rewriting, show_rewriting),
)


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
    if rng.random() < 0.3:
        file.write_bytes(
            lzma.compress(bytes(64 << 20)) * 32 if rng.random() < 0.1 else damaged_bytes(rng, file.read_bytes())
        )
        return
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json_text(damaged(rng, json.loads(lines[at])))
    file.write_bytes(lzma.compress("\n".join(lines).encode(errors="surrogatepass")))


def _archive(rng: Draw, place: Path) -> None:
    """The container, whose directory is at its end."""
    file = place / packed.NAME
    content = file.read_bytes()
    cut = max(0, len(content) - rng.choice((0, 100, 400)))
    what = rng.random()
    file.write_bytes(bomb() if what < 0.05 else content[:cut] + damaged_bytes(rng, content[cut:] or content))


def _member(rng: Draw, place: Path) -> None:
    """A file in it: damaged, missing, called otherwise, or there twice."""
    members = _members(place)
    name = rng.choice(sorted(members))
    what = rng.random()
    if what < 0.1:
        members.pop(name)
    elif what < 0.25:
        members[rng.choice(("../out", "/tmp/out", "cells/../../out", "cells/x\x1b[2J", "graphs/.npz"))] = members.pop(
            name
        )
    elif name.endswith(".json"):
        members[name] = json_text(damaged(rng, json.loads(members[name]))).encode(errors="surrogatepass")
    else:
        members[name] = damaged_bytes(rng, members[name])
    _write(place, members)


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
            group["values"][at] = json.loads(text, parse_int=_few)
        except RecursionError:  # a nest that no digest can be made of: `_member` has such
            return
    else:
        members[content] = bytes(byte ^ (rng.random() < 0.01) for byte in members[content])
    members[name] = json.dumps(group).encode()
    _write(place, members)
    _digest_again(place, name)


def _few(digits: str) -> float:
    return int(digits) if len(digits) < 4000 else float("inf")


def _digest_again(place: Path, name: str) -> None:
    """Index, group, names and rows call each answer by the digest that it has now."""
    members, new = _members(place), {}
    group = json.loads(members[name])
    for digest in group["answers"]:
        header, arrays = packed._answer(place / packed.NAME, Path(name).stem, digest)
        new[digest] = packed.digest_of(header, arrays)
    for old, digest in new.items():
        for member in (packed.INDEX, packed.NAMES, name):
            members[member] = members[member].replace(old.encode(), digest.encode())
    _write(place, members)
    text = lzma.decompress((place / PACKED_ROWS).read_bytes())
    for old, digest in new.items():
        text = text.replace(old.encode(), digest.encode())
    (place / PACKED_ROWS).write_bytes(lzma.compress(text))


def _members(place: Path) -> Members:
    with zipfile.ZipFile(place / packed.NAME) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    return {n.removesuffix(".xz"): lzma.decompress(c) if n.endswith(".xz") else c for n, c in parts.items()}


def _write(place: Path, members: Members) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    (place / packed.NAME).write_bytes(buffer.getvalue())


def read_pack(place: Path) -> None:
    """Tables and replay, all answers shown and priced again, the loose files; what one of them refuses the others may
    take, so each is tried, and the first refusal is the outcome."""
    commands: list[tuple[Callable[[Any], int], list[str]]] = [
        (report.main, [str(place)]), (report.main, [str(place), "--replay"]),
        (packing.main, [str(place), str(place.parent / "loose"), "--unpack"]),
    ]  # fmt: skip
    refused: list[Exception] = []
    for digest in [*_digests(place, refused)][:3]:
        path = str(packed.path_of(place / packed.NAME, digest))
        commands += [(decision.main, ["show", path]), (decision.main, ["replay", path])]
    for command, words in commands:
        try:
            if not spoken(command, words):
                raise Wrong(f"{words} says nothing")
        except Said as error:
            refused.append(error)
    if (place.parent / "out").exists() or (place.parent.parent / "out").exists():
        raise Wrong("a file outside the folder was written")
    if refused:
        raise refused[0]


def _digests(place: Path, refused: list[Exception]) -> list[str]:
    try:
        return list(packed.digests(place / packed.NAME))
    except Unreadable as error:
        refused.append(error)
        return []


PACKS = (Format("pack", write_pack, read_pack),)
