"""Processes that may end without harm to what is stored.

- `Process` and `serve`: a worker that answers requests, JSON lines through two pipes that nobody else knows.
- `rehearse`: an action that may kill the process runs in a fork first. The fork has all loaded modules, and its effects
  are lost with it. Its memory and time are limited.
- `seldom_collected`: Python looks for reference cycles less often.
- `ended_soon`: Ctrl-C and SIGTERM end this process soon, whatever holds its main thread. Python heeds a signal between
  two of its own instructions: not while Numba's compiler is at a large function, tens of seconds on a busy machine. An
  interrupt that is raised in a callback of foreign code is lost. Stored files are whole at every moment
  (tests/fuzz/README.md), so a process that does not end by itself may be ended.
"""

import faulthandler
import functools
import gc
import json
import math
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from graphopt.core.errors import UserError
from graphopt.core.utils.plain_json import is_finite

START_SECONDS = 120.0  # within which a process must have loaded its libraries
TRIES = 2  # to start one
ANSWER_BYTES = 1 << 20  # of a line at most
SELDOM = 10_000  # new objects before Python looks for reference cycles; 700 by itself

GUARD = ("/bin/sh", "-c", "read end; kill -KILL 0")  # ends the group that it is of


class _NoAnswer(Exception):
    """No answer. at: the last place in the request that the process told."""

    def __init__(self, at: int | None = None) -> None:
        super().__init__()
        self.at = at


class ProcessEnd(_NoAnswer):
    """The process has gone, or its line answers no request."""


class AnswerTimeout(_NoAnswer):
    """The process has not answered in time."""


