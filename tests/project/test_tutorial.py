"""Runs the notebooks of docs/ without Jupyter: they print what the pages say. As a program it stores that."""

import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

# --- Code cells run one after another, in one namespace. `python tests/project/test_tutorial.py NAME...` stores what
# they print, and the pictures that they show, in the notebooks of these names.

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted(DOCS.glob("*.ipynb"))
LONG = ("ablation", "faster-module")  # on request


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    """What the notebook says that a cell prints."""
    return "".join(text for output in cell["outputs"] if output["output_type"] == "stream" for text in output["text"])


def run(cells: list[dict[str, Any]]) -> Iterator[str]:
    """What each cell prints, in the current folder; figures are not shown, they stay open."""
    import matplotlib

    matplotlib.use("agg")
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        with contextlib.redirect_stdout(io.StringIO()) as text:
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)
        yield text.getvalue()


def shown() -> list[dict[str, Any]]:
    """The open matplotlib figures, as a notebook stores them; they are closed."""
    import matplotlib.pyplot as plt

    found = []
    for number in plt.get_fignums():
        picture = io.BytesIO()
        plt.figure(number).savefig(picture, format="png", dpi=80, bbox_inches="tight")
        image = base64.b64encode(picture.getvalue()).decode()
        found.append({"output_type": "display_data", "metadata": {}, "data": {"image/png": image}})
    plt.close("all")
    return found


def store(path: Path) -> None:
    """Writes the outputs into the notebook."""
    notebook = json.loads(path.read_text())
    cells = code_cells(notebook)
    for number, (cell, text) in enumerate(zip(cells, run(cells))):
        stream = [{"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}] if text else []
        cell |= {"execution_count": number + 1, "outputs": [*stream, *shown()]}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


# --- Every cell runs, prints what the page says, and finds what its text claims.


@pytest.mark.timeout(600)  # compiles much, where nothing is compiled yet
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in NOTEBOOKS],
)
def test_the_cells_print_what_the_page_shows(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = code_cells(json.loads(path.read_text()))
    try:
        for cell, text in zip(cells, run(cells)):
            # Networks are computed in floating point, which differs between machines.
            same = text == printed(cell) or ("varies" in cell["metadata"].get("tags", []) and text)
            assert same, f"is this right? then: python tests/project/test_tutorial.py {path.stem}\n{text}"
            pictures = [output for output in cell["outputs"] if output["output_type"] == "display_data"]
            assert len(plt.get_fignums()) == len(pictures)
            plt.close("all")
    finally:
        plt.close("all")
    assert not [*tmp_path.iterdir()], "the page leaves nothing behind"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_is_a_notebook(path: Path) -> None:
    notebook = json.loads(path.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["cell_type"] == "markdown" and len(code_cells(notebook)) > 2


if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    for name in sys.argv[1:] or [path.stem for path in NOTEBOOKS]:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            store(DOCS / f"{name}.ipynb")
