"""Who may import whom, as docs/architecture.md draws it; the wheel, as somebody has it who never saw the repository."""

import ast
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from graphopt import CONF
from graphopt.run.records.rows import read

# --- Who may import whom, as docs/architecture.md draws it: read from the sources, and tried in a fresh process.

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "graphopt"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A room imports from floors above its own line only; rooms of one line do not know each other.
FLOORS = (
    ("core",),
    ("problems",),
    ("costs", "graphs"),
    ("contests", "rewrite", "search"),
    ("hardware", "learn"),
    ("run",),
    ("report",),
    ("backends",),
    ("__main__",),
)
RANK = {room: rank for rank, floor in enumerate(FLOORS) for room in floor}
LEARNING = {"torch", "torch_geometric", "pytorch_lightning"}
# Who may load them: learners, what reads torch modules, what runs programs.
MAY_LEARN = (
    *("backends/", "graphs/library/", "graphs/module.py", "graphs/readers/pytorch/", "graphs/zoo/", "learn/"),
    *("hardware/apply/", "hardware/program_run", "hardware/inductor/", "hardware/measure/kinds/", "report/apply/"),
    *("rewrite/io/torch_", "rewrite/ir/execution.py", "run/ship.py", "run/training/"),
)
# Classical methods, readers, tables and pictures: what a user needs who never trains.
WITHOUT_TORCH = """
    core.graph core.plan core.machine core.oracles core.trace problems.problem problems.optimizer
    problems.tasks.placement problems.tasks.fusion
    problems.tasks.recomputing costs.simulator costs.step search.saved_sets search.walks.local
    search.fusion.xla_priority search.heuristics.schedules graphs.torch_module graphs.synthetic graphs.onnx
    graphs.files graphs.zoo_dataset graphs.models contests.sharding.sharding_task
    contests.sharding.sharding_search contests.sharding.sharding_instances run.evaluate run.config.build
    run.config.compatibility report.command report.decision report.replay report.tables.lines
"""


def unit_of(path: Path) -> str:
    """The room that a source belongs to, or the file directly in graphopt/."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Full names of what import statements name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def modules_imported(path: Path, types: bool = False) -> frozenset[str]:
    """Modules of graphopt that a source imports anywhere, inside functions too. types: also for types alone."""
    nodes = [*ast.walk(parsed(path))]
    typing = [node for node in nodes if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    left_out = set() if types else {id(inner) for node in typing for inner in ast.walk(node)}
    names = imported(node for node in nodes if id(node) not in left_out)
    found = {name if name in MODULES else name.rpartition(".")[0] for name in names}
    return frozenset((found & set(MODULES)) - {"graphopt", module_of(path)})


def test_the_page_draws_these_floors() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().split("## Imports go one way")[1].split("\n## ")[0]
    drawn = [tuple(line.split()) for line in page.splitlines() if line.startswith("    ")]
    assert drawn == [tuple(sorted(layer)) for layer in FLOORS]


def test_every_room_has_its_floor() -> None:
    found = {unit_of(path) for path in SOURCES} - {"__init__"}
    assert found == set(RANK)


def test_names_stand_once() -> None:
    """No two classes and no two files are called alike; an option's file is called after it, as REGAL's two are, and a
    backend's after its harness."""
    trees = map(parsed, SOURCES)
    classes = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    files = Counter(path.name for path in SOURCES if path.name != "__init__.py")
    assert {name for name, count in (classes + files).items() if count > 1} == {"graphnet.py", "regal.py"}


def test_imports_make_no_circle() -> None:
    """Between files, not only folders; imports inside functions count."""
    left = {module: modules_imported(path) for module, path in MODULES.items()}
    while free := [module for module, others in left.items() if not others & set(left)]:
        for module in free:
            del left[module]
    assert left == {}


@pytest.mark.parametrize("unit", sorted(RANK))
def test_imports_go_one_way(unit: str) -> None:
    for path in (p for p in SOURCES if unit_of(p) == unit):
        others = {unit_of(MODULES[module]) for module in modules_imported(path)} - {unit}
        upwards = {other for other in others if RANK[other] >= RANK[unit]}
        assert not upwards, f"{path.relative_to(ROOT)} imports {', '.join(sorted(upwards))}"


