"""graphopt as a library: own modules and files, answers of every task, what other programs read."""

import json
import logging
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import yaml
from commands import command
from torch import nn

import graphopt
from graphopt import CONF, OWN_OPTIONS
from graphopt.__main__ import main as command_line
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.operators import Category
from graphopt.core.utils import registry
from graphopt.report.shipped import main as shipped_main
from graphopt.report.shipped import policies
from graphopt.run.training.adopt import ANY, PRETRAINED

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
TASKS = ("fusion", "placement", "scheduling", "placement_scheduling", "joint")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x)))) * scale


LINE = Block.forward.__code__.co_firstlineno + 1


@pytest.mark.parametrize("task", TASKS)
def test_an_own_module_under_every_task(task: str, tmp_path: Path) -> None:
    answer = graphopt.optimize(Block(), torch.zeros(8, 64), task=task, budget=100)
    assert answer.price <= answer.default_price and answer.speedup >= 1.0 and answer.task == task
    assert answer.check() == []
    saved = graphopt.load(answer.save(tmp_path / "answer.npz"))
    assert (saved.price, saved.graph.hash, saved.facts) == (answer.price, answer.graph.hash, answer.facts)
    assert saved.check() == [] and saved.to_json() == answer.to_json()


@pytest.mark.parametrize(("cost", "backward"), [("calibrated", True), ("generated_code", False)])
def test_an_own_module_by_predicted_times_of_torchinductor(cost: str, backward: bool) -> None:
    """Of the program that is lowered; a graph that was captured op by op has none."""
    answer = graphopt.optimize(Block(), torch.zeros(8, 64), cost=cost, backward=backward, budget=4)
    assert answer.price <= answer.default_price and isinstance(answer.graph.program, bytes)
    with pytest.raises(UserError, match="only task=fusion decides"):
        graphopt.optimize(answer.graph, task="joint", cost=cost, budget=4)
    (row,) = graphopt.compare((Block(), torch.zeros(8, 64)), algos=["motif_scan"], budget=4, cost=cost).rows
    assert row["status"] == "ok" and (backward or row["initial"] == answer.default_price)


@pytest.mark.parametrize("budget", [0, 4])
def test_a_program_that_is_predicted_to_take_no_time(budget: int, tmp_path: Path) -> None:
    nothing = (nn.ReLU(), torch.zeros(0, 3))
    answer = graphopt.optimize(*nothing, cost="generated_code", algo="compiler_policy", budget=budget)
    assert (answer.default_price, answer.price, answer.speedup) == (0, 0, 1)
    found = graphopt.compare([nothing], algos=["motif_scan", "local"], cost="generated_code", budget=max(budget, 1))
    assert "motif_scan" in str(found) and found.html(tmp_path / "page.html").exists()


def test_functions_and_methods_of_modules_are_models() -> None:
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x.sigmoid() - y) ** 2).mean()

    pair = torch.zeros(8, 64), torch.zeros(8, 64)
    answer = graphopt.optimize(loss, pair, budget=10)
    (row,) = graphopt.compare((loss, pair), algos=["default"], budget=10).rows
    assert answer.graph.name == "loss" and row["initial"] == answer.default_price
    step = graphopt.optimize(Block().forward, torch.zeros(8, 64), backward=True, budget=10).graph
    assert step.num_ops > graphopt.optimize(Block(), torch.zeros(8, 64), budget=10).graph.num_ops
    with pytest.raises(GraphError, match="no output depends on a parameter"):
        graphopt.optimize(loss, pair, backward=True)


@pytest.mark.parametrize("more", [
    {"task": "fusion"}, {"task": "fusion", "backward": True}, {"task": "recompute"}, {"task": "rewrite"},
])  # fmt: skip
def test_the_process_and_the_module_stay_as_they_were(more: dict[str, Any]) -> None:
    module = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)).eval()
    module[1].train()

    def now() -> list[Any]:
        loggers = [logging.getLogger(name).level for name in ("pytorch_lightning", "lightning_fabric")]
        modes, numbers = [part.training for part in module.modules()], torch.get_rng_state().tolist()
        state = [value.tolist() for value in module.state_dict().values()]
        return [modes, state, numbers, torch.get_num_threads(), loggers]

    before = now()
    graphopt.optimize(module, torch.zeros(4, 8), budget=3, **more)
    assert now() == before


