"""The process that measures ops (`graphopt.rewrite.op_worker`), as the cost model sees it: asked one op at a time."""

import json
import os
import select
import subprocess
import sys
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from graphopt.errors import UserError

# Without these, page faults of fresh allocations made one kernel read 0.86x and 1.99x in two processes.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
             "MALLOC_TOP_PAD_": "268435456"}  # fmt: skip
WORKER = "graphopt.rewrite.op_worker"
START_SECONDS = 120.0  # within which the process must have loaded torch
TRIES = 2  # an op that ends the process as often cannot be measured


class _Ended(Exception):
    """The process has gone."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """The median of blocks of runs. A block lasts `block_seconds` or is one run; after `blocks` of them, more follow
    until their relative interquartile range is at most `spread`, or the op has taken `op_seconds`.

    threads: of the library, on a CPU. limit_seconds: for one op to be answered; then its process is ended.
    """

    device: Literal["cpu", "cuda"]
    threads: int
    block_seconds: float
    blocks: int
    spread: float
    op_seconds: float
    limit_seconds: float


class OpProcess:
    """A process of its own, pinned, with a steady allocator, that stays for all ops and is begun again after a crash.

    It starts with the first question and ends with this object.
    """

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self._process: subprocess.Popen[str] | None = None

    @property
    def started(self) -> bool:
        return self._process is not None

    def ask(self, name: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds, spread, blocks. Raises UserError, with the op's name, where it cannot be measured."""
        for _ in range(TRIES):
            try:
                answer = self._answer(name, question)
            except _Ended:
                self._process = None
                continue
            if "error" in answer:
                raise UserError(f"{name} cannot be measured: {answer['error']}")
            return answer
        raise UserError(
            f"{name} cannot be measured: it ends the process that runs it, perhaps out of memory; give smaller models"
        )

    def _answer(self, name: str, question: Mapping[str, Any]) -> dict[str, Any]:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise _Ended from None
        limit = self._measuring.limit_seconds
        line = _line(process, limit)
        if line is None:
            self._process = None
            process.kill()
            raise UserError(
                f"{name} cannot be measured in measuring.limit_seconds={limit:g}; raise it, or give smaller models"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self._process = _start(self._measuring)
            weakref.finalize(self, _end, self._process)
            if _line(self._process, START_SECONDS) is None:
                self._process.kill()
                raise UserError(f"torch was not loaded in {START_SECONDS:g} s; is the machine overloaded?")
        return self._process


def _start(measuring: Measuring) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", WORKER, json.dumps(asdict(measuring))]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, **ALLOCATOR})  # fmt: skip


def _line(process: "subprocess.Popen[str]", seconds: float) -> str | None:
    """The next line; None when there is none in that time. Raises _Ended when the process has ended."""
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], seconds)[0]:
        return None
    line = process.stdout.readline()
    if not line.endswith("\n"):
        raise _Ended
    return line


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
