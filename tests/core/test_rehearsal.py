"""What would end this process ends a copy of it, and is a sentence."""

import os
import signal
from collections.abc import Callable

import pytest

from graphopt.core.utils import process
from graphopt.core.utils.process import CopyCrash, rehearse

MEMORY = 2**30


def dies() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def never_ends() -> None:
    while True:
        pass


@pytest.mark.parametrize(("action", "why"), [(dies, "SIGSEGV"), (never_ends, "SIGXCPU")])
def test_a_copy_that_dies_is_a_sentence(action: Callable[[], None], why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CPU_SECONDS", 1)
    with pytest.raises(CopyCrash, match=rf"^reading x ends the process that tries \({why}\)"):
        rehearse(action, MEMORY, "reading x")


def test_a_copy_changes_nothing_here_and_keeps_its_exceptions() -> None:
    done: list[int] = []

    def fails() -> None:
        done.append(1)
        raise KeyError("said again by whoever does it here")

    rehearse(fails, MEMORY, "reading x")
    assert done == []


def test_a_copy_has_no_more_memory_than_it_may(tmp_path: os.PathLike[str]) -> None:
    def takes() -> None:
        bytearray(2 * MEMORY)
        open(os.path.join(tmp_path, "had it"), "w").close()

    rehearse(takes, MEMORY, "reading x")
    assert os.listdir(tmp_path) == []
    rehearse(takes, 4 * MEMORY, "reading x")
    assert os.listdir(tmp_path) == ["had it"]