class Process:
    """Starts with the first request, ends with this object, and is begun again after a crash. Output of libraries in it
    goes to standard error.

    module: its `main` is run, with `setting` as JSON and the numbers of the pipes for requests and answers
    (`serve`). variables: its environment. starts: how often it was begun.
    """

    def __init__(self, module: str, setting: Mapping[str, Any], variables: Mapping[str, str]) -> None:
        self.module, self.starts = module, 0
        self._setting, self._variables = dict(setting), dict(variables)
        self._worker: _Worker | None = None

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The answer. seconds: until it comes, or until the process says where it is, after which they count anew.

        Raises ProcessEnd and AnswerTimeout, after which the next request begins another process. Raises UserError where
        none begins.
        """
        worker = self._running()
        try:
            return worker.ask(request, seconds)
        except _NoAnswer:
            self.end()
            raise

    def begin(self) -> None:
        """Starts it where it does not run, and does not wait until it has loaded its libraries."""
        if self._worker is None:
            self._worker = _Worker(self.module, self._setting, self._variables)
            self.starts += 1
            weakref.finalize(self, self._worker.end)

    def await_start(self) -> None:
        """Starts it where it does not run. Raises UserError where none begins."""
        self._running()

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
        """Whoever waits for an answer, in another thread, gets ProcessEnd."""
        if (worker := self._worker) is not None:
            worker.kill()

    def _running(self) -> "_Worker":
        if self._worker is not None and self._worker.process.poll() is not None:
            self.end()
        for _ in range(TRIES):
            self.begin()
            assert self._worker is not None
            worker = self._worker
            try:
                worker.await_start()
                return worker
            except ProcessEnd:
                self.end()
            except AnswerTimeout:
                self.end()
                raise UserError(f"{self.module} was not loaded in {START_SECONDS:g} s; is the machine overloaded?"
                                ) from None  # fmt: skip
        raise UserError(
            "a process of graphopt's own ends before it has begun; see what it printed above "
            f"({self.module} is started with {sys.executable})"
        )


class _Worker:
    """One process and two pipes. Processes that it starts (compilers) are of its group, and end with it by `kill`.
    Where this process is killed, a shell of that group ends it, which waits for the end of a pipe."""

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
        """Raises ProcessEnd, AnswerTimeout."""
        if not self._ready:
            self._answer(0, START_SECONDS)
            self._ready = True

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Raises ProcessEnd, AnswerTimeout."""
        self._number += 1
        self._send(json.dumps({**request, "id": self._number}).encode() + b"\n", time.monotonic() + seconds)
        return self._answer(self._number, seconds)

    def _send(self, text: bytes, deadline: float) -> None:
        while text:
            _, free, _ = select.select([], [self._requests], [], max(0.0, deadline - time.monotonic()))
            if not free:
                raise AnswerTimeout
            try:
                text = text[os.write(self._requests, text) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise ProcessEnd from None

    def _answer(self, number: int, seconds: float) -> dict[str, Any]:
        """The answer to the request of that number; of another one there can be none. Lines with `at` come before it;
        `more`: seconds that this place takes beside those allowed."""
        at, allowed = None, seconds
        while True:
            try:
                line = json.loads(self._line(at, time.monotonic() + allowed))
            except (ValueError, RecursionError):
                raise ProcessEnd(at) from None
            if not isinstance(line, dict) or line.get("id") != number:
                raise ProcessEnd(at)
            if "at" not in line:
                return line
            at = line["at"] if isinstance(line["at"], int) else None
            allowed = seconds + (line["more"] if is_finite(line.get("more")) else 0.0)

    def _line(self, at: int | None, deadline: float) -> bytes:
        """The next whole line, however many parts it comes in."""
        while b"\n" not in self._begun:
            if not select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise AnswerTimeout(at)
            part = os.read(self._answers, ANSWER_BYTES)
            if not part or len(self._begun) > ANSWER_BYTES:
                raise ProcessEnd(at)
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
    """Answers line by line until nobody asks any more. arguments: as `Process` gives them. An exception of `answer`
    becomes an answer, {"error", "lasting", "fatal"}: fatal is an error that the user has to correct first. The pipes
    are not inherited, so that nothing else writes there. It ends without a word when whoever asked is gone."""
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
            tell = functools.partial(write, id=request["id"])
            try:
                found = answer(request, tell)
            except Exception as error:  # any exception of a library: this request has no other answer
                found = {"error": in_words(error), "lasting": lasts(error), "fatal": isinstance(error, UserError)}
            tell(**found)
    return 0


def in_words(error: Exception) -> str:
    """An exception's message in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def lasts(error: Exception) -> bool:
    """Whether the same would happen next time: not where memory, disk or files are what was wrong."""
    return not isinstance(error, MemoryError | OSError) and "memory" not in str(error).lower()


CPU_SECONDS, SECONDS = 300, 1800.0  # of the copy's own time, and by the clock


class CopyCrash(UserError):
    """The copy has died of it."""


def rehearse(action: Callable[[], object], memory: int, what: str) -> None:
    """Runs an action in a fork of this process. An exception there will be raised here as well, later. memory: further
    bytes that the fork may allocate. what: the action's name in a sentence. Raises CopyCrash."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # other threads are none of the copy's: it calls none of them
        copy = os.fork()
    if copy == 0:
        _perform(action, memory)
    handle = os.pidfd_open(copy)
    try:
        in_time = bool(select.select([handle], [], [], SECONDS)[0])
    finally:
        os.close(handle)
        with suppress(ProcessLookupError):
            os.kill(copy, signal.SIGKILL)
        status = os.waitpid(copy, 0)[1]
    if not in_time or os.WIFSIGNALED(status):
        said = signal.Signals(os.WTERMSIG(status)).name if in_time else f"{SECONDS:g} s"
        raise CopyCrash(
            f"{what} ends the process that tries ({said}); write it anew, without what torch cannot compute"
        )


def _perform(action: Callable[[], object], memory: int) -> None:
    """In the copy; it never comes back."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        used = resource.getrusage(resource.RUSAGE_SELF)
        has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        wanted = ((resource.RLIMIT_AS, has + memory),
                  (resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime) + CPU_SECONDS))  # fmt: skip
        for kind, most in wanted:
            hard = resource.getrlimit(kind)[1]
            there = [limit for limit in resource.getrlimit(kind) if limit != resource.RLIM_INFINITY]
            resource.setrlimit(kind, (min([most, *there]), hard))
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        faulthandler.disable()
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)
        action()
    finally:
        os._exit(0)


PATIENCE = 10.0  # seconds from a signal until the process is ended
_OVER = b"\0"  # no signal has this number


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Python looks for reference cycles a fourteenth as often meanwhile. torch and its compiler are half a million
    objects that stay; looking through these again and again took a quarter of a call of `optimize`."""
    before = gc.get_threshold()
    if 0 < before[0] < SELDOM:  # 0: the program has switched it off
        gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def ended_soon(sentence: str) -> Iterator[None]:
    """From a signal on the process has `PATIENCE` left, its way out included; then it ends with the sentence and 128 +
    the signal's number. A signal of which nothing was heard until the end raises KeyboardInterrupt there. Only for the
    main thread, and for programs that end after a signal."""
    _leave_pipe_to_parent()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before, heard, told = signal.set_wakeup_fd(writer, warn_on_full_buffer=False), list[int](), threading.Event()
    threading.Thread(target=_watch, args=(reader, sentence, heard, told), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.write(writer, _OVER)
        os.close(writer)
        told.wait(PATIENCE)
    if heard:
        raise KeyboardInterrupt


def _watch(reader: int, sentence: str, heard: list[int], told: threading.Event) -> None:
    """Reads numbers of signals as they come. Once there was one that ends programs, nothing calls it off."""
    while (number := os.read(reader, 1)) not in (_OVER, b""):
        if number[0] in (signal.SIGINT, signal.SIGTERM):
            heard.append(number[0])
            told.set()
            time.sleep(PATIENCE)
            print(sentence, file=sys.stderr, flush=True)
            os._exit(128 + number[0])
    os.close(reader)
    told.set()


@functools.cache
def _leave_pipe_to_parent() -> None:
    """A child that is forked would write its own signals into its parent's pipe."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1) and None)