def test_changes_are_priced_and_sorted(tmp_path: Path) -> None:
    answer = graphopt.optimize(LIGHT, budget=200)
    changes = answer.changes()
    assert changes and answer.price < answer.default_price
    assert {change.what for change in changes} <= {"store -> inline", "inline -> store"}
    alone = [change.price_alone for change in changes]
    assert alone == sorted(alone, reverse=True) and alone[0] >= answer.price


def test_kernels_are_whole_and_in_order() -> None:
    answer = graphopt.optimize(LIGHT, task="joint", machine="gpu2", budget=100)
    kernels = answer.kernels()
    assert [kernel.start for kernel in kernels] == sorted(kernel.start for kernel in kernels)
    assert max(kernel.end for kernel in kernels) == pytest.approx(answer.price)
    stored = {answer.graph.op_names[op] for op in range(answer.graph.num_ops) if not answer.plan.inline[0, op]}
    assert {kernel.root for kernel in kernels} == stored and all(k.root in k.ops for k in kernels)
    covered = {op for kernel in kernels for op in kernel.ops}
    dead = {name for name in answer.graph.op_names if name not in covered}
    views = {answer.graph.op_names[op] for op in np.flatnonzero(answer.graph.category == Category.VIEW)}
    assert dead <= views  # a view may be nobody's: what it names is a graph's output


def test_json_can_be_priced_again(tmp_path: Path) -> None:
    """The placement and the order by name, read by `graphopt.report.decision price`, cost what the answer costs."""
    from graphopt.report.decision import main

    answer = graphopt.optimize(LIGHT, task="placement", budget=200)
    said = json.loads(answer.to_json())
    (tmp_path / "plan.json").write_text(json.dumps({"device": said["device"]}))
    file = answer.save(tmp_path / "answer.npz")
    assert main(["price", str(tmp_path / "plan.json"), "--like", str(file), "-o", str(tmp_path / "again.npz")]) == 0
    assert graphopt.load(tmp_path / "again.npz").price == answer.price
    assert said["price"] == answer.price and len(said["order"]) == len(said["kernels"])


def test_rewriting_makes_a_model(tmp_path: Path) -> None:
    answer = graphopt.optimize(
        LIGHT, task="rewrite", algo="rewrite_greedy", budget=200,
        settings=["cost=flops", "cost@judge=flops"],
    )  # fmt: skip
    assert answer.rules() and answer.price < answer.default_price and answer.changes() == []
    onnx.checker.check_model(onnx.load(answer.save_model(tmp_path / "better.onnx")))
    said = json.loads(answer.to_json())
    assert said["rules"] == answer.rules() and said["replaced"] == [one.op for one in answer.replaced()]
    assert "conv" in {one.operator for one in answer.replaced()}
    again = graphopt.load(answer.save(tmp_path / "answer.npz"))
    assert again.rules() == answer.rules() and again.check() == []
    with pytest.raises(UserError, match="no model was made"):
        again.save_model(tmp_path / "other.onnx")


