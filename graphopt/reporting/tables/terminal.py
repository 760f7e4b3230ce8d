"""Sheets on a terminal: nothing is cut. A table that is too wide goes on below, with the names of its rows again, or
has them on lines of their own where they are long; a pipe has no width."""

import textwrap
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from graphopt.reporting.tables.sheet import Sheet
from graphopt.utils.printable import printable

GAP = "  "
NARROW = 40  # below so many characters nothing is gained by splitting further
BOLD, BEST, DIM = "bold", "bold green", "dim"
_Columns = Sequence[int]


def print_sheets(all_sheets: Sequence[Sheet]) -> None:
    """Prints the sheets, and which of them stand in files only."""
    lines: list[Text] = []
    width = terminal_width()
    for sheet in (sheet for sheet in all_sheets if not sheet.wide):
        lines += [*sheet_lines(sheet, width), Text("")]
    if not all_sheets:
        lines += wrapped("no results: there is no row that says anything", width)
    left_out = [sheet.title for sheet in all_sheets if sheet.wide]
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


def sheet_lines(sheet: Sheet, width: int | None) -> list[Text]:
    """Title, table in as many parts as the width asks for, note."""
    cells = [[printable(cell) for cell in row] for row in [list(sheet.columns), *sheet.rows]]
    lines = wrapped(sheet.title, width, BOLD) if sheet.title else []
    note = [Text(""), *wrapped(sheet.note, width, DIM)] if sheet.note else []
    if not sheet.columns:
        return lines + note
    names = sheet.left if sheet.names is None else sheet.names
    last = len(sheet.columns) - sheet.prose
    prose = sheet.prose and width is not None
    sizes = [max(cell_len(row[j]) for row in cells) for j in range(len(sheet.columns))]
    keys, rest = list(range(names)), list(range(names, last if prose else len(sheet.columns)))
    stacked = width is not None and _stacked(sizes, keys, rest, width)
    room = width if width is None or not stacked else width - len(GAP)
    for i, part in enumerate(_parts(sizes, [] if stacked else keys, rest, room)):
        lines += [Text("")] if i else []
        lines += _part_lines(sheet, cells, sizes, keys, part, stacked, width if prose else None)
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
    sheet: Sheet, cells: list[list[str]], sizes: Sequence[int], keys: _Columns, part: _Columns, stacked: bool,
    prose: int | None,
) -> Iterator[Text]:  # fmt: skip
    """A part of the table; stacked: names stand on lines of their own. prose: width in which the sentence is broken."""
    columns = [*part] if stacked else [*keys, *part]
    rule = "─" * max(_total([sizes[j] for j in columns]), 1)
    for i, row in enumerate(cells, start=-1):
        shown = [("" if j == 0 and _repeats(sheet, i) else text) for j, text in enumerate(row)]
        if stacked:
            yield Text(GAP.join(shown[j] for j in keys if shown[j]), BOLD if i < 0 else "")
        line = Text(GAP if stacked else "")
        for n, j in enumerate(columns):
            style = BOLD if i < 0 else BEST if (i, j) in sheet.bold else ""
            space = " " * (sizes[j] - cell_len(shown[j]))
            line.append(GAP if n else "")
            line.append_text(Text("") if j < sheet.left else Text(space))
            line.append(shown[j], style)
            line.append(space if j < sheet.left else "")
        line.rstrip()
        yield line
        if prose is not None:
            yield from wrapped(row[-1], prose, BOLD if i < 0 else "", GAP * 2)
        if i < 0 or i in sheet.breaks:
            yield Text(rule if i < 0 else "")


def _repeats(sheet: Sheet, i: int) -> bool:
    """Whether a row is of the same budget as the one above, where the budget stands once."""
    return bool(sheet.breaks) and i > 0 and i - 1 not in sheet.breaks
