"""Settings that reach beyond a configuration, said with their types: `path: Annotated[str | None, Opened()]`.

A user may set them. A file may not: where an answer, a checkpoint or a problem of the leaderboard says such a setting,
its mark decides what counts (`graphopt.run.config.stored`). A setting that imports, opens, starts or connects needs
one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from graphopt.core.errors import UserError
from graphopt.core.utils.printable import short


@dataclass(frozen=True)
class Outside:
    """A value that a file may not say, but for null, an empty list and those of `known`. does: what would be done."""

    does: str
    known: tuple[str, ...] = ()

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        """What counts of a value that a file says. near: the file, if it is known. Raises UserError."""
        if value is None or value == [] or value in self.known:
            return value
        raise UserError(f"{where}={short(value)} {self.does}, and a file may not say so: give it on the command line")


@dataclass(frozen=True)
class Own(Outside):
    """A place of the reader's own, such as a cache: whatever a file says, `instead` counts."""

    does: str = "is the reader's own"
    instead: Any = None

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        return self.instead


IMPORTS, RUNS = Outside("would be imported"), Outside("would be run")
UserPath = Annotated[str | None, Outside("would be opened")]
WeightsFile = Annotated[str | None, Outside("would be opened", known=("shipped",))]
OwnFolder = Annotated[str | None, Own()]
