"""Text from files (names of graphs, ops, families, methods) as a terminal may show it.

A name may hold an escape sequence that clears the screen, renames the window, or turns a line around. Everything that
prints such names passes them through `printable`.
"""

import sys
from typing import TextIO

LEVELS = 50  # of lists in lists that a sentence shows


def short(value: object) -> str:
    """The value as a sentence shows it."""
    try:
        text = f"a {type(value).__name__}" if _deep(value) else str(value)
    except (RecursionError, ValueError):  # a nest of something else, a number of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}..."


def _deep(value: object) -> bool:
    """Whether it is a nest that nobody could read; Python's own limit is not asked, since libraries raise it."""
    level = {id(value): value}  # each once, however often it is named
    for _ in range(LEVELS):
        nests = [one for one in level.values() if isinstance(one, (list, tuple, dict))]
        level = {id(inner): inner for one in nests for inner in (one.values() if isinstance(one, dict) else one)}
    return bool(level)


def encodable(text: str) -> str:
    r"""The text as UTF-8 can hold it: halves of surrogate pairs, as in some names of files, are written as `\udcff`."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def say(text: object, stream: TextIO | None = None, *, keep: str = "") -> None:
    """Prints a line, printable, on stdout or another stream. keep: as of `printable`."""
    print(printable(text, keep), file=sys.stdout if stream is None else stream, flush=True)


def printable(text: object, keep: str = "") -> str:
    r"""The text with every character that is no visible one (controls, escapes, marks of direction, halves of surrogate
    pairs, line ends) written as `\x1b`, `\u202e` and the like. keep: such characters that stay, "\n" say."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in plain)
