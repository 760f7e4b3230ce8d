"""Learners decide and train on another device than the CPU, which no GPU is needed for (`other_device`)."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from learn.other_device import other_device
from problems.test_conformance import LEARNED, fits, graphs, machine, make, programs, simulator, task_nodes, task_of

from graphopt.core.utils import registry
from graphopt.learn.learner import Learner
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct

LABELS = ("fusion", "placement", "joint")  # every head of every network
CELLS = [(algo, label) for algo in LEARNED for label in LABELS if fits(algo, label)]
CELLS += [(algo, "rewrite") for algo in ("xrlflow", "xrlflow_paper")]


def problem_of(label: str) -> tuple[Any, list[Any]]:
    if label != "rewrite":
        return simulator(), [*graphs()]
    return construct(
        registry.option("cost", "flops"), "cost", {"machine": machine(), "task": task_of(label)}
    ), programs()


def made(algo: str, label: str, network: str = "graphsage") -> Any:
    torch.manual_seed(0)
    return make(algo, label, network)


def best(learner: Any, label: str) -> float:
    cost, (graph, *_) = problem_of(label)
    problem, _ = solve(learner, graph, task_of(label), cost, evals=7, seed=3)
    return float(problem.best_cost)


def test_tensors_of_two_devices_do_not_meet() -> None:
    with other_device() as device:
        x, y = torch.ones(3).to(device), torch.ones(3)
        assert (x * 2.0 + torch.tensor(1.0)).tolist() == [3.0, 3.0, 3.0]
        assert x[torch.tensor([0, 1])].shape == (2,) and torch.tensor([1.0], device=device).device == device
        for meet in (lambda: x + y, lambda: y[torch.tensor([0]).to(device)], lambda: y.mul_(x)):
            with pytest.raises(RuntimeError, match="two devices"):
                meet()
        with pytest.raises(TypeError, match="no array"):
            x.numpy()


@pytest.mark.parametrize(("algo", "label"), CELLS, ids=lambda part: part)
def test_a_learner_decides_there_as_on_the_cpu(algo: str, label: str) -> None:
    here = best(made(algo, label), label)
    with other_device() as device:
        learner = made(algo, label).to(device)
        assert learner.device == device and best(learner, label) == pytest.approx(here, rel=1e-12)


@pytest.mark.parametrize("network", registry.options("encoder"))
def test_encoders_run_there(network: str) -> None:
    label = next(label for label in task_nodes() if fits("go", label))
    here = best(made("go", label, network), label)
    with other_device() as device:
        assert best(made("go", label, network).to(device), label) == pytest.approx(here, rel=1e-12)


@pytest.mark.parametrize(("algo", "label"), [cell for cell in CELLS if cell[1] != "joint"], ids=lambda part: part)
def test_a_learner_trains_there_as_on_the_cpu(algo: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights after two steps."""
    here = weights(trained(made(algo, label), label, monkeypatch))
    with other_device() as device:
        there = weights(trained(made(algo, label).to(device), label, monkeypatch))
    assert here.keys() == there.keys()
    for name, value in here.items():
        assert torch.allclose(value, there[name], rtol=1e-4, atol=1e-4), name


def weights(learner: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().cpu().clone() for name, value in learner.named_parameters()}


def trained(learner: Any, label: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What Lightning's trainer does, which would move the learner to a device that it knows."""
    of = problem_of(label)[1]
    for name, value in {"trainer": SimpleNamespace(estimated_stepping_batches=2, world_size=1, global_rank=0),
                        "log": lambda *_, **__: None, "log_dict": lambda *_, **__: None,
                        "manual_backward": lambda _, loss, **__: loss.backward()}.items():  # fmt: skip
        monkeypatch.setattr(Learner, name, value, raising=False)
    torch.manual_seed(0)
    learner.train()
    learner.prepare_training(of)
    given = learner.configure_optimizers()
    optimizer = given["optimizer"] if isinstance(given, dict) else given
    schedule = given.get("lr_scheduler") if isinstance(given, dict) else None
    monkeypatch.setattr(Learner, "optimizers", lambda _: optimizer, raising=False)
    monkeypatch.setattr(Learner, "lr_schedulers", lambda _: schedule and schedule["scheduler"], raising=False)
    for step in range(2):
        loss = learner.training_step(of, step)
        if learner.automatic_optimization:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return learner
