"""What becomes of one input: an `Outcome`. Limits and watches are set once per process, by `guard`."""

import io
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from graphopt import cache_dir
from graphopt.core.errors import Unsolved, UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.process import GUARD
from graphopt.core.utils.terminal import printable

from .mutate import CANARY, Draw

MEMORY = 4 << 30  # bytes of address space beyond what the process has when it begins
LONGEST = 1500  # characters of a sentence
KINDS = ("result", "sentence", "traceback", "wrong", "hang", "memory", "executed")
BAD = KINDS[2:]


class Wrong(Exception):
    """A reader gave back something that contradicts itself or the file."""


class Said(Exception):
    """A command ended with this sentence on its standard error."""


class _Hang(BaseException):
    """The time is up. No `except Exception` of a reader may catch it."""


@dataclass(frozen=True)
class Format:
    """One format. write: puts a damaged input drawn from the generator into a folder, says what to read. read: as the
    command line reads it; checks what comes out and raises `Wrong` where that is not right. share: of the cases that
    other formats get, where one takes long. seconds: of this process's own time; other work does not count."""

    name: str
    write: Callable[[Draw, Path], Path]
    read: Callable[[Path], None]
    share: float = 1.0
    seconds: float = 20.0


class Outcome(NamedTuple):
    """kind: one of KINDS. text: the sentence, or the error with its place."""

    kind: str
    text: str


# --- Limits and watches.

# What the audit hook saw since the case began, and where the case may write; None: nobody watches.
_seen: list[str] = []
_allowed: tuple[str, ...] | None = None
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "socket.connect",
              "shutil.rmtree", "os.chmod", "webbrowser.open")  # fmt: skip
_OWN = "from graphopt.graphs.readers.onnx.inference import main;"  # a process of graphopt's, whatever the input


def guard() -> None:
    """Limits the memory of this process, and watches what it runs and writes. Call it when all is imported."""
    size = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line).split()[1])
    resource.setrlimit(resource.RLIMIT_AS, ((size << 10) + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _stop)
    sys.path.append(str(Path(__file__).parent / "canary"))
    sys.addaudithook(_watch)


def _stop(*_: Any) -> None:
    raise _Hang


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Notes what is forbidden, and does not let it happen."""
    if _allowed is None:
        return
    if event in ("open", "shutil.rmtree", "os.chmod"):
        fine = (event == "open" and not _writes(*arguments[1:])) or str(arguments[0]).startswith(_allowed)
    elif event == "subprocess.Popen":  # the process that infers shapes, or the shell that ends it when nobody asks it
        command = tuple(arguments[1])
        fine = command == GUARD or (command[:2] == (sys.executable, "-c") and _OWN in command[2])
    else:
        fine = event not in _FORBIDDEN
    if not fine:
        _seen.append(f"{event} {arguments!r:.200}")
        raise PermissionError(_seen[-1])


def _writes(mode: Any = None, flags: Any = 0, *_: Any) -> bool:
    return any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool(int(flags or 0) & 3)


# --- One case.


def judged(form: Format, seed: int, folder: Path, *, traced: bool = False) -> Outcome:
    """Makes the case of a seed in an empty folder, reads it, and says what happened. Seeds below 0 damage nothing.
    traced: for a person who looks, or to warm up: errors are printed, and nothing has a time limit."""
    global _allowed
    found = form.write(Draw(form.name, seed), folder)
    path = list(sys.path)
    sys.modules.pop(CANARY, None)
    _seen.clear()
    _allowed = (str(folder), str(folder.resolve()), str(cache_dir()), tempfile.gettempdir(), "/dev/null",
                *map(str, range(10)))  # fmt: skip # the last: file numbers, none of its files
    try:
        outcome = _read(form, found, traced)
    finally:
        _allowed = None
        sys.path[:] = path
    if CANARY in sys.modules:
        return Outcome("executed", f"{CANARY} was imported; {sys.modules.pop(CANARY).CALLS}; {outcome.text}")
    return Outcome("executed", "; ".join(_seen)) if _seen else outcome


def _read(form: Format, found: Path, traced: bool) -> Outcome:
    signal.setitimer(signal.ITIMER_PROF, 0 if traced else form.seconds)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # numpy's overflow and invalid values
            form.read(found)
        return Outcome("result", "")
    except _Hang as error:
        return Outcome("hang", _place(error))
    except Exception as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if traced:
            traceback.print_exc()
        if isinstance(error, UserError | GraphError | Unsolved | Said):
            said = str(error) if isinstance(error, Said) else printable(error)  # as commands show it
            fault = fault_of(said)
            return Outcome("wrong", f"{fault}: {said!r:.300}") if fault else Outcome("sentence", said)
        kind = "memory" if isinstance(error, MemoryError) else "wrong" if isinstance(error, Wrong) else "traceback"
        return Outcome(kind, f"{type(error).__name__}: {str(error)[:300]!r} at {_place(error)}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fault_of(sentence: str) -> str:
    """What makes a text no sentence for a terminal; empty if it is one."""
    if not sentence.strip():
        return "an empty sentence"
    if any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in sentence):
        return "a sentence with control characters"
    return "a sentence without an end" if len(sentence) > LONGEST else ""


def _place(error: BaseException) -> str:
    """Where it was raised: the last line of all, and the last of graphopt."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/graphopt/" in frame.filename]
    return " in ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in [*frames[-1:], *ours[-1:]])


def spoken(main: Callable[[Any], int], *arguments: str | Path) -> str:
    """What a command prints, in this process. Raises `Said` where it ends with a sentence, `Wrong` where it prints
    nothing, fails in silence or says more than that; what escapes it escapes."""
    out, err = io.StringIO(), io.StringIO()
    try:
        # With GRAPHOPT_TRACEBACK, commands raise what they would turn into a sentence about an unexpected error.
        with redirect_stdout(out), redirect_stderr(err), mock.patch.dict(os.environ, GRAPHOPT_TRACEBACK="1"):
            code = main([*map(str, arguments)])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    aside = ("warning: ", "evaluate ", "extract ", "verify ", "train ", "capture ")  # warnings, and how far it is
    complaint = "".join(line for line in err.getvalue().splitlines(keepends=True) if not line.startswith(aside))
    if code == 1 and complaint:
        raise Said(complaint.removesuffix("\n"))
    if code not in (0, 1):
        raise Wrong(f"exit code {code}, and it says {complaint!r:.300}")
    if not out.getvalue():
        raise Wrong(f"{arguments[:1]} prints nothing")
    return out.getvalue()
