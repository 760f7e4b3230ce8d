"""`make docs`: every page is built without a warning, and every link inside the site leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_site_is_built_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """One test, so that one process builds it."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr[-3000:]
    has_every_command_and_public_name(tmp_path)
    pages = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    names = {page: {*re.findall(r'\bid="([^"]+)"', text)} for page, text in pages.items()}
    lost = []
    for page, text in pages.items():
        for link in re.findall(r'\bhref="([^"]+)"', text):
            place, _, part = unquote(re.sub(r"\?v=\w+", "", link)).partition("#")
            if re.match(r"[a-z]+:", link) or page.name in ("genindex.html", "search.html"):
                continue
            target = (page.parent / place).resolve() if place else page
            if not target.exists() or (part and target in names and part not in names[target]):
                lost.append(f"{page.relative_to(tmp_path)}: {link}")
    assert len(pages) > 80 and lost == []


def has_every_command_and_public_name(site: Path) -> None:
    import graphopt
    from graphopt.__main__ import SUBCOMMANDS

    commands, api = (site / "build" / "commands.html").read_text(), (site / "docs" / "api.html").read_text()
    assert all(f"graphopt {name}" in commands for name in SUBCOMMANDS)
    constants = {"CONF", "OPERATOR_ID", "OWN_OPTIONS"}
    missing = [name for name in graphopt.__all__ if name not in constants and f">{name}<" not in api]
    assert missing == []


def test_the_first_pages_answer_what_is_asked_first() -> None:
    """Does learning pay, which method, how to apply an answer, how to add an algorithm, what is measured."""
    readme, choose = (ROOT / "README.md").read_text(), (ROOT / "docs" / "choose.md").read_text()
    for page in ("learning.md", "choose.md", "adding.md", "hardware.md#in-your-own-program"):
        assert f"docs/{page}" in readme
    assert "(learning.md)" in choose and "simulated" in readme and "measured" in readme
