"""examples/: every task has a script that runs as it stands, in seconds, and imports graphopt alone."""

import ast
import os
import re
import subprocess
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


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_it_runs_and_ends_no_worse_than_the_default(path: Path, tmp_path: Path) -> None:
    around = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(path)], cwd=tmp_path, env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = re.search(r"([\d.e+]+) -> ([\d.e+]+)", done.stdout.splitlines()[-1])
    assert found is not None, done.stdout
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
