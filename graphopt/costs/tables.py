"""Tables of what was measured, as stored answers name them: with them their prices are had again anywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from graphopt import cache_dir
from graphopt.errors import UsageError, UserError
from graphopt.measure.table_file import is_there
from graphopt.utils.outside import Outside


@dataclass(frozen=True)
class TableFile(Outside):
    """A table of measured prices; what a file says of it is looked for and only read. usual: below the cache folder."""

    does: str = "is a table of measured prices"
    usual: Path = Path()

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        return None if near is None else str(found_table(value, near, self.usual))


@dataclass(frozen=True)
class _MeasuredThere(Outside):
    """Without an environment the model would measure here, in processes of its own."""

    does: str = "begins processes that measure"

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        if not isinstance(value, str):
            raise UserError(
                f"{where} does not say in which environment its prices were measured: solve the graph again"
            )
        return value


Environment = Annotated[str | None, _MeasuredThere()]


def found_table(stored: object, near: Path, usual: Path) -> Path:
    """The table that a file was priced by, which is only read: one of that name in a folder above the file, or the path
    below this installation. A file without one was priced by its user's own, which a stored study may have brought
    along under its name; else it is this user's."""
    if not isinstance(stored, str):
        brought = (folder / usual.name for folder in near.resolve().parents)
        return next((place for place in brought if place.is_file()), cache_dir() / usual)
    found = next((place for place in _places(stored, near) if is_there(place)), None)
    if found is None:
        raise UserError(f"{near} was priced by a table of measurements, {Path(stored).name!r}, which is in no folder "
                        "above it: bring it there")  # fmt: skip
    return found


def check_place(table: object, folder: Path, key: str) -> None:
    """Raises UsageError where answers in a folder below `folder` would not find the table again. key: of the table."""
    if isinstance(table, str) and Path(table).resolve() not in [p.resolve() for p in _places(table, folder / "answer")]:
        raise UsageError(f"{key}={table} lies in no folder above {folder}, where stored answers look for their table: "
                         f"put the table there, such as {key}={folder.parent / Path(table).name}")  # fmt: skip


def _places(stored: str, near: Path) -> list[Path]:
    """Where a table of that name may lie, whatever folder the name says."""
    places = [folder / Path(stored).name for folder in near.resolve().parents]
    if not Path(stored).is_absolute() and ".." not in Path(stored).parts:
        places.append(Path(__file__).resolve().parents[2] / stored)
    return places