@pytest.mark.parametrize("file", sorted(PRETRAINED.glob("*.ckpt")), ids=lambda file: str(file.stem))
def test_every_policy_of_the_package_answers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody has to repeat the settings of its network, and a library prints nothing."""
    algo, task, objective = file.stem.split("-")
    task, objective = (usual if word == ANY else word for word, usual in ((task, "joint"), (objective, "runtime")))
    answer = graphopt.optimize(LIGHT, task=task, algo=algo, ckpt="pretrained", objective=objective, budget=20)
    assert answer.objective == objective and answer.price <= answer.default_price
    assert capsys.readouterr().out == ""


def test_pictures_are_drawn(tmp_path: Path) -> None:
    files = graphopt.optimize(Block(), torch.zeros(8, 64), budget=50).draw(tmp_path)
    assert {file.suffix for file in files} >= {".png"} and all(file.stat().st_size > 1000 for file in files)


def test_the_same_call_gives_the_same_answer_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    both = [graphopt.optimize(Block(), {"x": torch.zeros(8, 64), "scale": 2.0}, budget=100, seed=3) for _ in range(2)]
    assert both[0].to_json() == both[1].to_json()
    assert capfd.readouterr() == ("", "")


def test_an_own_algorithm_of_the_environments_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python and on the command line, without a flag."""
    (tmp_path / "options" / "algo").mkdir(parents=True)
    node = {**registry.option("algo", "random"), "name": "dice"}
    (tmp_path / "options" / "algo" / "dice.yaml").write_text(yaml.safe_dump(node))
    small = ["dataset=synthetic", "dataset.test=1", "dataset.ops=20", "logger=none", "budget.evals=[3]"]
    assert "dice" in command(tmp_path / "before", "algo=dice", *small).err
    monkeypatch.setenv(OWN_OPTIONS, str(tmp_path / "options"))
    assert graphopt.optimize(Block(), torch.zeros(8, 64), algo="dice", budget=3).facts["algo"] == "dice"
    answer = command(tmp_path / "after", "algo=dice", *small)
    assert answer.code == 0 and {row["algo"] for row in answer.rows} == {"dice"}, answer.err


def test_a_graph_of_ones_own() -> None:
    graph = graphopt.optimize(Block(), torch.zeros(8, 64), budget=0, algo="default").graph
    assert graphopt.optimize(graph, budget=100).graph.hash == graph.hash


def test_the_package_says_what_it_offers() -> None:
    project = tomllib.loads((graphopt.CONF.parent / "pyproject.toml").read_text())["project"]
    assert graphopt.__version__ == project["version"]
    assert {*graphopt.__all__, "__version__"} <= {*dir(graphopt)}
    assert all(getattr(graphopt, name) is not None for name in graphopt.__all__)


# --- Training and comparing from a program.


def test_what_is_trained_is_compared_and_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = {"steps": 3, "output_dir": tmp_path, "progress": False, "settings": ["encoder.width=8"]}
    pairs = [(Block(), torch.zeros(8, 64)), (Block(), torch.zeros(4, 64))]
    level, numbers = logging.getLogger("pytorch_lightning").level, torch.get_rng_state().tolist()
    path = graphopt.train(pairs, val=LIGHT, **few)
    assert (logging.getLogger("pytorch_lightning").level, torch.get_rng_state().tolist()) == (level, numbers)
    assert path.is_file() and tmp_path in path.parents
    written = path.stat().st_mtime_ns
    assert graphopt.train(pairs, val=LIGHT, **few) == path and path.stat().st_mtime_ns == written
    answer = graphopt.optimize(Block(), torch.zeros(16, 64), ckpt=str(path), budget=20)
    assert answer.price <= answer.default_price
    results = graphopt.compare(
        [(Block(), torch.zeros(16, 64)), LIGHT], algos=["default", "local", "go"], budget=[0, 20], seeds=[0, 1],
        ckpt={"go": path}, progress=False,
    )  # fmt: skip
    cases = {(row["graph"], row["algo"], row["evals_cap"], row["seed"]) for row in results.rows}
    assert len(cases) == len(results.rows) == 2 * 3 * 2 * 2 and all(row["status"] == "ok" for row in results.rows)
    for row, one in zip(results.rows, results.answers(), strict=True):
        assert (one.price, one.graph.hash) == (row["judged"], row["graph_hash"]) and one.check() == []
    assert "| 20 | go |" in str(results)
    assert capsys.readouterr().out == ""


