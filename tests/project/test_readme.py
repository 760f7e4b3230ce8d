"""README.md and docs/: tables are the program's, every command composes or parses, every link and name exists."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from graphopt import CONF, decision, pack, report
from graphopt.config import compatibility
from graphopt.config.construct import INJECTED, arguments_of, target_of
from graphopt.run.cell import GROUPS, settings_of
from graphopt.utils import registry

ROOT = CONF.parent
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
TEXT = "\n".join(page.read_text() for page in PAGES)


def commands_of(program: str) -> list[str]:
    """Arguments of the indented lines that call a program, without comments."""
    return sorted({line.split("#")[0].strip() for line in re.findall(rf"^    {re.escape(program)}(.*)$", TEXT, re.M)})


def first_cell(words: list[str]) -> list[str]:
    """Overrides of the first cell of a sweep."""
    return [word if word[-1] in "]}" else word.split(",")[0] for word in words if word != "-m"]


def marked(page: str, name: str) -> str:
    """What stands between <!-- NAME --> and <!-- /NAME --> of a page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None, f"{page} has no <!-- {name} -->"
    return found.group(1)


def test_the_matrix_is_the_programs() -> None:
    assert marked("docs/compatibility.md", "compat") == compatibility.matrix()
    assert marked("README.md", "families") == compatibility.families()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) < 9000


@pytest.mark.parametrize("command", commands_of("python run.py"))
def test_every_run_composes(command: str) -> None:
    overrides = first_cell(shlex.split(command))
    if "task=offload" in overrides:
        pytest.skip("docs/adding.md, tried by test_adding.py")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        composed = compose("config", overrides=overrides)
    config = OmegaConf.to_container(composed, resolve=True)
    assert isinstance(config, dict)
    settings_of(config)
    compatibility.check_unused(config)
    compatibility.check(config)
    for group in ("dataset", "task", "machine", "cost", "judge", "algo"):
        taken = arguments_of(target_of(config[group], group)).keys()
        assert {*config[group]} - {"_target_"} <= taken - INJECTED, group
    assert {*GROUPS} <= {*config}


@pytest.mark.parametrize("command", commands_of("python -m graphopt.decision"))
def test_every_decision_command_parses(command: str) -> None:
    decision.parser().parse_args(shlex.split(command))


@pytest.mark.parametrize("command", commands_of("python -m graphopt.pack"))
def test_every_pack_command_parses(command: str) -> None:
    pack.parser().parse_args(shlex.split(command))


@pytest.mark.parametrize("command", commands_of("python -m graphopt.report"))
def test_every_report_command_parses(command: str) -> None:
    report.parser().parse_args(shlex.split(command))


def test_commands_were_found() -> None:
    assert len(commands_of("python run.py")) > 10 and len(commands_of("python -m graphopt.decision")) == 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"""(?:\]\(|src=")([^)#"\s]+)[)"]""", text) if "://" not in link]
    named = re.findall(r"`?((?:graphopt|conf|tests|docs|benchmarks)/[\w/.-]+\.(?:py|yaml|md))", text)
    examples = re.findall(r"^# (\S+)$", text, re.M)  # first lines of files that docs/adding.md spells out
    for place in [*(page.parent / link for link in links), *(ROOT / name for name in named if name not in examples)]:
        assert place.exists() or place.stem == "NAME", place


def test_every_option_is_named() -> None:
    table = (ROOT / "docs" / "compatibility.md").read_text()
    for group in ("task", "dataset", "machine", "cost", "encoder", "algo"):
        for name in registry.options(group):
            assert f"`{name}`" in table, f"docs/compatibility.md does not name {group}={name}"
    using = (ROOT / "docs" / "using.md").read_text()
    for name in registry.options("experiment"):
        assert f"experiment={name}" in using, f"docs/using.md does not name experiment={name}"


def test_parts_of_pages_that_links_name_exist() -> None:
    for page in PAGES:
        for link, part in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", page.read_text()):
            if "://" not in link:
                assert part in anchors(page.parent / link if link else page), f"{page.name}: {link}#{part}"


def anchors(page: Path) -> set[str]:
    """Names of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_benchmark_is_listed() -> None:
    listed = (ROOT / "benchmarks" / "README.md").read_text()
    assert all(f"| {file.name} |" in listed for file in (ROOT / "benchmarks").glob("*.py"))


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = (ROOT / "README.md", ROOT / "docs" / "using.md")
    blocks = [block for page in pages for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(block, {})
    assert (
        len(blocks) > 1 and (tmp_path / "answers" / "mlp.npz").is_file() and list((tmp_path / "pictures").glob("*.png"))
    )


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"cff-version", "message", "authors", "title"} <= citation.keys()
    assert [citation[key] for key in ("title", "version", "license")] == [
        project[key] for key in ("name", "version", "license")
    ]
    assert f"## {project['version']} (" in (ROOT / "CHANGELOG.md").read_text()


def test_the_architecture_names_every_folder_and_command() -> None:
    words = {*re.findall(r"\w+", (ROOT / "docs" / "architecture.md").read_text())}
    places = [path for path in (ROOT / "graphopt").rglob("*") if path.is_dir() and any(path.glob("[!_]*.py"))]
    for place in [*places, *(ROOT / "graphopt").glob("[!_]*.py")]:
        assert place.stem in words, f"docs/architecture.md does not name {place.relative_to(ROOT)}"
