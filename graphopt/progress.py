"""How far a loop is: a live bar on a terminal, else a plain line every few seconds."""

import sys
import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET_SECONDS = 10.0  # between two plain lines


class Bar:
    """`with Bar("evaluate", 40) as bar: bar.step("resnet 1.20x")`. On stderr, so that stdout stays the result."""

    def __init__(self, title: str, total: int) -> None:
        self.title, self.total, self.count = title, total, 0
        self._progress: Progress | None = None
        self._spoke = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console

            self._progress = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=Console(stderr=True),
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
        if self._progress is not None:
            self._progress.update(self._task, completed=self.count, note=note)
        elif time.monotonic() - self._spoke > QUIET_SECONDS or self.count >= self.total:
            self._spoke = time.monotonic()
            print(f"{self.title} {self.count}/{self.total} {note}", file=sys.stderr, flush=True)
