"""Speed of collecting local advantages for LAF, on a fusion graph of 5,000 ops.

`python benchmarks/laf.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: the median of several
repetitions, with the smallest and the largest, in CPU time of one thread; full prices and deltas take turns. A sample
is a visit of Gibbs sampling: all choices of one slot priced, and the next choice drawn and made. Temperature and task
as in conf/, a layered graph as in dataset=synthetic, the device of machine=gpu2.
"""

import argparse
import time

import numpy as np
from lines import say

from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.learn.advantages import ConditionalPrices, DeltaPrices, FullPrices, surroundings, sweep, typical
from graphopt.problems.assignment import AssignTask, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.run.config.construct import construct
from graphopt.search.walks.moves import slots_in

OPS = 5_000
FULL_VISITS = 300  # of a sweep, since full prices are slow


def parts() -> tuple[AssignTask, CostModel]:
    around = {"machine": construct(registry.option("machine", "gpu2"), "machine")}
    around["task"] = construct(registry.option("task", "fusion"), "task", around)
    return around["task"], construct(registry.option("cost", "simulator") | {"threads": 1}, "cost", around)


def visits_per_second(around: ConditionalPrices, rows: np.ndarray, tau: float, seed: int) -> float:
    start = time.thread_time()
    sweep(around, rows, tau, np.random.default_rng(seed), surveyed=False)
    return len(rows) / (time.thread_time() - start)


def measure(graph: Graph, task: AssignTask, cost: CostModel, repeats: int) -> None:
    slots, initial = slots_in(task, graph), task.canonical(graph, task.initial(graph))
    rows, some = np.arange(len(slots)), np.linspace(0, len(slots) - 1, FULL_VISITS).astype(np.int64)
    fast = surroundings(Pricing(graph, task, cost), slots, initial)
    slow = FullPrices(Pricing(graph, task, cost), slots, initial)
    assert isinstance(fast, DeltaPrices)
    tau = typical(fast.prices(rows))
    visits_per_second(fast, some, tau, 0), visits_per_second(slow, some[:10], tau, 0)  # compiled and warm
    full, delta, surveyed = [], [], []
    for seed in range(repeats):
        full.append(visits_per_second(slow, some, tau, seed))
        delta.append(visits_per_second(fast, rows, tau, seed))
        start = time.thread_time()
        fast.prices(rows)
        surveyed.append(len(rows) / (time.thread_time() - start))
    say("samples_per_second/full", full, "1/s")
    say("samples_per_second/delta", delta, "1/s")
    say("samples_per_second/delta_over_full", [d / f for d, f in zip(delta, full)], "ratio")
    say("samples_per_second/survey", surveyed, "1/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three repetitions")
    task, cost = parts()
    measure(layered_graph(OPS, np.random.default_rng(0), "layered"), task, cost, 3 if parser.parse_args().quick else 9)


if __name__ == "__main__":
    main()
