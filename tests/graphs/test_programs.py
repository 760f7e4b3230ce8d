"""`dataset=programs`: graphs that bring their programs along."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from graphopt.core.graph import GraphError
from graphopt.graphs.torch_module import TrainingSteps
from graphopt.hardware.datasets.programs import Programs
from graphopt.hardware.program_run import Session

SMALL = {"zoo": "rnnlm", "layers": 1, "steps": 2, "batch": 2, "width": 8, "vocabulary": 16, "backward": True}


def programs(folder: Path, *test: Any) -> Programs:
    return Programs(name="programs", train=[], val=[], test=list(test), cache_dir=str(folder))


def factory() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.zeros(2, 4)


def test_a_program_can_be_run_also_from_the_cache(tmp_path: Path) -> None:
    (graph,) = programs(tmp_path, {**SMALL, "name": "small"}).graphs("test")
    (again,) = programs(tmp_path, {**SMALL, "name": "small"}).graphs("test")
    assert graph.name == again.name == "small" and list(tmp_path.glob("*.npz"))
    assert Session(graph, "cpu", 1).own_peak == Session(again, "cpu", 1).own_peak > 0


def test_a_users_own_module(tmp_path: Path) -> None:
    (graph,) = programs(tmp_path, {"module": f"{__name__}:factory"}).graphs("test")
    assert Session(graph, "cpu", 1).own_peak > 0


@pytest.mark.parametrize(
    ("entry", "said"),
    [({"model": "rnnlm"}, "names one of zoo"), ({"zoo": "nothing"}, "no model 'nothing'"),
     ({"timm": "x", "depth": 3}, "has no depth")],
)  # fmt: skip
def test_a_bad_entry_is_a_sentence(tmp_path: Path, entry: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said):
        programs(tmp_path, entry).graphs("test")


def broken() -> tuple[nn.Module, torch.Tensor]:
    raise RuntimeError("no such weights")


def test_a_bad_entry_among_others_is_left_out(tmp_path: Path) -> None:
    bad = f"{__name__}:broken"
    made = programs(tmp_path, {"module": bad}, {"module": f"{__name__}:factory"})
    with pytest.warns(UserWarning, match="left out: .*no such weights"):
        (graph,) = made.graphs("test")
    assert graph.name.endswith("factory")
    ((name, why),) = made.unread("test").items()
    assert name == f"module={bad}" and "no such weights" in why and made.unread("train") == {}
    steps = TrainingSteps(name="steps", modules=[bad, f"{__name__}:loss"])
    with pytest.warns(UserWarning, match="left out: "):
        assert [step.name for step in steps.graphs("test")] == [f"{__name__}.loss"]
    assert [*steps.unread("test")] == [bad]


class Loss(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = super().forward(x).square().mean()
        return loss


def loss() -> tuple[nn.Module, torch.Tensor]:
    return Loss(nn.Linear(4, 4), nn.ReLU()), torch.zeros(2, 4)