def test_learning_packages_stay_in_their_folders() -> None:
    for path in SOURCES:
        if path.relative_to(PACKAGE).as_posix().startswith(MAY_LEARN):
            continue
        names = imported(parsed(path).body)
        assert not {name.split(".")[0] for name in names} & LEARNING, path


def test_classical_work_loads_no_torch() -> None:
    lines = [f"import graphopt.{module}" for module in WITHOUT_TORCH.split()]
    code = "; ".join(["import sys", *lines, f"print(sorted({LEARNING} & set(sys.modules)))"])
    answer = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_command_imports_nothing_heavy() -> None:
    names = imported(parsed(PACKAGE / "__main__.py").body)
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names


# --- The wheel, as somebody has it who never saw the repository: the command, its options, an algorithm of his own.

STRANGE = """
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.assignment import AssignProblem

class Coin(Optimizer):
    def __init__(self, *, name: str, odds: float) -> None:
        self.name, self.odds = name, odds

    def solve(self, problem: AssignProblem) -> None:
        free = problem.task.mask(problem.graph)
        while problem.open:
            flip = free & (problem.rng.random(free.shape) < self.odds)
            problem.cost((problem.best ^ flip)[None].astype("int16"))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel is installed, made from a copy: setuptools leaves files behind where it builds."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CONF.parent / name, source)
    for name in ("graphopt", "conf"):
        shutil.copytree(CONF.parent / name, source / name, symlinks=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(folder), str(source)], check=True)
    return folder


def test_the_wheel_has_all_files_and_options(site: Path) -> None:
    def files(package: Path) -> set[str]:
        found = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
        return {path.as_posix() for path in found if "__pycache__" not in path.parts}

    assert {name for name in files(PACKAGE) if not name.startswith("run/conf/")} <= files(site / "graphopt")
    options = {name for name in files(site / "graphopt" / "run" / "conf") if name.endswith(".yaml")}
    assert options == {name for name in files(CONF) if name.endswith(".yaml")}


def graphopt(site: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The installed command, called in a folder of the user's."""
    around = {**os.environ, "PYTHONPATH": str(site), "NUMBA_OPT": "0"}  # all is compiled anew, since the place is new
    command = [str(site / "bin" / "graphopt"), *words]
    return subprocess.run(command, cwd=folder, env=around, capture_output=True, text=True)


SMALL = ("dataset=synthetic", "task=placement", "logger=none", "dataset.test=1", "dataset.ops=20", "budget.evals=50")


def test_an_algorithm_of_ones_own_needs_no_change_of_the_package(site: Path, tmp_path: Path) -> None:
    (tmp_path / "coin.py").write_text(STRANGE)
    (tmp_path / "options" / "algo").mkdir(parents=True)
    (tmp_path / "options" / "algo" / "coin.yaml").write_text("_target_: coin.Coin\nname: coin\nodds: 0.1\n")
    done = graphopt(site, tmp_path, "--config-dir", "options", "algo=local", "compare=[coin]", *SMALL)
    assert done.returncode == 0, done.stderr
    (rows,) = (read(file) for file in tmp_path.rglob("rows.jsonl"))
    assert {row["algo"]: row["evals"] for row in rows} == {"local": 50, "coin": 50}
    assert {path.name for path in tmp_path.iterdir()} == {"coin.py", "options", "outputs"}
    wrong = graphopt(site, tmp_path, "algo=coin", *SMALL)
    assert wrong.returncode == 1 and "algo=coin does not exist" in wrong.stderr and wrong.stderr.count("\n") == 1


def test_torch_compile_finds_the_backend(site: Path, tmp_path: Path) -> None:
    code = "import torch; print('graphopt' in torch._dynamo.list_backends())"
    around = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=around, capture_output=True, text=True)
    assert done.stdout.strip() == "True", done.stderr
