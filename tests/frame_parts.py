"""Small parts with known optima from which tests build whole cells, and the configuration that joins them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from toy import ToyTask, toy_graph

from graphopt.core.graph import Graph
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans, Role
from graphopt.graphs.dataset import Dataset, Split
from graphopt.learn.learner import Learner
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import Task

SIZES: dict[Split, tuple[int, ...]] = {"train": (6, 7), "val": (5,), "test": (8, 9)}


class ToyGraphs(Dataset):
    def __init__(self, *, name: str, empty: list[str]) -> None:
        self.name, self.empty = name, empty

    def graphs(self, split: Split) -> list[Graph]:
        return [] if split in self.empty else [toy_graph(ops, seed) for seed, ops in enumerate(SIZES[split])]


class NoGraphs(ToyGraphs):
    """Fails when it is made, or when it is asked for graphs."""

    def __init__(self, *, name: str, wrong: bool) -> None:
        super().__init__(name=name, empty=[])
        if wrong:
            int("x")

    def graphs(self, split: Split) -> list[Graph]:
        raise ZeroDivisionError(split)


class Binary(ToyTask):
    roles: ClassVar[Mapping[str, Role]] = {"inline": Role.FUSION}

    def __init__(self, *, name: str, machine: Machine) -> None:
        super().__init__({"inline": 2})
        self.name, self.machine = name, machine


class Rewriting(Task):
    noun = "a rewriting task"


class Ones(CostModel):
    """1 + the number of ops whose choice is not 1, times `factor`: the optimum is 1 x factor."""

    def __init__(self, *, name: str, machine: Machine, factor: float) -> None:
        self.name, self.machine, self.factor, self.objective = name, machine, factor, "runtime"
        self.calls = 0

    def price(self, plans: Plans) -> Prices:
        self.calls += len(plans)
        return Prices(self.factor * (1.0 + (plans.device != 1).sum(1)), np.zeros(len(plans)))


class Bytes(Ones):
    def __init__(self, *, name: str, machine: Machine, factor: float) -> None:
        super().__init__(name=name, machine=machine, factor=factor)
        self.objective = "peak_memory"


class Timed(Ones):
    """Says that its prices are measured, each with a standard error of 6 %."""

    def price(self, plans: Plans) -> Prices:
        return replace(super().price(plans), noise=0.06, measurements=7)


class NoNumber(Ones):
    """Its first choices cost infinity less infinity."""

    def price(self, plans: Plans) -> Prices:
        return Prices(np.where(plans.device[:, 0] == 1, np.nan, super().price(plans).cost), np.zeros(len(plans)))


class NeedsProgram(Ones):
    needs = frozenset({"program"})


class Draws(Optimizer):
    """Random decisions until the budget ends."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        while True:
            problem.cost(problem.rng.integers(0, 2, (3, problem.graph.num_ops, 1)).astype(np.int16))


class Flips(Draws):
    """Sets op after op to 1."""

    def solve(self, problem: AssignProblem) -> None:
        answer = np.zeros((problem.graph.num_ops, 1), np.int16)
        for op in range(problem.graph.num_ops):
            answer[op] = 1
            problem.cost(answer[None])


class Commits(Draws):
    """Answers all ones, without a price where none is allowed."""

    def solve(self, problem: AssignProblem) -> None:
        answer = np.ones((problem.graph.num_ops, 1), np.int16)
        problem.commit(answer) if not problem.open else problem.cost(answer[None])


class Breaks(Draws):
    """Fails on graphs of nine ops."""

    def solve(self, problem: AssignProblem) -> None:
        if problem.graph.num_ops == 9:
            raise ZeroDivisionError("nine")


class Rewrites(Draws):
    accepts = (Rewriting,)


class DecidesDevice(Draws):
    needs_roles = frozenset({Role.DEVICE})


class Bias(nn.Module):
    """The encoder of tests: it knows nothing of the graph."""

    def __init__(self, *, name: str, width: int, extra_width: int) -> None:
        super().__init__()
        self.name, self.extra_width = name, extra_width
        self.logit = nn.Parameter(torch.randn(width))


