"""What would end this process ends a copy of it, and is a sentence; how often Python looks for reference cycles."""

import gc
import os
import signal
from collections.abc import Callable

import pytest

from graphopt.core.utils import process
from graphopt.core.utils.process import SELDOM, CopyCrash, rehearse, seldom_collected

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


@pytest.mark.parametrize(("own", "meanwhile"), [(700, SELDOM), (0, 0), (SELDOM + 1, SELDOM + 1)])
def test_cycles_are_looked_for_as_before_afterwards(own: int, meanwhile: int) -> None:
    before = gc.get_threshold()
    gc.set_threshold(own, 10, 10)
    try:
        with pytest.raises(KeyError), seldom_collected():
            assert gc.get_threshold() == (meanwhile, 10, 10)
            raise KeyError
        assert gc.get_threshold() == (own, 10, 10)
    finally:
        gc.set_threshold(*before)
