"""Compiled code on disk: kept, and not believed when it is damaged."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from numba.core import event
from toy import ToyCost, ToyTask, toy_graph

from graphopt.core.utils.compiled import compiling_seconds, njit
from graphopt.problems.assignment import AssignProblem

MODULE = """
from graphopt.core.utils.compiled import njit

@njit(cache=True, nogil=True)
def twice(x):
    return 2 * x

@njit(cache=True, nogil=True)
def four_times(x):
    return twice(twice(x))
"""
CALL = "import mine; print(mine.four_times(3), bool(mine.four_times.stats.cache_hits))"


def called(folder: Path, code: str = CALL) -> str:
    """What a process says that runs code cached below the folder."""
    (folder / "mine.py").write_text(MODULE)
    os.utime(folder / "mine.py", (1, 1))  # Numba's stamp of a source is its time
    place = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": f"{folder}{os.pathsep}{os.getcwd()}"}
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **place}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    assert called(folder) == "12 False" and called(folder) == "12 True"
    return folder


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".nbi", lambda b: b[: len(b) // 2]),
        (".nbi", lambda b: b"\x80garbage"),
        (".nbc", lambda b: b""),
        (".nbc", flipped),
    ],
)
def test_damaged_code_is_compiled_again(kept: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    for file in kept.rglob(f"*{suffix}"):
        file.write_bytes(damage(file.read_bytes()))
    assert called(kept) == "12 False" and called(kept) == "12 True"


def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in the place of the folder")
    assert called(tmp_path).startswith("12")


@pytest.mark.parametrize("clock", ["perf_counter", "process_time"])
def test_compiling_is_not_on_the_clock_of_a_problem(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds of search, 90 in which a function is compiled that compiles another, and again four of search."""
    now = 1000.0
    monkeypatch.setattr(time, clock, lambda: now)
    graph = toy_graph(3)
    meter = AssignProblem(graph, ToyTask({"device": 2}), ToyCost(graph, 2), evals=5, seconds=8.0)
    if clock == "process_time":
        meter.tell_time_by("processor")
    now += 3.0
    with event.trigger_event("numba:compiler_lock"):
        now += 40.0
        with event.trigger_event("numba:compiler_lock"):
            now += 50.0
        assert meter.seconds == pytest.approx(3.0)
    now += 4.0
    assert meter.seconds == pytest.approx(7.0) and meter.open
    now += 1.5
    assert meter.seconds == pytest.approx(8.5) and not meter.open


def test_what_numba_compiles_is_noticed() -> None:
    @njit(cache=False, nogil=True)
    def thrice(x):  # type: ignore[no-untyped-def]
        return 3 * x

    before = compiling_seconds()
    assert thrice(2) == 6
    first = compiling_seconds()
    assert thrice(3) == 9
    assert first > before and compiling_seconds() == first
