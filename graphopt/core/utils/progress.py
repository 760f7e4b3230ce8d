"""How far a loop is: a live bar on a terminal, else a plain line every few seconds. Where the terminal is narrow the
note shrinks, not the numbers."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from graphopt.core.utils.printable import printable

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
        self._progress: Progress | None = None
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty() and not _SILENT.get():
            from rich.console import Console

            rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")  # what the others leave
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
        elif not _SILENT.get() and (time.monotonic() - self._spoke > QUIET_SECONDS or self.count >= self.total):
            self._spoke = time.monotonic()
            print(f"{self.title} {self.count}/{self.total} {note}", file=sys.stderr, flush=True)
