"""What may end the process is done once in a copy of it first, which may: code of others on what a file asks for.

The copy is a fork: it has all that is loaded here, and what it does is lost with it. Its memory and time are limited.
"""

import faulthandler
import math
import os
import resource
import select
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from graphopt.core.errors import UserError

CPU_SECONDS, SECONDS = 300, 1800.0  # of the copy's own time, and by the clock


class Died(UserError):
    """The copy has died of it."""


def rehearse(action: Callable[[], object], memory: int, what: str) -> None:
    """Does it in a copy of this process. What it raises there, it will raise here as well, in words. memory: bytes that
    the copy may take besides. what: names the action in a sentence. Raises Died."""
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
        raise Died(f"{what} ends the process that tries ({said}); write it anew, without what torch cannot compute")


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
