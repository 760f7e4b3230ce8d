"""`Table`: a table of strings, and how it is written: on a terminal, into a pipe, as Markdown; numbers as CSV.

On a terminal cells are broken between words, never cut. Names come from files: all printed text passes `printable`
here.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from graphopt.core.utils.terminal import printable

PIPE = 100_000  # characters of a line where the output is no terminal
BOLD, BEST, DIM = "bold", "bold green", "dim"


@dataclass
class Table:
    """A table of strings, of which the first `left` columns are text."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]]
    bold: set[tuple[int, int]] = field(default_factory=set)  # (row, column)
    breaks: set[int] = field(default_factory=set)  # rows after which a new budget begins
    left: int = 1
    note: str = ""
    prose: bool = False  # the last column is a sentence
    wide: bool = False  # only in files: too long for a terminal


def as_markdown(tables: Sequence[Table]) -> str:
    """All tables as one Markdown text."""
    parts = []
    for table in tables:
        rule = ["---"] * table.left + ["---:"] * (len(table.columns) - table.left)
        body = [
            [f"**{_cell(cell)}**" if (i, j) in table.bold else _cell(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(table.rows)
        ]
        head = [_cell(column) for column in table.columns]
        text = "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])
        note = f"\n{printable(table.note)}\n" if table.note else ""
        parts.append(f"### {printable(table.title)}\n\n{text}\n{note}")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def as_csv(records: Iterable[Mapping[str, object]]) -> str:
    """Lines of equal keys; unknown values (NaN) are empty, and several values of a key have a column each."""
    found = [dict(_flat(record)) for record in records]
    out = io.StringIO()
    if found:
        writer = csv.DictWriter(out, list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    return out.getvalue()


def _flat(record: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _flat({f"{key}_{part}": inner for part, inner in value.items()})
        elif isinstance(value, str):
            yield key, printable(value)
        else:
            yield key, "" if isinstance(value, float) and math.isnan(value) else value


def changes(keys: Sequence[object]) -> set[int]:
    """Places after which another key follows: `Table.breaks`."""
    return {i for i, (key, following) in enumerate(pairwise(keys)) if key != following}


def highest(cells: Iterable[tuple[object, tuple[int, int], float]]) -> set[tuple[int, int]]:
    """Of (group, place in a table, number) the places of each group's highest numbers: `Table.bold`."""
    found = list(cells)
    top = dict[object, float]()
    for group, _, number in found:
        top[group] = max(number, top.get(group, -math.inf))
    return {place for group, place, number in found if number >= top[group] * (1 - 1e-9)}


# ---- on a terminal


def screen() -> Console:
    """Where tables are printed: as wide as the terminal; a pipe has no width."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PIPE)


def print_tables(tables: Sequence[Table]) -> None:
    """Prints the tables, and which of them stand in files only."""
    console = screen()
    for table in tables:
        if not table.wide:
            print_table(console, table)
            console.print()
    left_out = [printable(table.title) for table in tables if table.wide]
    if left_out:
        console.print(Text(f"only in the files of graphopt report DIR: {'; '.join(left_out)}", DIM))
    if not tables:
        console.print("no results: there is no row that says anything")


def print_table(console: Console, table: Table) -> None:
    """Title, table, note. No word is cut: a cell that needs more room than the console has is as wide as its words."""
    grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), header_style=BOLD)
    least = 0
    for j, column in enumerate(table.columns):
        words = " ".join([column, *(row[j] for row in table.rows)]).split()
        widest = max((cell_len(printable(word)) for word in words), default=1)
        text = j < table.left or (table.prose and j == len(table.columns) - 1)
        grid.add_column(Text(printable(column)), justify="left" if text else "right", min_width=widest, overflow="fold")
        least += widest + 2
    for i, row in enumerate(table.rows):
        repeats = table.breaks and i > 0 and i - 1 not in table.breaks  # of one budget, which stands once
        cells = ["" if j == 0 and repeats else printable(cell) for j, cell in enumerate(row)]
        grid.add_row(*(Text(cell, BEST if (i, j) in table.bold else "") for j, cell in enumerate(cells)),
                     end_section=i in table.breaks)  # fmt: skip
    if table.title:
        console.print(Text(printable(table.title), BOLD))
    if table.columns:
        width, console.width = console.width, max(console.width, least)
        console.print(grid)
        console.width = width
    if table.note:
        console.print(Text(f"\n{printable(table.note)}", DIM))
