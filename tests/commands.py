"""What a user would type, without a new process."""

import io
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.global_hydra import GlobalHydra

from graphopt import CONF
from graphopt.run.records.rows import Row, read


class Answer(NamedTuple):
    code: int
    out: str
    err: str
    folder: Path

    @property
    def rows(self) -> list[Row]:
        return [row for file in sorted(self.folder.rglob("rows.jsonl")) for row in read(file)]


def command(folder: Path, *words: str, sweep: bool = False) -> Answer:
    """run.py in this process, with results below `folder`."""
    told = any(word.startswith(("compare=", "experiment=")) for word in words)
    first = ["run.py", *["-m"] * sweep, f"output_dir={folder}", *([] if told else ["compare=[]"])]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", [*first, *words])
        try:
            runpy.run_path(str(CONF.parent / "run.py"), run_name="__main__")
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            GlobalHydra.instance().clear()
    return Answer(code, out.getvalue(), err.getvalue(), folder)
