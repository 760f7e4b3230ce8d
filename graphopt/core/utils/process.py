"""`Process`: a process of its own that answers requests, JSON lines through two pipes that nobody else knows; and
`serve`, the loop over requests in that process."""

import json
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from graphopt.core.errors import UserError
from graphopt.core.utils.channel import is_finite

START_SECONDS = 120.0  # within which a process must have loaded its libraries
TRIES = 2  # to start one
ANSWER_BYTES = 1 << 20  # of a line at most

GUARD = ("/bin/sh", "-c", "read end; kill -KILL 0")  # ends the group that it is of


class _Lost(Exception):
    """No answer. at: the last place in the request that the process told."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at


class Ended(_Lost):
    """The process has gone, or its line answers no request."""


class Late(_Lost):
    """The process has not answered in time."""


class Process:
    """Starts with the first request, ends with this object, and is begun again after a crash. What libraries print in
    it goes to standard error.

    module: its `main` is run, with `setting` as JSON and the numbers of the pipes for requests and answers
    (`serve`). variables: its environment. starts: how often it was begun.
    """

    def __init__(self, module: str, setting: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self.module, self.starts = module, 0
        self._setting, self._variables = dict(setting), dict(variables)
        self._worker: _Worker | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. seconds: until it comes, or until the process says where it is, after which they count anew.

        Raises Ended and Late, after which the next request begins another process, and UserError where none begins.
        """
        worker = self._running()
        try:
            return worker.ask(request, seconds)
        except _Lost:
            self.end()
            raise

    @property
    def number(self) -> int | None:
        """The process id, while there is one."""
        return None if self._worker is None else self._worker.process.pid

    def end(self) -> None:
        """The next request begins another one."""
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def give_up(self) -> None:
        """Whoever waits for an answer, in another thread, gets Ended."""
        if (worker := self._worker) is not None:
            worker.kill()

    def _running(self) -> "_Worker":
        if self._worker is not None and self._worker.process.poll() is not None:
            self.end()
        for _ in range(TRIES):
            if self._worker is None:
                self._worker = _Worker(self.module, self._setting, self._variables)
                self.starts += 1
                weakref.finalize(self, self._worker.end)
            worker = self._worker
            try:
                worker.await_start()
                return worker
            except Ended:
                self.end()
            except Late:
                self.end()
                raise UserError(f"{self.module} was not loaded in {START_SECONDS:g} s; is the machine overloaded?"
                                ) from None  # fmt: skip
        raise UserError(
            "a process of graphopt's own ends before it has begun; see what it printed above "
            f"({self.module} is started with {sys.executable})"
        )


class _Worker:
    """One process and two pipes. What it starts itself (compilers) is of its group, and ends with it: by `kill`, or,
    where this process is killed, by a shell of that group that waits for the end of a pipe."""

    def __init__(self, module: str, setting: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        theirs, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        begin = f"import sys; from {module} import main; sys.exit(main(sys.argv[1:]))"
        command = [sys.executable, "-c", begin, json.dumps(setting), str(theirs), str(answers)]
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=2, pass_fds=(theirs, answers), env=dict(variables),
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            self._close()
            raise UserError(f"a process of graphopt's own cannot be started: {error.strerror or error}") from error
        finally:
            os.close(theirs)
            os.close(answers)
        os.set_blocking(self._requests, False)
        try:  # nobody writes into its input, which ends with this process however that ends
            self._guard: subprocess.Popen[bytes] | None = subprocess.Popen(
                GUARD, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, process_group=self.process.pid
            )
        except OSError:  # the process has gone already
            self._guard = None
        self._number, self._ready, self._ended = 0, False, False
        self._begun = b""  # of a line whose end has not come yet

    def await_start(self) -> None:
        """Raises Ended, Late."""
        if not self._ready:
            self._answer(0, START_SECONDS)
            self._ready = True

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises Ended, Late."""
        self._number += 1
        self._send(json.dumps({**request, "id": self._number}).encode() + b"\n", time.monotonic() + seconds)
        return self._answer(self._number, seconds)

    def _send(self, text: bytes, deadline: float) -> None:
        while text:
            _, free, _ = select.select([], [self._requests], [], max(0.0, deadline - time.monotonic()))
            if not free:
                raise Late
            try:
                text = text[os.write(self._requests, text) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise Ended from None

    def _answer(self, number: int, seconds: float) -> dict[str, Any]:
        """The answer to the request of that number; of another one there can be none. Lines with `at` come before it;
        `more`: seconds that this place takes beside those allowed."""
        at, allowed = None, seconds
        while True:
            try:
                line = json.loads(self._line(at, time.monotonic() + allowed))
            except (ValueError, RecursionError):
                raise Ended(at) from None
            if not isinstance(line, dict) or line.get("id") != number:
                raise Ended(at)
            if "at" not in line:
                return line
            at = line["at"] if isinstance(line["at"], int) else None
            allowed = seconds + (line["more"] if is_finite(line.get("more")) else 0.0)

    def _line(self, at: int | None, deadline: float) -> bytes:
        """The next whole line, however many parts it comes in."""
        while b"\n" not in self._begun:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise Late(at)
            part = os.read(self._answers, ANSWER_BYTES)
            if not part or len(self._begun) > ANSWER_BYTES:
                raise Ended(at)
            self._begun += part
        line, _, self._begun = self._begun.partition(b"\n")
        return line

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.kill()
            self.process.wait()
            if self._guard is not None:
                self._guard.communicate()
            self._close()

    def kill(self) -> None:
        """With all that it has started."""
        with suppress(ProcessLookupError):  # all of them have gone
            os.killpg(self.process.pid, signal.SIGKILL)

    def _close(self) -> None:
        for pipe in (self._requests, self._answers):
            os.close(pipe)


Request = dict[str, Any]
Tell = Callable[..., None]
"""Says where a request is (`at=3`): its limit of time counts from then on; `more=60.0`: and is so much longer."""


def serve(arguments: list[str], answer: Callable[[Request, Tell], dict[str, Any]]) -> int:
    """Answers line by line until nobody asks any more. arguments: as `Process` gives them. Whatever `answer` raises is
    an answer, {"error", "lasting", "fatal"}: fatal is what the user has to put right first. The pipes are not
    inherited, so that nothing else writes there. It ends without a word when whoever asked is gone."""
    pipes = [int(number) for number in arguments[1:]]
    for pipe in pipes:
        os.set_inheritable(pipe, False)
    with suppress(BrokenPipeError), os.fdopen(pipes[0]) as requests, os.fdopen(pipes[1], "w") as answers:

        def write(**value: Any) -> None:
            answers.write(json.dumps(value) + "\n")
            answers.flush()

        write(id=0, ready=True)
        for line in requests:
            request = json.loads(line)
            tell = partial(write, id=request["id"])
            try:
                found = answer(request, tell)
            except Exception as error:  # whatever a library raises: this request has no other answer
                found = {"error": in_words(error), "lasting": lasts(error), "fatal": isinstance(error, UserError)}
            tell(**found)
    return 0


def in_words(error: Exception) -> str:
    """What an exception says, in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def lasts(error: Exception) -> bool:
    """Whether the same would happen next time: not where memory, disk or files are what was wrong."""
    return not isinstance(error, MemoryError | OSError) and "memory" not in str(error).lower()
