"""How Sphinx makes the site, out of the pages of the whole repository: `make docs`."""

import contextlib
import io
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from graphopt import __version__
from graphopt.__main__ import SUBCOMMANDS

project, author, release = "graphopt", "the graphopt authors", __version__
copyright = f"2026, {author}"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]

# The source folder is the repository, so that links among pages are those that a reader of the files follows.
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "*.md",
    "results/*.md",
    "results/*/README.md",
    "benchmarks/README.md",
    "tests/fuzz/README.md",
    "build/*.md",
]
exclude_patterns = ["README.md", "docs/conf.py", "docs/pictures/**", "**/.*"]

smartquotes = False
default_role = "code"
html_theme = "furo"
html_title = f"graphopt {release}"
html_copy_source = False
html_show_sourcelink = False
templates_path: list[str] = []

myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
nb_execution_mode = "off"  # tests/project/test_tutorial.py executes the notebooks and compares what they print
suppress_warnings = ["myst.header", "misc.highlighting_failure"]

autodoc_typehints = "signature"
python_maximum_signature_line_length = 80


def write_commands(app: Any) -> None:
    """build/commands.md: what each command says of itself. Not kept, as Python versions lay it out otherwise."""
    os.environ |= {"COLUMNS": "100", "NO_COLOR": "1"}
    parts = ["# Commands\n\n`graphopt GROUP=OPTION KEY=VALUE ...` runs one composition: "
             "[using graphopt](../docs/using.md). These are the others.\n"]  # fmt: skip
    for name, (module, purpose) in SUBCOMMANDS.items():
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            import_module(module).main(["--help"])
        parts.append(f"\n## graphopt {name}\n\n{purpose[0].upper()}{purpose[1:]}.\n\n```text\n{said.getvalue()}```\n")
    (Path(app.srcdir) / "build").mkdir(exist_ok=True)
    (Path(app.srcdir) / "build" / "commands.md").write_text("".join(parts))


def prepare(app: Any, name: str, source: list[str]) -> None:
    """The first page is README.md, whose links go out from the folder above. A study without a title has its name."""
    if name == root_doc:
        readme = re.sub(r'(\]\(|src=")(?!https?:|#)', r"\1../", (Path(app.srcdir) / "README.md").read_text())
        source[0] = source[0].replace("README\n", readme, 1)
    elif name.startswith("results/") and not source[0].startswith("# "):
        source[0] = f"# {name.split('/')[1]}\n\n{source[0]}"


def lead_to_the_first_page(app: Any, error: Exception | None) -> None:
    if error is None:
        goes_on = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        (Path(app.outdir) / "index.html").write_text(f"<!doctype html><title>{project}</title>{goes_on}\n")


def setup(app: Any) -> None:
    app.connect("build-finished", lead_to_the_first_page)
    app.connect("source-read", prepare)
    app.connect("builder-inited", write_commands)
