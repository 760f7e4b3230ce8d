"""Readers with a fault each, which the harness has to see: `FORMATS`, and what is `EXPECTED` of each."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from graphopt.core.errors import UserError

from . import judge
from .judge import Format, Said, Wrong

FORBIDDEN = Path.home() / ".fuzz_must_not_write"


def _sound() -> None: ...


def _says() -> None:
    raise UserError("give another file")


def _escapes() -> None:
    raise Said("\x1b[2J")  # as a command printed it


def _breaks() -> None:
    raise KeyError("x")


def _overflows() -> None:
    np.float64(1e300) * np.float64(1e300)


def _nests() -> None:
    _nests()


def _lies() -> None:
    raise Wrong("two ops share a name")


def _waits() -> None:
    while True:
        try:
            while True:
                pass
        except Exception:  # as a tolerant reader would
            continue


def _sticks() -> None:
    time.sleep(1000)  # as compiled code that no signal reaches: its own clock stands still


def _grows() -> None:
    np.empty(2 * judge.MEMORY, np.uint8)


def _imports() -> None:
    __import__(judge.CANARY)


def _runs() -> None:
    os.system("true")


def _writes() -> None:
    FORBIDDEN.write_text("")


def _crashes() -> None:
    os._exit(3)


def _is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)  # as by the system when its memory is full


EXPECTED = {
    _sound: "result", _says: "sentence", _escapes: "wrong", _breaks: "traceback", _overflows: "traceback",
    _crashes: "traceback", _nests: "traceback", _lies: "wrong", _sticks: "hang", _waits: "hang", _grows: "memory",
    _is_killed: "memory", _imports: "executed", _runs: "executed", _writes: "executed",
}  # fmt: skip


def _format(fault: Callable[[], None]) -> Format:
    """Sound inputs are read as they should be, others with the fault."""
    return Format(fault.__name__, lambda rng, folder: folder / ("sound" if rng.sound else "damaged"),
                  lambda place: fault() if place.name == "damaged" else None, seconds=1.0)  # fmt: skip


FORMATS = {fault.__name__: _format(fault) for fault in EXPECTED}
