"""Who may import whom, as docs/architecture.md draws it: read from the sources, and tried in a fresh process."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "graphopt"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A file or folder imports from layers above its own line only; those of one line do not know each other.
LAYERS = (
    ("commit", "compiled", "errors", "operators", "printable", "schedule"),
    ("limits", "lock", "metering", "progress"),
    ("composed", "construct", "finished", "graph", "loggers", "machine", "packed", "rows"),
    ("graph_builder", "spectral"),
    ("datasets", "encoders", "fusible", "list_schedule", "plan", "trace"),
    ("compact", "kernels"),
    ("rewrite",),
    ("check", "costs", "tasks"),
    ("pricing",),
    ("capacity", "problem", "rewrite_problem"),
    ("optimizer",),
    ("compat", "search", "suggested_machine"),
    ("advantages",),
    ("algos", "answer_format", "build", "cli", "stored", "sweep"),
    ("cell", "checkpoint", "decision"),
    ("rewrite_decision",),
    ("adopt", "evaluate", "reporting", "resuming"),
    ("answer", "collect", "filter", "pack", "report", "restored", "ship", "tune"),
    ("training_callbacks",),
    ("train",),
    ("api", "command"),
)
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}
LEARNING = {"torch", "torch_geometric", "pytorch_lightning"}
MAY_LEARN = {"algos", "encoders", "checkpoint", "restored", "ship", "train", "training_callbacks"}
# Of datasets: what reads torch modules or batches graphs for training.
CAPTURE = {"arguments", "aten_table", "capture", "fx_reader", "module", "recorder", "trace_errors", "zoo"}
# Of rewrite: what runs programs and reads torch modules.
RUNS = {"execution", "op_worker", "torch_call", "torch_import", "torch_vocabulary"}
# Classical methods, readers, tables and pictures: what a user needs who never trains.
WITHOUT_TORCH = """
    graph plan machine problem optimizer evaluate build compat report decision check trace
    tasks.joint tasks.scheduling tasks.placement tasks.fusion costs.simulator
    search.local search.xla_priority search.list_scheduling reporting.replay reporting.tables
    datasets.synthetic datasets.onnx datasets.files datasets.zoo_dataset
"""


def unit_of(path: Path) -> str:
    """The file directly in graphopt/, or the folder, that a source belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Full names of what import statements name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def units_imported(path: Path, *, lazy: bool) -> set[str]:
    """Units of graphopt that a source imports at its top, or anywhere with `lazy`."""
    tree = ast.parse(path.read_text())
    names = imported(ast.walk(tree) if lazy else iter(tree.body))
    return {name.split(".")[1] for name in names if name.startswith("graphopt.")} & set(RANK)


def test_the_page_draws_these_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Imports go one way")[1].split("\n## ")[0]
    drawn = [tuple(line.split()) for line in page.splitlines() if line.startswith("    ")]
    assert drawn == [tuple(sorted(layer)) for layer in LAYERS]


def test_every_file_and_folder_has_its_layer() -> None:
    found = {unit_of(path) for path in SOURCES} - {"__init__"}
    assert found == set(RANK)


@pytest.mark.parametrize("unit", sorted(RANK))
def test_imports_go_one_way(unit: str) -> None:
    for path in (p for p in SOURCES if unit_of(p) == unit):
        upwards = {other for other in units_imported(path, lazy=False) - {unit} if RANK[other] >= RANK[unit]}
        assert not upwards, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upwards))}"


def test_tasks_and_costs_do_not_know_each_other() -> None:
    for path in SOURCES:
        if unit_of(path) in ("tasks", "costs"):
            assert not units_imported(path, lazy=True) & ({"tasks", "costs"} - {unit_of(path)}), path


def test_learning_packages_stay_in_their_folders() -> None:
    for path in SOURCES:
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in MAY_LEARN or (parts[0] == "datasets" and parts[1] in CAPTURE):
            continue
        if parts[0] == "rewrite" and parts[1] in RUNS:
            continue
        names = imported(iter(ast.parse(path.read_text()).body))
        assert not {name.split(".")[0] for name in names} & LEARNING, path


def test_classical_work_loads_no_torch() -> None:
    lines = [f"import graphopt.{module}" for module in WITHOUT_TORCH.split()]
    code = "; ".join(["import sys", *lines, f"print(sorted({LEARNING} & set(sys.modules)))"])
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_command_imports_nothing_heavy() -> None:
    tree = ast.parse((ROOT / "graphopt" / "command.py").read_text())
    assert {name.split(".")[0] for name in imported(iter(tree.body))} == {"os", "sys", "hydra", "omegaconf", "graphopt"}
