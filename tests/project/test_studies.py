"""results/README.md is the index of the stored studies. `python tests/project/test_studies.py` writes it anew."""

import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "results"
HEAD = """# Stored studies

Each folder is a run: rows, answers (in answers.zip or in the folder), and a page with the command, the commit and what
it found. `graphopt report results/STUDY` prints its tables, `--figures` the numbers of the pages, `--replay` prices its
answers again.

| study | of |
|---|---|
"""


def index() -> str:
    titles = {page.parent.name: page.read_text().partition("\n")[0] for page in sorted(RESULTS.glob("*/README.md"))}
    return HEAD + "".join(f"| [{name}]({name}/README.md) | {title.lstrip('# ')} |\n" for name, title in titles.items())


def test_the_index_names_every_study() -> None:
    assert (RESULTS / "README.md").read_text() == index(), "python tests/project/test_studies.py writes it anew"
    assert all((folder / "README.md").is_file() for folder in RESULTS.iterdir() if folder.is_dir())
    assert not re.search(r"\| +\|", index())  # every study has a title


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(index())
