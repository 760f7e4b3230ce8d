"""README.md and docs/: tables are the program's, commands compose or parse, links and names exist, examples run."""

import itertools
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from graphopt import CONF, OWN_OPTIONS, __main__
from graphopt import load as load_answer
from graphopt.core.errors import Incompatible
from graphopt.core.graph import Graph
from graphopt.core.machine import Machine, make_machine
from graphopt.core.operators import OPERATOR_ID
from graphopt.core.utils import registry
from graphopt.report import command as report
from graphopt.report import decision, pack
from graphopt.report.replay import claims_of, decision_of, replay_all
from graphopt.run.cell import GROUPS, settings_of
from graphopt.run.config import compatibility
from graphopt.run.config.construct import INJECTED, arguments_of, target_of
from graphopt.run.records.rows import Row, read

# --- README.md and docs/: tables are the program's, every command composes or parses, every link and name exists.

ROOT = CONF.parent
TOP = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES = [
    *TOP, *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "results").glob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("benchmarks", "tests/fuzz")),
]  # fmt: skip
TEXT = "\n".join(page.read_text() for page in PAGES)


def commands_of(program: str) -> list[str]:
    """Arguments of the indented lines that call a program, without comments."""
    return sorted({line.split("#")[0].strip() for line in re.findall(rf"^    {re.escape(program)}(.*)$", TEXT, re.M)})


def first_cell(words: list[str]) -> list[str]:
    """Overrides of the first cell of a sweep."""
    words = [re.sub(r"=.*interval\(([^,]+),.*", r"=\1", word) for word in words if word != "-m"]
    return [word if word[-1] in "]}" else word.split(",")[0] for word in words]


def marked(page: str, name: str) -> str:
    """What stands between <!-- NAME --> and <!-- /NAME --> of a page."""
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", (ROOT / page).read_text(), re.DOTALL)
    assert found is not None, f"{page} has no <!-- {name} -->"
    return found.group(1)


def test_the_matrix_is_the_programs() -> None:
    assert marked("docs/compatibility.md", "compat") == compatibility.matrix()
    assert marked("README.md", "families") == compatibility.families()


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 900


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


@pytest.mark.parametrize(("words", "program"), [("answer", decision), ("study pack", pack), ("report", report)])
def test_every_command_of_a_program_parses(words: str, program: Any) -> None:
    commands = commands_of(f"graphopt {words}")
    assert commands and all(vars(program.parser().parse_args(shlex.split(command))) for command in commands)


def test_commands_were_found() -> None:
    assert len(commands_of("python run.py")) > 10 and len(commands_of("graphopt answer")) == 8


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_files_exist(page: Path) -> None:
    text = page.read_text()
    links = [link for link in re.findall(r"""(?:\]\(|src=")([^)#"\s]+)[)"]""", text) if "://" not in link]
    named = re.findall(r"(?<![\w:])((?:graphopt|conf|tests|docs|benchmarks)/[\w/.-]+\.(?:py|yaml|md))", text)
    examples = re.findall(r"^# (\S+)$", text, re.M)  # first lines of files that docs/adding.md spells out
    for place in [*(page.parent / link for link in links), *(ROOT / name for name in named if name not in examples)]:
        assert place.exists() or place.stem == "NAME", place


def test_every_algorithm_and_experiment_is_named() -> None:
    chosen = (ROOT / "docs" / "choose.md").read_text()
    for name in registry.options("algo"):
        assert f"`{name}`" in chosen, f"docs/choose.md does not name algo={name}"
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
    pages = (ROOT / "README.md", ROOT / "docs" / "own-model.md")
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


# --- The examples of docs/adding.md run as they stand there, in a folder of their own: a task with a head that
# graphopt does not know, its cost model, its graphs and an optimiser. Every optimiser solves it, and its answers
# replay.

