"""From a stored experiment to its headline figures: by the file below that is called like its study: by
`figures(rows)`, or, where rows do not say it all, by `figures_in(place, rows)`."""

from importlib import import_module
from pathlib import Path

from graphopt.errors import UserError
from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.tables.read_rows import read_rows, row_files

BESIDE = ("__init__", "figure", "over_families", "reading", "room")


def figures_of(place: Path) -> list[Figure]:
    """The figures of the study whose rows lie in a folder. Raises UserError where nobody says what they are."""
    rows = [row for row in read_rows(row_files(place))[0] if row.get("status") == "ok"]
    here = Path(__file__).parent
    known = {file.stem: file for file in sorted(here.rglob("*.py")) if file.stem not in BESIDE}
    named = {str(row.get("study")) for row in rows} & set(known)
    names = ", ".join(sorted(known))
    if len(named) != 1:
        raise UserError(f"{place} holds no experiment with headline figures; those that have are: {names}")
    place_of = known[named.pop()].relative_to(here).with_suffix("")
    module = import_module(".".join((str(__package__), *place_of.parts)))
    found: list[Figure] = module.figures_in(place, rows) if hasattr(module, "figures_in") else module.figures(rows)
    return found
