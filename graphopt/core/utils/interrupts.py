"""Ctrl-C and SIGTERM end a process soon, whatever holds its main thread.

Python heeds a signal between two of its own instructions: not while Numba's compiler is at a large function, tens of
seconds on a busy machine, and an interrupt that is raised in a callback of foreign code is lost. What was written is
whole at every moment (docs/robustness.md), so a process that does not come to its end may be ended; and one that comes
to it as if nothing had happened says nevertheless that it was interrupted.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 10.0  # seconds from a signal until the process is ended
_OVER = b"\0"  # no signal has this number


@contextmanager
def ended_soon(sentence: str) -> Iterator[None]:
    """From a signal on the process has `PATIENCE` left, its way out included; then it ends with the sentence and 128 +
    the signal's number. A signal of which nothing was heard until the end raises KeyboardInterrupt there. Only for the
    main thread, and for programs that end after a signal."""
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


# A child that is forked would write its own signals into its parent's pipe.
os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1) and None)
