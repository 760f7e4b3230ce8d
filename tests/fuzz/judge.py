"""What becomes of one input: an `Outcome`. Limits and watches are set once per process, by `guard`."""

import io
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .mutate import CANARY, Draw

SECONDS = 20  # of this process's own time: other work on the machine does not count
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
    other formats get, where one takes long."""

    name: str
    write: Callable[[Draw, Path], Path]
    read: Callable[[Path], None]
    share: float = 1.0


class Outcome(NamedTuple):
    """kind: one of KINDS. text: the sentence, or the error with its place."""

    kind: str
    text: str


def guard() -> None:
    """Limits the memory of this process, and watches what it runs and writes. Call it when all is imported."""
    size = int(next(line for line in Path("/proc/self/status").read_text().splitlines() if "VmSize" in line).split()[1])
    resource.setrlimit(resource.RLIMIT_AS, ((size << 10) + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, _stop)
    sys.path.append(str(Path(__file__).parent / CANARY.removeprefix("fuzz_")))
    sys.addaudithook(_watch)


def _stop(*_: Any) -> None:
    raise _Hang


class _Watched:
    """What the audit hook saw since the case began. allowed: where it may write; None: nobody watches."""

    allowed: tuple[str, ...] | None = None
    seen: list[str] = []  # noqa: RUF012  (of the process, as the hook is)


_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn",
              "socket.connect", "shutil.rmtree", "os.chmod", "webbrowser.open")  # fmt: skip


_OWN = "from graphopt.graphs.readers.onnx.inference import main;"  # a process of graphopt's, whatever the input


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if _Watched.allowed is None:
        return
    if event in _FORBIDDEN:
        if event == "subprocess.Popen" and _ours(tuple(arguments[1])):
            return
        if event in ("shutil.rmtree", "os.chmod") and str(arguments[0]).startswith(_Watched.allowed):
            return
        _refuse(f"{event} {arguments!r:.200}")
    elif event == "open" and _writes(*arguments[1:]) and not str(arguments[0]).startswith(_Watched.allowed):
        _refuse(f"open {arguments!r:.200}")


def _ours(command: tuple[Any, ...]) -> bool:
    """The process that infers shapes, or the shell that ends it when nobody is left to ask it."""
    from graphopt.core.utils.process import GUARD

    return command == GUARD or (command[:2] == (sys.executable, "-c") and _OWN in command[2])


def _refuse(what: str) -> None:
    """Notes it, and does not let it happen."""
    _Watched.seen.append(what)
    raise PermissionError(what)


def _writes(mode: Any = None, flags: Any = 0, *_: Any) -> bool:
    return any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool(int(flags or 0) & 3)


def _places(folder: Path) -> tuple[str, ...]:
    """Where a case may write: its folder, caches, temporary files; file numbers and devices are none of its files."""
    from graphopt import cache_dir

    return (
        str(folder),
        str(folder.resolve()),
        str(cache_dir()),
        tempfile.gettempdir(),
        "/dev/null",
        *map(str, range(10)),
    )


def judged(form: Format, seed: int, folder: Path, *, traced: bool = False) -> Outcome:
    """Makes the case of a seed in an empty folder, reads it, and says what happened. Seeds below 0 damage nothing.
    traced: for a person who looks, or to warm up: errors are printed, and nothing has a time limit."""
    found = form.write(Draw(form.name, seed), folder)
    from_here = list(sys.path)
    sys.modules.pop(CANARY, None)
    _Watched.seen, _Watched.allowed = [], _places(folder)
    try:
        outcome = _read(form, found, traced)
    finally:
        _Watched.allowed = None
        sys.path[:] = from_here
    if CANARY in sys.modules:
        return Outcome("executed", f"{CANARY} was imported; {sys.modules.pop(CANARY).CALLS}; {outcome.text}")
    return Outcome("executed", "; ".join(_Watched.seen)) if _Watched.seen else outcome


def _read(form: Format, found: Path, traced: bool) -> Outcome:
    from graphopt.core.errors import Unsolved, UserError
    from graphopt.core.graph import GraphError

    signal.setitimer(signal.ITIMER_PROF, 0 if traced else SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", RuntimeWarning)  # numpy's overflow and invalid values
            form.read(found)
        return Outcome("result", "")
    except _Hang:
        return Outcome("hang", _place())
    except (Wrong, UserError, GraphError, Unsolved, Said, MemoryError, Exception) as error:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if traced:
            traceback.print_exc()
        return _named(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _named(error: Exception) -> Outcome:
    from graphopt.core.errors import Unsolved, UserError
    from graphopt.core.graph import GraphError
    from graphopt.core.utils.terminal import printable

    if isinstance(error, UserError | GraphError | Unsolved | Said):
        said = str(error) if isinstance(error, Said) else printable(error)  # as commands show it
        fault = fault_of(said)
        return Outcome("wrong", f"{fault}: {said!r:.300}") if fault else Outcome("sentence", said)
    kind = "memory" if isinstance(error, MemoryError) else "wrong" if isinstance(error, Wrong) else "traceback"
    return Outcome(kind, f"{type(error).__name__}: {str(error)[:300]!r} at {_place()}")


def fault_of(sentence: str) -> str:
    """What makes a text no sentence for a terminal; empty if it is one."""
    if not sentence.strip():
        return "an empty sentence"
    if any(ord(sign) < 32 or 127 <= ord(sign) < 160 for sign in sentence):
        return "a sentence with control characters"
    return "a sentence without an end" if len(sentence) > LONGEST else ""


def _place() -> str:
    """Where the error was raised: the last line of graphopt, and the last of all."""
    frames: list[traceback.FrameSummary] = []
    with suppress(RecursionError):
        frames = list(traceback.extract_tb(sys.exc_info()[2]))
    ours = [f for f in frames if "/graphopt/" in f.filename]
    return " in ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in [*frames[-1:], *ours[-1:]])


# --- Commands in this process: what they say becomes a `Said`, what escapes them escapes.


def spoken(main: Callable[[Any], int], arguments: Sequence[str], fails: tuple[int, ...] = (1,)) -> str:
    """What a command prints. Raises `Said` where it ends with a sentence, `Wrong` where it fails in silence or says
    more than that. fails: exit codes of refusals."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err), tracebacks():
            code = main(list(arguments))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    complaint = "".join(line for line in err.getvalue().splitlines(keepends=True) if not _aside(line))
    if code in fails and complaint:
        raise Said(complaint.removesuffix("\n"))
    if code not in (0, *fails):
        raise Wrong(f"exit code {code}, and it says {complaint!r:.300}")
    return out.getvalue()


def _aside(line: str) -> bool:
    """A warning or how far it is."""
    return line.startswith(("warning: ", "evaluate ", "extract ", "verify ", "train ", "capture "))


@contextmanager
def tracebacks() -> Any:
    """Commands raise what they would turn into a sentence about an unexpected error."""
    before = os.environ.get("GRAPHOPT_TRACEBACK")
    os.environ["GRAPHOPT_TRACEBACK"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["GRAPHOPT_TRACEBACK"]
        else:
            os.environ["GRAPHOPT_TRACEBACK"] = before


def json_lines(text: str) -> list[Any]:
    """Every line a JSON value that any reader takes: no NaN."""
    return [json.loads(line, parse_constant=_no_constant) for line in text.splitlines()]


def _no_constant(name: str) -> None:
    raise Wrong(f"JSON with {name}")
