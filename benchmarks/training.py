"""How many ops a learner learns from in a second: whole training steps, of `go` with its prices.

`python benchmarks/training.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: ops of the graphs
of a step over its CPU seconds, one thread, so other work on the machine does not count; the median over steps, of which
the first does not count, with the smallest and the largest. What is gathered before the first step, all prices of
`run_model`, does not count. As their yaml files say, placement on four devices.
"""

import argparse
import time
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from decisions import learner
from lines import say
from torch.utils.data import DataLoader

from graphopt.core.graph import Graph
from graphopt.graphs.layered import layered_graph

LEARNERS = ("go", "run_model")


class StepClock(pl.Callback):
    """CPU seconds of every step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._start = 0.0

    def on_train_batch_start(self, *arguments: Any) -> None:
        self._start = time.process_time()

    def on_train_batch_end(self, *arguments: Any) -> None:
        self.seconds.append(time.process_time() - self._start)


def seconds_of_steps(name: str, graphs: list[Graph], steps: int) -> list[float]:
    """Of all but the first."""
    made, clock = learner(name), StepClock()
    made.prepare_training(graphs)
    trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, callbacks=[clock],
                         enable_progress_bar=False, enable_model_summary=False)  # fmt: skip
    trainer.fit(made.train(), DataLoader([graphs] * (steps + 1), batch_size=None, collate_fn=list))
    return clock.seconds[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller graphs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    sizes, steps = ([500], 1) if quick else ([1000, 10_000, 80_000], 3)
    for ops in sizes:
        count = max(1, min(4, 40_000 // ops))
        graphs = [layered_graph(ops, np.random.default_rng(ops + i), f"layered{ops}_{i}") for i in range(count)]
        for name in LEARNERS:
            taken = seconds_of_steps(name, graphs, steps)
            say(f"training_ops_per_second/{name}/{ops}", [count * ops / each for each in taken], "ops/s")


if __name__ == "__main__":
    main()
