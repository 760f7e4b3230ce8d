"""docs/tutorial.ipynb: every cell runs, prints what the page says, and finds what its text claims."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from tutorial import NOTEBOOK, code_cells, printed, run


@pytest.mark.timeout(600)  # compiles much, where nothing is compiled yet
def test_the_cells_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = code_cells(json.loads(NOTEBOOK.read_text()))
    try:
        for cell, text in zip(cells, run(cells)):
            # Networks are computed in floating point, which differs between machines.
            same = text == printed(cell) or ("varies" in cell["metadata"].get("tags", []) and text)
            assert same, f"is this right? then: python tests/project/tutorial.py\n{text}"
            pictures = [output for output in cell["outputs"] if output["output_type"] == "display_data"]
            assert len(plt.get_fignums()) == len(pictures)
            plt.close("all")
    finally:
        plt.close("all")
    assert (tmp_path / "answers").is_dir()


def test_the_page_is_a_notebook() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["cell_type"] == "markdown" and len(code_cells(notebook)) > 7
