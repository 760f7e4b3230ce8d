"""Terminal output: text from files (names of graphs, ops, families, methods), and progress bars.

A name may hold an escape sequence that clears the screen, renames the window, or turns a line around. Everything that
prints such names passes them through `printable`. `Bar` is a live bar on a terminal, else a plain line every few
seconds. Where the terminal is narrow the note shrinks, not the numbers.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TextIO

LEVELS = 50  # of lists in lists that a sentence shows


def short(value: object) -> str:
    """The value as a sentence shows it."""
    try:
        text = f"a {type(value).__name__}" if _deep(value) else str(value)
    except (RecursionError, ValueError):  # a nest of something else, a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _deep(value: object) -> bool:
    """Whether it is a nest that nobody could read; Python's own limit is not asked, since libraries raise it."""
    level = {id(value): value}  # each once, however often it is named
    for _ in range(LEVELS):
        nests = [one for one in level.values() if isinstance(one, (list, tuple, dict))]
        level = {id(inner): inner for one in nests for inner in (one.values() if isinstance(one, dict) else one)}
    return bool(level)


def encodable(text: str) -> str:
    r"""The text as UTF-8 can hold it: halves of surrogate pairs, as in some names of files, are written as `\udcff`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def say(text: object, stream: TextIO | None = None, *, keep: str = "") -> None:
    """Prints a line, printable, on stdout or another stream. keep: as of `printable`."""
    print(printable(text, keep), file=sys.stdout if stream is None else stream, flush=True)


def printable(text: object, keep: str = "") -> str:
    r"""The text with every character that is no visible one (controls, escapes, marks of direction, halves of surrogate
    pairs, line ends) written as `\x1b`, `\u202e` and the like. keep: such characters that stay, "\n" say."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in plain)


QUIET_SECONDS = 10.0  # between two plain lines
_SILENT = ContextVar("silent", default=False)
BAR = 12  # characters


@contextmanager
def silent(yes: bool) -> Iterator[None]:
    """No bars meanwhile: for programs that use graphopt as a library."""
    token = _SILENT.set(yes)
    try:
        yield
    finally:
        _SILENT.reset(token)


class Bar:
    """`with Bar("evaluate", 40) as bar: bar.step("resnet 1.20x")`. On stderr, so that stdout stays the result."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.count = printable(title), total, 0
        self._progress: Any = None  # rich's, on a terminal
        self._spoke, self._silent = time.monotonic(), _SILENT.get()  # of the thread that makes it

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not self._silent:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
                TimeRemainingColumn,
            )
            from rich.table import Column

            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # the remaining width
            whole = Column(no_wrap=True)
            self._progress = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(BAR), MofNCompleteColumn(table_column=whole),
                TimeElapsedColumn(whole.copy()), TimeRemainingColumn(table_column=whole.copy()),
                TextColumn("{task.fields[note]}", markup=False, table_column=rest), console=Console(stderr=True),
                expand=True,
            )  # fmt: skip
            self._task = self._progress.add_task(self.title, total=self.total, note="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def step(self, note: str, count: int = 1) -> None:
        """One more (or `count` more) of the total is done; `note` says how it went."""
        self.count += count
        note = printable(note)
        if self._progress is not None:
            self._progress.update(self._task, completed=self.count, note=note)
        elif not self._silent and (time.monotonic() - self._spoke > QUIET_SECONDS or self.count >= self.total):
            self._spoke = time.monotonic()
            print(f"{self.title} {self.count}/{self.total} {note}", file=sys.stderr, flush=True)
