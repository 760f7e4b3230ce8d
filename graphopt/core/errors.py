"""Errors that end a run with one sentence instead of a traceback, and the line that an unexpected one comes from."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graphopt import cache_dir

LONGEST = 1200  # characters of a sentence: names in files may be of any length


def shortened(sentence: str) -> str:
    """The sentence without its middle, if it is too long to be read."""
    return sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST - 400]} ... {sentence[-350:]}"


class UserError(Exception):
    """An error that the user can correct. The message is one sentence with the cause and the remedy; programs print it
    and end with `exit_code`, without a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        return shortened(super().__str__())


class ConfigError(UserError):
    """The configuration asks for something that cannot be had."""


class UsageError(UserError):
    """The command line says something that has no meaning (an unknown key, a value of the wrong type)."""

    exit_code = 2


class Incompatible(UserError):
    """The chosen parts do not fit; the sentence names parts that would. In a sweep: a row `status: illegal`."""


class RowsFailed(UserError):
    """Some rows of a cell failed; they say so themselves."""


class Busy(UserError):
    """Another run works on the cell. A sweep goes on and looks again when it has done the others."""


class Pruned(UserError):
    """A search over settings ended the training of this trial early, since others are better at that step."""


class NothingFits(UserError):
    """Every plan that was found is over a device's capacity; the rows say by how much. In a sweep other cells go on."""


class Unsolved(Exception):
    """A method cannot solve this graph; the message is one sentence with the cause and the remedy. The graph's row is
    marked failed, and others go on."""

    def __str__(self) -> str:
        return shortened(super().__str__())


class Unreadable(UserError):
    """A file is missing or damaged, or holds more than is read of such a file; the message says which."""


class DecisionError(UserError):
    """A decision file is missing, damaged, or of another graph; the message names the case and the remedy."""


class Unmeasured(UserError):
    """The cost of a graph cannot be measured. Its row is marked failed, and others go on."""


@contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Raises UserError when the disk is full, or the place cannot be written."""
    try:
        yield
    except OSError as error:
        by = "the environment variable GRAPHOPT_CACHE" if cache_dir() in Path(path).parents else "output_dir=..."
        raise UserError(f"cannot write {path}: {error.strerror or error}; make room or choose another place with {by}, "
                        "then run the same command again: finished rows are kept") from error  # fmt: skip


PACKAGE = str(Path(__file__).resolve().parents[1])
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
