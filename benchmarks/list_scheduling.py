"""`algo=list_blevel` against plain list scheduling by bottom level, on task graphs without communication.

`python benchmarks/list_scheduling.py [FOLDER] [--machines 2 4 8 16] [--evals 1 100]` takes every Standard Task Graph
file (.stg) at or below FOLDER, else random graphs of that kind, and prints JSON lines: how often the answer is better
than, equal to and worse than the plain schedule, the mean excess of both over the longest path and the work per
processor, which no schedule is below, in per cent, and the seconds of a solve.
"""

import argparse
import heapq
import math
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from lines import say

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils import registry
from graphopt.graphs.readers.formats.task_graphs import read_stg
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct


def plain(graph: Graph, processors: int) -> tuple[float, float]:
    """(makespan, lower bound) by lists and heaps only: an idle processor starts the ready task with the longest path to
    the end, ties by id."""
    seconds, before = graph.flops.tolist(), [graph.producer[graph.operands(n)].tolist() for n in range(graph.num_ops)]
    after: list[list[int]] = [[] for _ in seconds]
    for n, makers in enumerate(before):
        for maker in makers:
            after[maker].append(n)
    level = [0.0] * len(seconds)
    for n in reversed(range(len(seconds))):
        level[n] = seconds[n] + max((level[m] for m in after[n]), default=0.0)
    waiting, idle, now = [len(makers) for makers in before], processors, 0.0
    ready, running = [(-level[n], n) for n, count in enumerate(waiting) if count == 0], list[tuple[float, int]]()
    heapq.heapify(ready)
    while ready or running:
        while ready and idle:
            n = heapq.heappop(ready)[1]
            heapq.heappush(running, (now + seconds[n], n))
            idle -= 1
        now = running[0][0]
        while running and running[0][0] == now:
            idle += 1
            for m in after[heapq.heappop(running)[1]]:
                waiting[m] -= 1
                if waiting[m] == 0:
                    heapq.heappush(ready, (-level[m], m))
    return now, max(max(level), math.ceil(sum(seconds) / processors))


def random_graphs(count: int, tasks: int) -> Iterator[Graph]:
    """Tasks of 1 to 10 seconds that read up to four of the last 20."""
    for seed in range(count):
        rng, b = np.random.default_rng(seed), GraphBuilder(f"random{seed}", "stg")
        results = [b.tensor((0,), "uint8") for _ in range(tasks)]
        for n in range(tasks):
            before = rng.choice(np.arange(max(0, n - 20), n), min(n, int(rng.integers(0, 5))), replace=False)
            b.op("opaque", [results[m] for m in before], [results[n]], flops=float(rng.integers(1, 11)), name=f"t{n}")
        yield b.build()


def compare(graphs: list[Graph], processors: int, evals: int) -> None:
    node = registry.option("machine", "identical")
    node["devices"]["processor"]["count"] = processors
    around = {"machine": construct(node, "machine")}
    around["task"] = construct(registry.option("task", "placement_scheduling"), "task", around)
    around["cost"] = construct(registry.option("cost", "simulator") | {"threads": 1}, "cost", around)
    algo = construct(registry.option("algo", "list_blevel"), "algo", around)
    ours, theirs, bounds, seconds = [], [], [], []
    solve(algo, graphs[0], around["task"], around["cost"], evals=evals)  # compiled
    for graph in graphs:
        start = time.perf_counter()
        solved, _ = solve(algo, graph, around["task"], around["cost"], evals=evals)
        seconds.append(time.perf_counter() - start)
        ours.append(solved.best_cost)
        makespan, bound = plain(graph, processors)
        theirs.append(makespan)
        bounds.append(bound)
    a, b, low = np.array(ours), np.array(theirs), np.array(bounds)
    label = f"list_blevel/{processors}/{evals}"
    excess = {"plain_excess_percent": 100 * float((b / low - 1).mean())}
    counts = {"better": int((a < b).sum()), "equal": int((a == b).sum()), "worse": int((a > b).sum())}
    say(f"{label}/excess_percent", [100 * float((a / low - 1).mean())], "%", excess | counts)
    say(f"{label}/seconds", seconds, "s")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path, nargs="?", help="default: random graphs")
    arguments.add_argument("--machines", type=int, nargs="+", default=[2, 4, 8, 16])
    arguments.add_argument("--evals", type=int, nargs="+", default=[1, 100])
    arguments.add_argument("--quick", action="store_true", help="ten graphs")
    args = arguments.parse_args()
    found = [read_stg(file) for file in sorted(args.folder.rglob("*.stg"))] if args.folder else []
    chosen = (found or list(random_graphs(50, 100)))[: 10 if args.quick else None]
    for processors in args.machines:
        for evals in args.evals:
            compare(chosen, processors, evals)
