"""Which line an exception comes from: of the user's own code that graphopt has called, else of graphopt's."""

import os
import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).resolve().parents[2])
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
HOW = "GRAPHOPT_TRACEBACK=1 shows the traceback"


def place_of(error: BaseException) -> str:
    """Such as `/home/me/mine.py, line 7`; empty where nothing is known."""
    own = own_place(error)
    ours = [frame for frame in traceback.extract_tb(error.__traceback__) if _in(frame.filename, PACKAGE)]
    return own or (f"{ours[-1].filename}, line {ours[-1].lineno}" if ours else "")


def own_place(error: BaseException) -> str:
    """The innermost line of the user's own code below a call from graphopt, such as that of an own algorithm; empty
    where there is none."""
    place, called = "", False
    for frame in traceback.extract_tb(error.__traceback__):
        ours = _in(frame.filename, PACKAGE)
        called |= ours
        library = any(_in(frame.filename, folder) for folder in LIBRARIES)
        if called and not ours and not library and os.path.isfile(frame.filename):
            place = f"{frame.filename}, line {frame.lineno}"
    return place


def _in(file: str, folder: str) -> bool:
    return os.path.abspath(file).startswith(folder + os.sep)
