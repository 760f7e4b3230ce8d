"""The process that measures ops (`graphopt.measure.op_worker`), as the cost model sees it: asked one op at a time."""

import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from graphopt.errors import Unmeasured, UserError
from graphopt.utils.channel import is_measurement

# Without these, page faults of fresh allocations made one kernel read 0.86x and 1.99x in two processes.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184",
             "MALLOC_TOP_PAD_": "268435456"}  # fmt: skip
WORKER = "graphopt.measure.op_worker"
START_SECONDS = 120.0  # within which the process must have loaded torch
TRIES = 2  # an op that ends the process as often cannot be measured
MOST_GIVEN_UP = 5  # ops in a row that ended the process, or starts that failed: then it is not the ops
ANSWER_BYTES = 1 << 16  # of a line at most


class _Ended(Exception):
    """The process has gone, or says what nobody asked."""


class _Late(Exception):
    """The process has not answered in time."""


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

    It starts with the first request and ends with this object. An op that could not be measured is not tried again.
    """

    def __init__(self, measuring: Measuring) -> None:
        self._measuring = measuring
        self._worker: _Worker | None = None
        self._refused: dict[str, str] = {}  # op -> why it cannot be measured
        self._given_up = 0  # ops in a row that ended the process

    def ask(self, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
        """Seconds, spread, blocks. Raises Unmeasured, with the op's name, where it cannot be measured, and UserError
        where nothing can."""
        if name not in self._refused:
            answer = self._tried(name, request)
            if answer is not None:
                self._given_up = 0
                return answer
        raise Unmeasured(f"{name} cannot be measured{self._refused[name]}")

    def _tried(self, name: str, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer, or None and the reason in `_refused`."""
        limit = self._measuring.limit_seconds
        for _ in range(TRIES):
            worker = self._running()
            try:
                answer = worker.ask(request, limit)
            except _Ended:
                self._discard()
                continue
            except _Late:
                self._discard()
                self._refused[name] = f" in measuring.limit_seconds={limit:g}; raise it, or give smaller models"
                return None
            if "error" not in answer:
                return answer
            self._refused[name] = f": {answer['error']}"
            return None
        self._given_up += 1
        if self._given_up >= MOST_GIVEN_UP:
            raise UserError(
                f"the process that measures ops ended with each of {self._given_up} ops in a row, the last {name}; "
                "is there too little memory?"
            )
        self._refused[name] = ": it ends the process that runs it, perhaps out of memory; give smaller models"
        return None

    def _running(self) -> "_Worker":
        if self._worker is not None and self._worker.gone:
            self._discard()
        for _ in range(TRIES):
            if self._worker is None:
                self._worker = _Worker(self._measuring)
                weakref.finalize(self, self._worker.end)
            try:
                self._worker.await_start()
                return self._worker
            except _Ended:
                self._discard()
            except _Late:
                self._discard()
                raise UserError(f"torch was not loaded in {START_SECONDS:g} s; is the machine overloaded?") from None
        raise UserError(
            "the process that measures ops ends before it has begun; what it says stands above "
            f"(python -m {WORKER} is started with {sys.executable})"
        )

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None


class _Worker:
    """One process and two pipes that nobody else knows: what libraries print there goes to standard error."""

    def __init__(self, measuring: Measuring) -> None:
        theirs, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        command = [sys.executable, "-m", WORKER, json.dumps(asdict(measuring)), str(theirs), str(answers)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs, answers),
                env={**os.environ, **ALLOCATOR},
            )  # fmt: skip
        except OSError as error:
            self._close()
            raise UserError(f"the process that measures ops cannot be started: {error.strerror or error}") from error
        finally:
            os.close(theirs)
            os.close(answers)
        os.set_blocking(self._requests, False)
        self._number, self._ready, self._ended = 0, False, False
        self._begun = b""  # of a line whose end has not come yet

    def await_start(self) -> None:
        """Raises _Ended, _Late."""
        if not self._ready:
            self._answer(0, time.monotonic() + START_SECONDS)
            self._ready = True

    @property
    def gone(self) -> bool:
        """Ended, by itself or by others."""
        return self.process.poll() is not None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """A measurement or {"error"}. Raises _Ended, _Late."""
        self._number += 1
        deadline = time.monotonic() + seconds
        self._send(json.dumps({**request, "id": self._number}).encode() + b"\n", deadline)
        answer = self._answer(self._number, deadline)
        if isinstance(answer.get("error"), str):
            return {"error": answer["error"]}
        if not is_measurement(answer):
            return {"error": f"{str(answer)[:200]} is no measurement"}
        return {key: answer[key] for key in ("seconds", "spread", "blocks") if key in answer}

    def _send(self, text: bytes, deadline: float) -> None:
        while text:
            _, free, _ = select.select([], [self._requests], [], max(0.0, deadline - time.monotonic()))
            if not free:
                raise _Late
            try:
                text = text[os.write(self._requests, text) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Ended from None

    def _answer(self, number: int, deadline: float) -> dict[str, Any]:
        """The answer to the request of that number; of another one there can be none."""
        try:
            answer = json.loads(self._line(deadline))
        except (ValueError, RecursionError):
            raise _Ended from None
        if not isinstance(answer, dict) or answer.get("id") != number:
            raise _Ended
        return answer

    def _line(self, deadline: float) -> bytes:
        """The next whole line, however many parts it comes in."""
        while b"\n" not in self._begun:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise _Late
            part = os.read(self._answers, ANSWER_BYTES)
            if not part or len(self._begun) > ANSWER_BYTES:
                raise _Ended
            self._begun += part
        line, _, self._begun = self._begun.partition(b"\n")
        return line

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.process.kill()
            self.process.wait()
            self._close()

    def _close(self) -> None:
        for pipe in (self._requests, self._answers):
            os.close(pipe)