def test_open_dimensions_are_settings(tmp_path: Path) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("n", 4)) for name in "xy")
    nodes = [onnx.helper.make_node("Exp", ["x"], ["e"]), onnx.helper.make_node("Tanh", ["e"], ["y"])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y]))
    path = tmp_path / "open.onnx"
    onnx.save(model, path)
    with pytest.raises(GraphError, match="'n' of input 'x' is not fixed"):
        graphopt.compare(path, algos=["default"])
    sized = ["+dataset.dims={n: 1000000}"]
    with pytest.raises(UserError, match="Block is none"):
        graphopt.compare((Block(), torch.zeros(8, 64)), algos=["default"], settings=sized)
    (row,) = graphopt.compare([path], algos=["default"], settings=sized).rows
    assert row["initial"] == graphopt.optimize(path, settings=sized, budget=1).default_price > 1e-5


def test_a_comparison_is_the_commands_cells(tmp_path: Path) -> None:
    small = ["dataset.test=2", "dataset.ops=20"]
    call = {"task": "placement", "algos": ["default", "scan"], "budget": 50, "output_dir": tmp_path, "study": "two"}
    first = graphopt.compare("synthetic", **call, settings=small, progress=False)
    assert {path.name for path in (tmp_path / "two").iterdir()} > {str(row["cell"]) for row in first.rows}
    assert graphopt.compare("synthetic", **call, settings=small, progress=False).rows == first.rows
    data = graphopt.compare(Two(), **{**call, "study": "held"}, progress=False)
    assert [row["graph"] for row in data.rows] == ["light_squeezenet"] * 2


