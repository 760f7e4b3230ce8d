"""Graphs on which encoders are tried, the machine that they are read for, and what tests of learners share."""

from typing import Any

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.costs.simulator import Simulator
from graphopt.learn.learner import Learner
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.tasks.fusion import Fusion

MACHINE = Machine(name="gpu", devices=(Device(vector_flops=1e13, bandwidth=1e12, launch=1e-6),))


def fusion_on(machine: Machine, **caps: int) -> tuple[Fusion, Simulator]:
    """Store or inline there, and its time."""
    limits = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8} | caps
    task = Fusion(name="fusion", machine=machine, decision="binary", numerics=None, device="cpu",
                  levels=2, **limits)  # fmt: skip
    return task, Simulator(name="s", machine=machine, objective="runtime", threads=1)


def fit(learner: Learner, graphs: list[Graph], steps: int) -> None:
    """Trains on all graphs in every step."""
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    torch.manual_seed(0)
    learner.train()
    learner.prepare_training(graphs)
    batches: DataLoader[Any] = DataLoader([graphs] * steps, batch_size=None, collate_fn=list)  # type: ignore[arg-type]
    trainer.fit(learner, batches)
    learner.eval()


class WithoutFlips(CostModel):
    """The same prices, but no exact flips."""

    def __init__(self, inner: CostModel) -> None:
        self.inner, self.name, self.objective = inner, inner.name, inner.objective

    def price(self, plans: Plans) -> Prices:
        return self.inner.price(plans)


def diamond(order: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> Graph:
    """a -> b -> d, a -> c -> d, d -> e, and f apart; ops are added in `order`."""
    b = GraphBuilder("diamond")
    x = b.tensor((8, 4))
    t = {n: b.tensor((8, 4) if n != "e" else (8,)) for n in "abcdef"}
    steps = [("relu", [x], "a"), ("exp", [t["a"]], "b"), ("tanh", [t["a"]], "c"), ("add", [t["b"], t["c"]], "d"),
             ("sum", [t["d"]], "e"), ("neg", [x], "f")]  # fmt: skip
    for i in order:
        kind, inputs, out = steps[i]
        b.op(kind, inputs, [t[out]], name=out)
    b.output(t["e"])
    b.output(t["f"])
    return b.build()


def chain(length: int) -> Graph:
    b = GraphBuilder("chain")
    x = b.tensor((4,))
    for _ in range(length):
        y = b.tensor((4,))
        b.op("relu", [x], [y])
        x = y
    b.output(x)
    return b.build()


def loose(kinds: tuple[str, ...] = ("relu", "exp", "tanh", "neg")) -> Graph:
    """Ops that all read the same input: no edges."""
    b = GraphBuilder("loose")
    x = b.tensor((4,))
    for kind in kinds:
        b.output(y := b.tensor((4,)))
        b.op(kind, [x], [y])
    return b.build()


def star(users: int) -> Graph:
    """One op with many readers."""
    b = GraphBuilder("star")
    x, y = b.tensor((4,)), b.tensor((4,))
    b.op("relu", [x], [y])
    for _ in range(users):
        b.op("exp", [y], [b.tensor((4,))])
    return b.build()
