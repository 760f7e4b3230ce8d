"""From a stored experiment to its headline figures: by the file here or below that is called like its study:
by `figures(rows)`, or, where rows do not say it all, by `figures_in(place, rows)`."""

from importlib import import_module
from pathlib import Path

from graphopt.errors import UserError
from graphopt.reporting.figures.figure import Figure
from graphopt.reporting.tables.read_rows import read_rows, row_files

BESIDE = ("__init__", "figure", "over_families", "reading", "room")


def _modules() -> dict[str, str]:
    """Study -> where its module is, in this package."""
    here = Path(__file__).parent
    files = (file.relative_to(here).with_suffix("") for file in here.rglob("*.py"))
    return {file.name: ".".join(file.parts) for file in files if file.name not in BESIDE}


def figures_of(place: Path) -> list[Figure]:
    """The figures of the study whose rows lie in a folder. Raises UserError where nobody says what they are."""
    rows = [row for row in read_rows(row_files(place))[0] if row.get("status") == "ok"]
    known = _modules()
    named = {str(row.get("study")) for row in rows} & known.keys()
    if len(named) != 1:
        raise UserError(
            f"{place} holds no experiment with headline figures; those that have are: {', '.join(sorted(known))}"
        )
    module = import_module(f"{__package__}.{known[named.pop()]}")
    found: list[Figure] = module.figures_in(place, rows) if hasattr(module, "figures_in") else module.figures(rows)
    return found
