"""Damaged inputs of every format end in a sentence or a right result; and the harness sees what does not."""

import multiprocessing
import os
import sys
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from graphopt.core.errors import UserError

from . import judge
from .formats import FORMATS
from .judge import BAD, Format, Said, Wrong
from .mutate import Draw, damaged, gzip_bomb, json_text
from .runner import Worker, run_all

FEW, SOME, MANY = 20, 100, 3000
DEAR = frozenset({"checkpoint", "command", "config", "decision", "decision_draw", "graph", "outputs", "rules"})


def failures(cases: Mapping[str, int]) -> list[str]:
    found = run_all({name: range(round(count * FORMATS[name].share)) for name, count in cases.items()})
    return [f"--one {name} {seed}: {outcome}" for name, seed, outcome in found if outcome.kind in BAD]


@pytest.mark.timeout(900)
def test_damaged_inputs_end_in_a_sentence_or_a_right_result() -> None:
    """Many of every format that is read in some hundredths of a second, a few of the others, in one process that
    imports and compiles once."""
    assert failures({name: FEW if name in DEAR else SOME for name in tuple(FORMATS)}) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", tuple(FORMATS))
def test_thousands_of_damaged_inputs(name: str) -> None:
    assert failures({name: MANY}) == []


# -- the harness itself --


def _empty(rng: Draw, folder: Path) -> Path:
    return folder


def _sound(place: Path) -> None: ...


def _says(place: Path) -> None:
    raise UserError("give another file")


def _escapes(place: Path) -> None:
    raise Said("\x1b[2J")  # as a command printed it


def _breaks(place: Path) -> None:
    raise KeyError("x")


def _overflows(place: Path) -> None:
    np.float64(1e300) * np.float64(1e300)


def _nests(place: Path) -> None:
    _nests(place)


def _lies(place: Path) -> None:
    raise Wrong("two ops share a name")


def _waits(place: Path) -> None:
    while True:
        try:
            while True:
                pass
        except Exception:  # as a tolerant reader would
            continue


def _grows(place: Path) -> None:
    np.empty(2 * judge.MEMORY, np.uint8)


def _imports(place: Path) -> None:
    __import__(judge.CANARY)


def _runs(place: Path) -> None:
    os.system("true")


def _writes(place: Path) -> None:
    with open(Path.home() / ".fuzz_must_not_write", "w"):
        pass


EXPECTED = {
    _sound: "result", _says: "sentence", _escapes: "wrong", _breaks: "traceback", _overflows: "traceback",
    _nests: "traceback", _lies: "wrong", _waits: "hang", _grows: "memory", _imports: "executed", _runs: "executed",
    _writes: "executed",
}  # fmt: skip


def _judge_all(folder: str, path: list[str], answers: "multiprocessing.Queue[list[str]]") -> None:
    sys.path[:] = path
    judge.SECONDS = 2.0  # type: ignore[assignment]
    judge.guard()
    found = [judge.judged(Format("fake", _empty, read), 0, Path(folder)) for read in EXPECTED]
    answers.put([outcome.kind for outcome in found])


def test_the_harness_tells_outcomes_apart(tmp_path: Path) -> None:
    """In a process of its own: limits and watches stay for its life."""
    spawn = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[list[str]] = spawn.Queue()
    process = spawn.Process(target=_judge_all, args=(str(tmp_path), sys.path, answers))
    process.start()
    found = answers.get()
    process.join()
    assert dict(zip((read.__name__ for read in EXPECTED), found)) == {r.__name__: kind for r, kind in EXPECTED.items()}
    (Path.home() / ".fuzz_must_not_write").unlink(missing_ok=True)


def test_a_worker_that_cannot_start_is_a_sentence() -> None:
    with pytest.raises(RuntimeError, match="died before its first answer"):
        Worker(["no such format"])


def _inputs(name: str, folder: Path) -> Iterator[bytes]:
    for seed in range(30):
        place = folder / f"{name}{seed}"
        place.mkdir(parents=True)
        found = FORMATS[name].write(Draw(name, seed), place)
        yield found.read_bytes() if found.is_file() else b"".join(f.read_bytes() for f in sorted(found.iterdir()))


@pytest.mark.parametrize("name", ["stg", "lifetimes", "onnx", "rules"])
def test_a_seed_makes_the_same_input_and_others_make_others(name: str, tmp_path: Path) -> None:
    first, again = (list(_inputs(name, tmp_path / side)) for side in ("a", "b"))
    assert first == again
    assert len(set(first)) > 20


def test_damage_leaves_the_original_alone_and_is_small() -> None:
    sound = {"a": [1, 2, {"b": "x"}], "c": None}
    many = {json_text(damaged(Draw("d", seed), sound))[:200] for seed in range(200)}
    assert sound == {"a": [1, 2, {"b": "x"}], "c": None} and len(many) > 100


def test_a_bomb_is_small_until_it_is_unpacked() -> None:
    bomb = gzip_bomb(64)
    assert len(bomb) < 1 << 17
    assert len(zlib.decompressobj(-15).decompress(bomb[10:])) == 64 << 20
