"""examples/: every task has a script that runs as it stands, in seconds, and imports graphopt alone."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

from graphopt import CONF

ROOT = CONF.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MAY_IMPORT = {"graphopt", "torch"}


def test_every_task_has_one() -> None:
    tasks = {path.stem for path in (CONF / "task").glob("*.yaml")}
    assert tasks <= {path.stem for path in EXAMPLES}


@pytest.mark.parametrize(
    "path",
    [pytest.param(one, id=one.stem, marks=[pytest.mark.slow] * (one.stem == "every_task")) for one in EXAMPLES],
)
def test_it_runs_and_ends_no_worse_than_the_default(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    found = re.search(r"([\d.e+]+) -> ([\d.e+]+)", printed.splitlines()[-1])
    assert found is not None, printed
    assert 0 < float(found[2]) <= float(found[1])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_it_is_short_and_imports_the_public_names_alone(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            top = str(node.module).split(".")[0]
            assert top in MAY_IMPORT | sys.stdlib_module_names
            assert top != "graphopt" or node.module == "graphopt"
