"""Plain Python before compiling, with the same results; compiled code on disk, kept and not believed when damaged."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numba.core import event
from numba.core.registry import CPUDispatcher
from toy import ToyCost, ToyTask, toy_graph

import graphopt
from graphopt.core.utils import compiled
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
CALL = """
from graphopt.core.utils import compiled
import mine

compiled.SMALL = 0
print(mine.four_times(3), bool(mine.four_times.stats.cache_hits))
"""


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


def test_what_numba_compiles_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SMALL", 0)

    @njit(cache=False, nogil=True)
    def thrice(x):  # type: ignore[no-untyped-def]
        return 3 * x

    before = compiling_seconds()
    assert thrice(2) == 6
    first = compiling_seconds()
    assert thrice(3) == 9
    assert first > before and compiling_seconds() == first


def summed(numbers: Any, records: Any, factor: float) -> Any:
    total = 0
    for i in range(len(numbers)):
        total += numbers[i]
        records[i].seen = records[i].seen or numbers[i] > 2
        numbers[i] *= factor
    return total, numbers


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the beginning of a process, whatever other tests have called."""
    monkeypatch.setattr(compiled._PlainFirst, "spent_by_all", 0.0)
    for name, module in [*sys.modules.items()]:
        for function in vars(module).values() if name.startswith("graphopt.") else ():
            if type(function) is CPUDispatcher:
                function.__class__, function.spent = compiled._PlainFirst, 0.0


@pytest.mark.usefixtures("patient")
def test_a_function_is_plain_python_until_compiling_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    function: Any = njit(cache=False, nogil=True)(summed)
    records = np.zeros(4, [("seen", np.bool_), ("size", np.int32)])
    before = compiling_seconds()
    total, doubled = function(np.arange(4), records, 2)
    assert (total, type(total), doubled.tolist()) == (6, int, [0, 2, 4, 6])
    assert records["seen"].tolist() == [False, False, False, True]
    assert not function.signatures and compiling_seconds() > before
    monkeypatch.setattr(compiled, "MOST", -1.0)  # seconds, of all functions
    assert function(np.arange(4), records, 2)[0] == 6 and len(function.signatures) == 1


@pytest.mark.usefixtures("patient")
def test_large_arguments_are_compiled_for_at_once() -> None:
    function: Any = njit(cache=False, nogil=True)(lambda numbers: numbers.sum())
    assert function(np.ones(compiled.SMALL)) == compiled.SMALL and not function.signatures
    assert function(np.ones(compiled.SMALL + 1)) == compiled.SMALL + 1 and len(function.signatures) == 1
    draws: Any = njit(cache=False, nogil=True)(lambda rng: rng.random())
    assert 0 <= draws(np.random.default_rng(0)) < 1 and len(draws.signatures) == 1


def copied(value: Any) -> Any:
    if isinstance(value, tuple):
        return compiled._like(value, map(copied, value))
    return value.copy() if isinstance(value, np.ndarray | np.void) else value


def bits(value: Any) -> Any:
    """What has to be equal."""
    if isinstance(value, tuple):
        return [bits(part) for part in value]
    if isinstance(value, np.ndarray | np.void) and value.dtype.names is not None:
        return [bits(np.asarray(value[name])) for name in value.dtype.names]  # what lies between fields is anything
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    return type(value), np.array(value).tobytes() if value is not None else None


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("task", ["fusion", "placement", "scheduling", "placement_scheduling", "joint", "recompute"])
def test_plain_python_gives_the_bits_of_compiled_code(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, and what arguments hold afterwards, of the functions that tasks with their default algorithms call."""
    plain, times = compiled._PlainFirst.__call__, dict[str, int]()

    def both(function: Any, *args: Any) -> Any:
        name = function.py_func.__qualname__
        times[name] = times.get(name, 0) + 1
        if compiled._here.plain or times[name] > 30 or compiled._numbers(args) > compiled.SMALL:
            return plain(function, *args)
        mine = copied(args)
        found, expected = plain(function, *mine), CPUDispatcher.__call__(function, *args)
        function.__class__ = compiled._PlainFirst
        assert bits(found) == bits(expected) and bits(mine) == bits(args), name
        return expected

    monkeypatch.setattr(compiled._PlainFirst, "__call__", both)
    parts = torch.nn.LayerNorm(16), torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    graphopt.optimize(torch.nn.Sequential(*parts), torch.zeros(8, 16), task=task, budget=20)
    assert times
