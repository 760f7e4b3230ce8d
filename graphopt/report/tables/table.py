"""`Table`: a table of strings, and how it is written: on a terminal, into a pipe, as Markdown; numbers as CSV.

On a terminal nothing is cut. A table that is too wide goes on below, with the names of its rows again, or has them on
lines of their own where they are long; a pipe has no width. (rich's own tables cut or fold cells instead.) Names come
from files: whatever is printed passes `printable` here.
"""

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from graphopt.core.utils.terminal import printable

GAP = "  "
NARROW = 40  # below so many characters nothing is gained by splitting further
BOLD, BEST, DIM = "bold", "bold green", "dim"
_Columns = Sequence[int]


@dataclass
class Table:
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
    """Lines of equal keys; what is not known (NaN) is empty, and what a key holds several of has a column each."""
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


def print_tables(tables: Sequence[Table]) -> None:
    """Prints the tables, and which of them stand in files only."""
    lines: list[Text] = []
    width = terminal_width()
    for table in (table for table in tables if not table.wide):
        lines += [*table_lines(table, width), Text("")]
    if not tables:
        lines += wrapped("no results: there is no row that says anything", width)
    left_out = [table.title for table in tables if table.wide]
    if left_out:
        lines += wrapped(f"only in the files of graphopt report DIR: {'; '.join(left_out)}", width, DIM)
    print_lines(lines)


def print_lines(lines: Sequence[Text | str]) -> None:
    """Prints lines as they are: the terminal, not we, breaks a name that is longer than it is wide."""
    console = Console(highlight=False)
    for line in lines:
        console.print(Text(line) if isinstance(line, str) else line, soft_wrap=True)


def terminal_width() -> int | None:
    """Characters in a line of the terminal; None where the output goes elsewhere."""
    console = Console()
    return max(console.width, NARROW) if console.is_terminal else None


def wrapped(text: str, width: int | None, style: str = "", indent: str = "") -> list[Text]:
    """A sentence, broken between words."""
    plain = printable(text)
    if width is None:
        return [Text(indent + plain, style)]
    lines = textwrap.wrap(plain, width - len(indent), break_long_words=False, break_on_hyphens=False)
    return [Text(indent + line, style) for line in lines]


def table_lines(table: Table, width: int | None) -> list[Text]:
    """Title, table in as many parts as the width asks for, note."""
    cells = [[printable(cell) for cell in row] for row in [list(table.columns), *table.rows]]
    lines = wrapped(table.title, width, BOLD) if table.title else []
    note = [Text(""), *wrapped(table.note, width, DIM)] if table.note else []
    if not table.columns:
        return lines + note
    names = table.left if table.names is None else table.names
    last = len(table.columns) - table.prose
    prose = table.prose and width is not None
    sizes = [max(cell_len(row[j]) for row in cells) for j in range(len(table.columns))]
    keys, rest = list(range(names)), list(range(names, last if prose else len(table.columns)))
    stacked = width is not None and _stacked(sizes, keys, rest, width)
    room = width if width is None or not stacked else width - len(GAP)
    for i, part in enumerate(_parts(sizes, [] if stacked else keys, rest, room)):
        lines += [Text("")] if i else []
        lines += _part_lines(table, cells, sizes, keys, part, stacked, width if prose else None)
    return lines + note


def _total(sizes: Sequence[int]) -> int:
    return sum(sizes) + len(GAP) * max(len(sizes) - 1, 0)


def _stacked(sizes: Sequence[int], keys: _Columns, rest: _Columns, width: int) -> bool:
    """Whether the names leave too little room beside them."""
    widest = max((sizes[j] for j in rest), default=0)
    named = [sizes[j] for j in keys]
    return _total(sizes) > width and (_total(named) > width // 2 or _total([*named, widest]) > width)


def _parts(sizes: Sequence[int], keys: _Columns, rest: _Columns, width: int | None) -> list[list[int]]:
    """The columns beside the names, in as few groups as fit."""
    parts: list[list[int]] = [[]]
    for column in rest:
        wanted = _total([sizes[j] for j in (*keys, *parts[-1], column)])
        if width is not None and parts[-1] and wanted > width:
            parts.append([])
        parts[-1].append(column)
    return parts


def _part_lines(
    table: Table, cells: list[list[str]], sizes: Sequence[int], keys: _Columns, part: _Columns, stacked: bool,
    prose: int | None,
) -> Iterator[Text]:  # fmt: skip
    """A part of the table; stacked: names stand on lines of their own. prose: width in which the sentence is broken."""
    columns = [*part] if stacked else [*keys, *part]
    rule = "─" * max(_total([sizes[j] for j in columns]), 1)
    for i, row in enumerate(cells, start=-1):
        shown = [("" if j == 0 and _repeats(table, i) else text) for j, text in enumerate(row)]
        if stacked:
            yield Text(GAP.join(shown[j] for j in keys if shown[j]), BOLD if i < 0 else "")
        line = Text(GAP if stacked else "")
        for n, j in enumerate(columns):
            style = BOLD if i < 0 else BEST if (i, j) in table.bold else ""
            space = " " * (sizes[j] - cell_len(shown[j]))
            line.append(GAP if n else "")
            line.append_text(Text("") if j < table.left else Text(space))
            line.append(shown[j], style)
            line.append(space if j < table.left else "")
        line.rstrip()
        yield line
        if prose is not None:
            yield from wrapped(row[-1], prose, BOLD if i < 0 else "", GAP * 2)
        if i < 0 or i in table.breaks:
            yield Text(rule if i < 0 else "")


def _repeats(table: Table, i: int) -> bool:
    """Whether a row is of the same budget as the one above, where the budget stands once."""
    return bool(table.breaks) and i > 0 and i - 1 not in table.breaks
