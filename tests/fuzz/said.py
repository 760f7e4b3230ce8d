"""Commands in this process: what they say becomes a `Said`, what escapes them escapes."""

import io
import json
import os
from collections.abc import Callable, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from .judge import Said, Wrong


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