BLOCK = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", re.DOTALL)
OWN = ("layouts", "layout_time", "chains", "hill")
WORDS = ("task=layouts", "cost=layout_time", "cost@judge=layout_time", "dataset=chains", "logger=none")
PEERS = ["default", "random", "local", "scan", "annealing", "brkga", "laf_unguided", "regal_local"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples, which is the current one."""
    for name, text in BLOCK.findall((CONF.parent / "docs" / "adding.md").read_text()):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(OWN_OPTIONS, str(tmp_path / "options"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in OWN:
        sys.modules.pop(name, None)


def run(monkeypatch: pytest.MonkeyPatch, place: Path, *words: str) -> list[Row]:
    """Rows of one command."""
    monkeypatch.setattr(sys, "argv", ["graphopt", "--config-dir", str(place / "options"), *words])
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    try:
        __main__.main()
    finally:
        GlobalHydra.instance().clear()
    return [row for file in place.glob("outputs/*/*/rows.jsonl") for row in read(file)]


def machine() -> Machine:
    return make_machine(**{k: v for k, v in registry.option("machine", "gpu2").items() if k != "_target_"})


def best(graph: Graph) -> float:
    """The cheapest layouts of a chain by dynamic programming from its start, 0 being rows; the output is by rows."""
    from layout_time import op_seconds

    device, seconds = machine().devices[0], op_seconds(graph, machine())
    until, before = np.zeros(2), 0
    for op in range(graph.num_ops):
        size = int(graph.tensor_bytes[graph.results(op)][0])
        own = seconds[op] * np.array([1.0, 0.5 if graph.kind[op] == OPERATOR_ID["matmul"] else 1.0])
        until = np.minimum(until, until[::-1] + 2 * before / device.bandwidth) + own
        before = size
    return float(min(until[0], until[1] + 2 * before / device.bandwidth))


def chains() -> dict[str, Graph]:
    import chains as example

    return {f"chain{width}": example.chain(6, width) for width in (16, 64, 256, 1024)}


def test_optimisers_solve_a_task_of_which_they_know_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = run(monkeypatch, place, *WORDS, "algo=hill", "budget.evals=[0,300]", f"compare=[{','.join(PEERS)}]")
    assert [row["status"] for row in rows] == ["ok"] * 4 * 2 * (1 + len(PEERS))
    optimum = {name: best(graph) for name, graph in chains().items()}
    for row in rows:
        assert row["judged"] >= optimum[row["graph"]] * (1 - 1e-12)
        if row["algo"] in ("hill", "local", "annealing", "scan") and row["evals_cap"] == 300:
            assert row["judged"] == pytest.approx(optimum[row["graph"]], rel=1e-12), row["algo"]
        if row["algo"] != "default" and row["evals_cap"] == 300:
            assert row["judged"] < 0.95 * row["initial"], row["algo"]
    replays(place)
    assert "| hill | yes | yes | yes | yes | yes |" in compatibility.matrix()


def test_go_learns_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("trainer.steps=4", "trainer.val_every=2", "encoder.width=8", "budget.evals=[0,40]", "algo.search.refresh=16")
    rows = run(monkeypatch, place, *WORDS, "algo=go", "compare=[]", *few)
    assert [row["status"] for row in rows] == ["ok"] * 4 * 2
    assert all(row["train_evals"] > 0 for row in rows)
    assert all(row["judged"] < row["initial"] for row in rows if row["evals_cap"] == 40)
    replays(place)


def replays(place: Path) -> None:
    """All answers come out again."""
    found = list(replay_all(*claims_of(place / "outputs")))
    assert found and not [wrong for _, mismatches in found for wrong in mismatches]


def test_changes_are_said_in_the_words_of_the_head(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = run(monkeypatch, place, *WORDS, "algo=scan", "budget.evals=[300]")
    row = {**rows[0], "_file": str(next(place.glob("outputs/*/*/rows.jsonl")))}
    file = str(decision_of(row))
    capsys.readouterr()
    assert decision.main(["show", file]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"matmul\S* +matmul +row +column", shown)
    changed = load_answer(file)
    op = changed.decided.op_names[int(changed.decided.changed()[0])]
    assert decision.main(["veto", file, f"{op}=row", "-o", str(Path(file).with_name("edited.npz"))]) == 0
    capsys.readouterr()
    assert decision.main(["diff", file, str(Path(file).with_name("edited.npz"))]) == 0
    assert "1 of 12 ops differ" in capsys.readouterr().out
    assert load_answer(Path(file).with_name("edited.npz")).reprice()["judged"] > row["judged"]


def config(**chosen: str) -> dict[str, Any]:
    """The nodes that are checked, of these options."""
    options = {"task": "layouts", "cost": "layout_time", "judge": "layout_time", "dataset": "chains", "algo": "hill"}
    groups = {"judge": "cost"}
    return {group: registry.option(groups.get(group, group), name) for group, name in (options | chosen).items()}


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"cost": "simulator"}, "cost=simulator does not read layout, which task=layouts decides. "
                                "Cost models for it: layout_time."),
        ({"judge": "simulator"}, "judge=simulator does not read layout, which task=layouts decides. "
                                 "Cost models for it: layout_time."),
        ({"task": "fusion"}, "cost=layout_time does not read inline, which task=fusion decides. "
                             "Cost models for it: calibrated, generated_code, inductor, simulator."),
        ({"task": "rewrite", "algo": "taso"}, "cost=layout_time reads layout, which task=rewrite does not decide. "
                                              "Cost models for it: flops, gpu, live_bytes, onnxruntime, "
                                              "profiled, simulator, torch."),
    ],
)  # fmt: skip
def test_what_a_cost_model_reads_is_checked_before_anything_is_built(
    place: Path, chosen: dict[str, str], sentence: str
) -> None:
    compatibility.check(config())
    with pytest.raises(Incompatible) as caught:
        compatibility.check(config(**chosen))
    assert str(caught.value) == sentence


def test_a_default_of_the_cost_model_makes_up_for_what_is_not_decided(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import layout_time

    from graphopt.core.plan import Role

    monkeypatch.setattr(layout_time.LayoutTime, "reads", frozenset({"layout", Role.FUSION}))
    with pytest.raises(Incompatible, match="reads layout, which task=fusion does not decide"):
        compatibility.check_reads(config(task="fusion"))
    monkeypatch.setattr(layout_time.LayoutTime, "assumes", frozenset({"layout"}))
    compatibility.check_reads(config(task="fusion"))


def test_the_optimum_of_the_oracle_is_that_of_brute_force(place: Path) -> None:
    import chains as example
    import layout_time
    import layouts

    graph = example.chain(3, 64)
    task = layouts.Layouts(name="layouts", machine=machine())
    cost = layout_time.LayoutTime(name="layout_time", machine=machine(), objective="runtime", factor=0.5)
    every = np.array(list(itertools.product((0, 1), repeat=graph.num_ops)), np.int16)[:, :, None]
    assert cost.price(task.realise(graph, every)).cost.min() == pytest.approx(best(graph), rel=1e-12)
