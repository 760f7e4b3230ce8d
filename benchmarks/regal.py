"""What REGAL adds to BRKGA: the forward pass and its inputs against the search that follows.

`python benchmarks/regal.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median over
graphs, with the smallest and the largest. The parts are CPU seconds of one thread, of one run on the same graph, one
after the other, so other work on the machine does not count; every graph is new, so nothing that belongs to it was
computed before.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from lines import say

from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.learn.learner import inference
from graphopt.learn.regal import REGAL
from graphopt.problems.optimizer import solve
from graphopt.run.config.build import encoder
from graphopt.run.config.construct import construct


def learner() -> REGAL:
    """REGAL as its yaml files say, untrained: how long it takes does not depend on weights."""
    machine = construct(registry.option("machine", "gpu2"), "machine")
    task = construct(registry.option("task", "placement_scheduling"), "task", {"machine": machine})
    node = registry.option("cost", "simulator") | {"objective": "peak_memory", "threads": 1}
    cost = construct(node, "cost", {"machine": machine})
    algo = registry.option("algo", "regal")
    net = encoder({"algo": algo, "encoder": registry.option("encoder", "message_passing"), "seed": 0}, task)
    around: dict[str, Any] = {"machine": machine, "task": task, "cost": cost, "encoder": net, "seed": 0}
    made: REGAL = construct(algo, "algo", around)
    return made.eval()


def measured(regal: REGAL, graph: Graph) -> tuple[float, float, float]:
    """CPU seconds of encoded the graph, of the forward pass alone, and of the whole solve by BRKGA after it."""
    start = time.process_time()
    observation = regal.observe([graph])
    read = time.process_time()
    with inference(graph):
        actions = regal.policy.propose(observation, 0).op[0].numpy()
    passed = time.process_time()
    regal.sampler(graph, actions)
    before = time.process_time()
    solve(regal, graph, regal.task, regal.cost, evals=5000)
    return read - start, passed - read, time.process_time() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller graphs")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    regal = learner()
    measured(regal, layered_graph(60, np.random.default_rng(0), "warm"))
    for ops in (200,) if quick else (50, 200, 1000, 5000):
        graphs = [layered_graph(ops, np.random.default_rng([ops, i]), f"g{i}") for i in range(3 if quick else 7)]
        parts = [measured(regal, graph) for graph in graphs]
        say(f"regal_forward_milliseconds/{ops}", [1e3 * forward for _, forward, _ in parts], "ms")
        say(f"regal_forward_percent/{ops}", [100 * forward / search for _, forward, search in parts], "% of the search")
        say(f"regal_read_percent/{ops}", [100 * read / search for read, _, search in parts], "% of the search")


if __name__ == "__main__":
    main()
