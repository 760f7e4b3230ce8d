"""README.md and docs/: the table is the program's, every command composes or parses, every link and name exists."""

import re
import shlex
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from graphopt import CONF, compat, report
from graphopt.cell import GROUPS, settings_of
from graphopt.construct import INJECTED, arguments_of, target_of
from graphopt.reporting import commands

ROOT = CONF.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "benchmarks" / "README.md"]
TEXT = "\n".join(page.read_text() for page in PAGES)


def commands_of(program: str) -> list[str]:
    """Arguments of the indented lines that call a program, without comments."""
    return sorted({line.split("#")[0].strip() for line in re.findall(rf"^    {re.escape(program)}(.*)$", TEXT, re.M)})


def first_cell(words: list[str]) -> list[str]:
    """Overrides of the first cell of a sweep."""
    return [word if word[-1] in "]}" else word.split(",")[0] for word in words if word != "-m"]


def test_the_matrix_is_the_programs() -> None:
    marked = re.search(r"<!-- compat -->\n(.*?)\n<!-- /compat -->", (ROOT / "README.md").read_text(), re.DOTALL)
    assert marked is not None and marked.group(1) == compat.matrix()


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
    compat.check_unused(config)
    compat.check(config)
    for group in ("dataset", "task", "machine", "cost", "judge", "algo"):
        taken = arguments_of(target_of(config[group], group)).keys()
        assert {*config[group]} - {"_target_"} <= taken - INJECTED, group
    assert {*GROUPS} <= {*config}


@pytest.mark.parametrize("command", commands_of("python -m graphopt.decision"))
def test_every_decision_command_parses(command: str) -> None:
    commands.parser().parse_args(shlex.split(command))


@pytest.mark.parametrize("command", commands_of("python -m graphopt.report"))
def test_every_report_command_parses(command: str) -> None:
    report.parser().parse_args(shlex.split(command))


def test_commands_were_found() -> None:
    assert len(commands_of("python run.py")) > 10 and len(commands_of("python -m graphopt.decision")) == 7


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    named = re.findall(r"`?((?:graphopt|conf|tests|docs|benchmarks)/[\w/.-]+\.(?:py|yaml|md))", text)
    examples = re.findall(r"^# (\S+)$", text, re.M)  # first lines of files that docs/adding.md spells out
    for place in [*(page.parent / link for link in links), *(ROOT / name for name in named if name not in examples)]:
        assert place.exists() or place.stem == "NAME", place


def test_every_option_is_named() -> None:
    readme = (ROOT / "README.md").read_text()
    for group in ("task", "dataset", "machine", "cost", "encoder", "algo"):
        for name in compat.options(group):
            assert f"`{name}`" in readme, f"README.md does not name {group}={name}"
    for name in compat.options("experiment"):
        assert f"experiment={name}" in readme, f"README.md does not name experiment={name}"


def test_every_benchmark_is_listed() -> None:
    listed = (ROOT / "benchmarks" / "README.md").read_text()
    assert all(f"| {file.name} |" in listed for file in (ROOT / "benchmarks").glob("*.py"))


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for block in blocks:
        exec(block, {})
    assert blocks and (tmp_path / "answers" / "mlp.npz").is_file() and list((tmp_path / "pictures").glob("*.png"))
