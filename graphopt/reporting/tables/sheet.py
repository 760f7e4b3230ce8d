"""`Sheet`: a table of strings, and how it is written: into a terminal of any width, a pipe, Markdown, CSV.

Names come from files: whatever is printed passes `printable` here.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from graphopt.utils.printable import printable


@dataclass
class Sheet:
    """A table of strings. The first `left` columns are text; those of them that name a row (`names`, by default all)
    stand again in every part of a table that is too wide for the terminal."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    bold: set[tuple[int, int]] = field(default_factory=set)  # (row, column)
    breaks: set[int] = field(default_factory=set)  # rows after which a new budget begins
    left: int = 1
    names: int | None = None
    note: str = ""
    prose: bool = False  # the last column is a sentence, which a terminal breaks into lines
    wide: bool = False  # only in files: too long for a terminal


def as_markdown(all_sheets: Sequence[Sheet]) -> str:
    """All sheets as one Markdown text."""
    parts = []
    for sheet in all_sheets:
        rule = ["---"] * sheet.left + ["---:"] * (len(sheet.columns) - sheet.left)
        body = [
            [f"**{_cell(cell)}**" if (i, j) in sheet.bold else _cell(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(sheet.rows)
        ]
        head = [_cell(column) for column in sheet.columns]
        table = "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])
        note = f"\n{printable(sheet.note)}\n" if sheet.note else ""
        parts.append(f"### {printable(sheet.title)}\n\n{table}\n{note}")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def as_csv(records: Iterable[Mapping[str, object]]) -> str:
    """Lines of equal keys; what is not known (NaN) is empty."""
    found = list(records)
    out = io.StringIO()
    if found:
        writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _value(value) for key, value in record.items()} for record in found)
    return out.getvalue()


def _value(value: object) -> object:
    if isinstance(value, str):
        return printable(value)
    return "" if isinstance(value, float) and math.isnan(value) else value
