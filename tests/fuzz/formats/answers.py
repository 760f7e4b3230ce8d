"""Decision files and rewriting answers: shown, compared, priced again, edited, drawn."""

import shutil
from pathlib import Path

from graphopt.decision import main

from ..judge import Format, Wrong
from ..mutate import Draw, damaged_bytes
from ..said import spoken
from .archives import damaged_archive
from .studies import ASSIGNING, arrays_of, decisions, study

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
    from graphopt.records.answer_file import load

    return load(file).op_names[0]


def draw(file: Path) -> None:
    spoken(main, ["draw", str(file), "-o", str(file.parent / "pictures")])


ANSWERS = (
    Format("decision", write_decision, show),
    Format("decision_edit", write_decision, edit),
    Format("decision_draw", write_decision, draw, share=0.05),
    Format("rewriting", write_rewriting, show_rewriting),
)