class Two(graphopt.Dataset):
    """A data set of a program's own."""

    name = "two"

    def graphs(self, split: str) -> list[graphopt.Graph]:
        return [graphopt.optimize(LIGHT, algo="default", budget=0).graph] if split == "test" else []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: graphopt.optimize("nowhere.onnx"), "no file nowhere.onnx"),
        (lambda: graphopt.optimize(3), "cannot optimize a int"),
        (lambda: graphopt.optimize(Block(), torch.zeros(8, 63)), "(?i)shape|size"),
        (lambda: graphopt.optimize(LIGHT, algo="no_such"), "algo=no_such does not exist"),
        (lambda: graphopt.optimize(LIGHT, algo="go"), "has to be trained"),
        (lambda: graphopt.optimize(LIGHT, budget=0, algo="default").save("answer.json"), "is saved as a"),
        (lambda: graphopt.train(LIGHT, algo="local"), "algo=local is not trained before"),
        (lambda: graphopt.train("no_such"), "neither a file nor a data set"),
        (lambda: graphopt.train(LIGHT, algo="no_such"), "algo=no_such does not exist"),
        (lambda: graphopt.train([3]), "cannot optimize a int"),
        (lambda: graphopt.compare(LIGHT, algos="local"), "must be a list"),
        (lambda: graphopt.compare(LIGHT, algos=["local", "tensat"]), "algo=tensat needs a task that rewrites"),
        (lambda: graphopt.compare(LIGHT, algos=["local", "go"]), "algo=go has to be trained"),
        (lambda: graphopt.compare(LIGHT, algos=["local"], ckpt={"go": "x"}), "ckpt names go"),
        (lambda: graphopt.compare([], algos=["local"]), "no graphs in split"),
        (lambda: graphopt.optimize(LIGHT, ckpt="nowhere.ckpt"), "nowhere.ckpt"),
    ],
)
def test_wrong_calls_are_one_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises((UserError, GraphError), match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_public_names_of_classical_work_load_no_torch() -> None:
    code = ("import sys, graphopt; [getattr(graphopt, name) for name in graphopt.__all__ if name != 'Learner']; "
            "assert not {'torch', 'pytorch_lightning'} & {*sys.modules}")  # fmt: skip
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- what is taken where nothing is said


@pytest.mark.parametrize(
    ("words", "algo"),
    [
        ({"task": "fusion"}, "kernel_model"),
        ({"task": "fusion", "objective": "peak_memory"}, "motif_scan"),
        ({"task": "joint", "algo": "auto"}, "run_model"),
        ({"task": "placement", "objective": "max_load"}, "load_balance"),
        ({"task": "placement_scheduling", "objective": "peak_memory"}, "hot_local"),
        ({"task": "rewrite"}, "tensat"),
        ({"task": "fusion", "algo": "scan"}, "scan"),
    ],
)
def test_the_recommended_algorithm_is_taken_and_named(words: dict[str, Any], algo: str) -> None:
    answer = graphopt.optimize(Block(), torch.zeros(8, 64), budget=10, **words)
    assert answer.facts["algo"] == algo and f"by {algo})" in repr(answer)
    assert answer.price <= answer.default_price


def test_settings_that_name_an_algorithm_count() -> None:
    assert graphopt.optimize(LIGHT, budget=5, settings=["algo=random"]).facts["algo"] == "random"


def test_every_recommended_policy_ships() -> None:
    known = yaml.safe_load((CONF / "recommended.yaml").read_text())
    shipped = {tuple(line[:3]) for line in policies(PRETRAINED)}
    for task, algo in known.items():
        assert {(algo, task, "runtime"), (algo, "any", "any")} & shipped, task


def test_a_cost_of_this_machine_brings_its_machine() -> None:
    answer = graphopt.optimize(Block(), torch.zeros(8, 64), task="rewrite", cost="profiled", budget=20, seconds=20)
    assert answer.machine.name == "cpu_core" and answer.judge.name == "profiled"


@pytest.mark.parametrize("inputs", [torch.zeros(8, 64), (torch.zeros(8, 64),), {"x": torch.zeros(8, 64)}])
def test_recomputation_takes_the_inputs_that_other_tasks_take(inputs: Any) -> None:
    class Loss(Block):
        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return super().forward(x, scale).sum()

    assert graphopt.optimize(Loss(), inputs, task="recompute", budget=20).price > 0


def test_an_objective_that_a_cost_lacks_is_refused_in_words() -> None:
    with pytest.raises(UserError, match="leave out objective='peak_memory'"):
        graphopt.optimize(LIGHT, task="rewrite", objective="peak_memory")


def test_a_comparison_is_a_frame_pictures_and_a_page(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    found = graphopt.compare(LIGHT, algos=["default", "scan"], budget=5, progress=False)
    frame = found.frame()
    assert isinstance(frame, pandas.DataFrame) and set(frame["algo"]) == {"default", "scan"} and "trace" not in frame
    assert any(file.suffix == ".png" for file in found.plot(tmp_path))
    assert "scan is best" in found.html(tmp_path / "page.html").read_text()


def test_shipped_policies_and_the_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert shipped_main([]) == 0 and "kernel_model" in capsys.readouterr().out
    sys.argv, before = ["graphopt", "--version"], sys.argv
    try:
        command_line()
    finally:
        sys.argv = before
    assert capsys.readouterr().out == f"graphopt {graphopt.__version__}\n"


def test_changes_name_the_module_and_the_line(tmp_path: Path) -> None:
    """Also read from a file; ops of gradients have none."""
    model = nn.Sequential(Block(), Block())
    answer = graphopt.optimize(model, torch.zeros(8, 64), algo="inline_all", settings=["task.max_ops=2"], budget=10)
    saved = graphopt.load(answer.save(tmp_path / "answer.npz"))
    assert {saved.decided.source(name) for name in answer.graph.op_names} == {
        f"{block}{part}, {Path(__file__).relative_to(Path.cwd())}:{LINE}"
        for block in "01"
        for part in ("", ".norm", ".first", ".second")
    }
    both = graphopt.optimize(model, torch.zeros(8, 64), algo="default", backward=True, budget=1)
    last = both.graph.op_names[-1]
    assert both.decided.source(last) == "" and both.decided.source(both.graph.op_names[0]).startswith("0.norm, ")