class Learns(Learner):
    """REINFORCE on one probability for all ops; the optimum is to choose 1 everywhere."""

    def __init__(self, *, name: str, task: AssignTask, cost: CostModel, encoder: Bias, seed: int, lr: float,
                 break_at: int) -> None:  # fmt: skip
        super().__init__(name=name, task=task, cost=cost, seed=seed)
        self.encoder, self.lr, self.break_at = encoder, lr, break_at

    @staticmethod
    def extra_width(task: AssignTask) -> int:
        return 3

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.lr)

    def training_step(self, graphs: list[Graph], batch_idx: int) -> Tensor:
        if self.train_steps == self.break_at:
            raise KeyboardInterrupt
        p = torch.sigmoid(self.encoder.logit.mean())
        loss = torch.zeros(())
        for graph in graphs:
            y = (torch.rand(4, graph.num_ops) < p.detach()).float()
            noise = 1e-3 * float(self._random.random())
            cost = self.cost.price(self.task.realise(graph, y[:, :, None].numpy().astype(np.int16))).cost
            self.train_evals += 4
            reward = torch.from_numpy(-cost / self.initial_cost(graph)).float()
            log_p = (y * p.log() + (1 - y) * (1 - p).log()).sum(1)
            loss = loss - ((reward - reward.mean() + noise) * log_p).mean()
            self.log("reward", float(reward.mean()))
        return loss

    @torch.no_grad()
    def solve(self, problem: AssignProblem) -> None:
        y = int(torch.sigmoid(self.encoder.logit.mean()) > 0.5)
        answer = np.full((problem.graph.num_ops, 1), y, np.int16)
        problem.commit(answer) if not problem.open else problem.cost(answer[None])


class Seen(pl.Callback):
    """Writes down what Lightning was told."""

    def __init__(self, *, file: str) -> None:
        self.file = file

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        said = {"precision": trainer.precision, "profiler": type(trainer.profiler).__name__,
                "clip": trainer.gradient_clip_val, "batches": trainer.num_training_batches}  # fmt: skip
        Path(self.file).write_text(json.dumps(said))


def node(cls: type, name: str, **keys: Any) -> dict[str, Any]:
    return {"_target_": f"frame_parts.{cls.__name__}", "name": name, **keys}


def config(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A cell of toy parts; `changes` replace top-level keys."""
    trainer = {
        "_target_": "graphopt.run.training.settings.TrainerSettings", "name": "t",
        "start": None, "steps": 12, "batch_graphs": 1, "max_seconds": None,
        "val_every": 3, "val_evals": 1, "patience": 0, "save_every": 2, "save_seconds": 60.0, "accelerator": "cpu",
        "devices": 1, "num_nodes": 1, "strategy": "auto", "precision": "32-true", "accumulate_grad_batches": 1,
        "log_every_n_steps": 1, "profiler": None, "callbacks": [], "logger": [], "options": {},
    }  # fmt: skip
    return {
        "study": "s", "output_dir": str(tmp_path), "seed": 0, "split": "test", "ckpt": None, "resume": True,
        "budget": {"evals": [10], "seconds": None}, "compare": [],
        "dataset": node(ToyGraphs, "toys", empty=[]), "task": node(Binary, "binary"),
        "machine": {"_target_": "graphopt.core.machine.Machine", "name": "one", "devices": [{"name": "d"}]},
        "cost": node(Ones, "ones", factor=1.0), "judge": node(Ones, "tens", factor=10.0),
        "encoder": node(Bias, "bias", width=4), "algo": node(Draws, "draws"), "trainer": trainer,
        "logger": {"_target_": "graphopt.run.loggers.CsvLog", "name": "csv"}, **changes,
    }  # fmt: skip


def whole_folder(train: Callable[..., Any], place: str) -> Path:
    """Where the fixture lets a run of that name write."""
    return Path(train.__closure__[0].cell_contents) / place  # type: ignore[attr-defined]
