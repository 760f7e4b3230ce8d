"""graphopt as a library: own modules and files, answers of every task, what other programs read."""

import json
import tomllib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import graphopt
from graphopt.core.errors import UserError
from graphopt.core.graph import GraphError
from graphopt.core.operators import Category
from graphopt.run.training.adopt import ANY, PRETRAINED

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
TASKS = ("fusion", "placement", "scheduling", "placement_scheduling", "joint")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + self.second(nn.functional.gelu(self.first(self.norm(x)))) * scale


@pytest.mark.parametrize("task", TASKS)
def test_an_own_module_under_every_task(task: str, tmp_path: Path) -> None:
    answer = graphopt.optimize(Block(), torch.zeros(8, 64), task=task, budget=100)
    assert answer.price <= answer.default_price and answer.speedup >= 1.0 and answer.task == task
    assert answer.check() == []
    saved = graphopt.load(answer.save(tmp_path / "answer.npz"))
    assert (saved.price, saved.graph.hash, saved.facts) == (answer.price, answer.graph.hash, answer.facts)
    assert saved.check() == [] and saved.to_json() == answer.to_json()


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
    assert json.loads(answer.to_json())["rules"] == answer.rules()
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


def test_a_graph_of_ones_own() -> None:
    graph = graphopt.optimize(Block(), torch.zeros(8, 64), budget=0, algo="default").graph
    assert graphopt.optimize(graph, budget=100).graph.hash == graph.hash


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.onnx",), "no file nowhere.onnx"),
        ((3,), "cannot optimize a int"),
        ((Block(), torch.zeros(8, 63)), "(?i)shape|size"),
    ],
)
def test_what_cannot_be_is_one_sentence(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises((UserError, GraphError), match=words) as caught:
        graphopt.optimize(*arguments)
    assert "\n" not in str(caught.value)


def test_unknown_options_are_sentences() -> None:
    with pytest.raises(UserError, match="algo=no_such does not exist"):
        graphopt.optimize(Block(), torch.zeros(8, 64), algo="no_such")
    with pytest.raises(UserError, match="has to be trained"):
        graphopt.optimize(Block(), torch.zeros(8, 64), algo="go")
    with pytest.raises(UserError, match="is saved as a"):
        graphopt.optimize(Block(), torch.zeros(8, 64), budget=0, algo="default").save("answer.json")


def test_the_package_says_what_it_offers() -> None:
    project = tomllib.loads((graphopt.CONF.parent / "pyproject.toml").read_text())["project"]
    assert graphopt.__version__ == project["version"]
    assert {*graphopt.__all__, "__version__"} <= {*dir(graphopt)}
    assert all(getattr(graphopt, name) is not None for name in graphopt.__all__)
