"""How long a learned method takes for one decision about a graph, from the graph to the decision, without a price.

`python benchmarks/decisions.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high"}: CPU seconds of
one thread, so other work on the machine does not count, the median over repetitions with the smallest and the largest.
Every graph is read anew, so that nothing that belongs to it was computed before. `decision_growth_exponent`: the slope
of the logarithm of the time over the logarithm of the number of ops. `decision_peak_megabytes`: resident memory at its
highest of a process of its own that reads the graph from a file and decides; `floor`: once graphopt is imported.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lines import say

from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.graph_files import load_graph, save_graph
from graphopt.learn.learner import Learner
from graphopt.problems.optimizer import solve
from graphopt.run.config.build import encoder
from graphopt.run.config.construct import construct

LEARNERS = ("go", "run_model")


def learner(name: str) -> Learner:
    """As its yaml files say, untrained: how long it takes does not depend on weights. Four devices, placement."""
    machine = construct(registry.option("machine", "gpu4_pcie"), "machine")
    task = construct(registry.option("task", "placement"), "task", {"machine": machine})
    cost = construct(registry.option("cost", "simulator") | {"threads": 1}, "cost", {"machine": machine})
    node = registry.option("algo", name)
    net = encoder({"algo": node, "encoder": registry.option("encoder", "graphsage"), "seed": 0}, task)
    around: dict[str, Any] = {"machine": machine, "task": task, "cost": cost, "encoder": net, "seed": 0}
    made: Learner = construct(node, "algo", around)
    return made.eval()


def decided(made: Learner, graph: Graph) -> float:
    """CPU seconds of one decision without evaluations; pricing the answer and the default is not the method's."""
    fresh = replace(graph, name=f"{graph.name} again")  # nothing is remembered of it
    problem = made.task.open(fresh, made.cost, evals=0)
    start = time.process_time()
    made.solve(problem)
    return time.process_time() - start


def peak_megabytes() -> float:
    """Resident memory of this process at its highest."""
    status = Path("/proc/self/status").read_text()  # `getrusage` would count the process that this one came from
    return int(re.findall(r"VmHWM:\s*(\d+)", status)[0]) / 1024


def memory_of_a_decision(name: str, graph: Graph) -> tuple[float, float]:
    """(MB once everything is imported, MB at the end) of a new process that reads the graph and decides."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graph.npz"
        save_graph(file, graph)
        call = [sys.executable, __file__, "--memory", name, str(file)]
        floor, most = json.loads(subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return floor, most


def decide_in_this_process(name: str, file: str) -> None:
    torch.set_num_threads(1)
    floor, made = peak_megabytes(), learner(name)
    solve(made, load_graph(file), made.task, made.cost, evals=0)
    print(json.dumps([floor, peak_megabytes()]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller graphs")
    parser.add_argument("--memory", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.memory:
        decide_in_this_process(*words.memory)
        return
    quick = words.quick
    torch.set_num_threads(1)
    sizes, repetitions = ([500, 1000], 1) if quick else ([1000, 10_000, 80_000], 3)
    graphs = {ops: layered_graph(ops, np.random.default_rng(ops), f"layered{ops}") for ops in sizes}
    for name in LEARNERS:
        made = learner(name)
        solve(made, layered_graph(60, np.random.default_rng(0), "warm"), made.task, made.cost, evals=0)
        taken = {ops: [decided(made, graph) for _ in range(repetitions)] for ops, graph in graphs.items()}
        for ops, seconds in taken.items():
            say(f"decision_seconds/{name}/{ops}", seconds, "s")
        slope = np.polyfit(np.log(sizes), np.log([np.median(taken[ops]) for ops in sizes]), 1)[0]
        say(f"decision_growth_exponent/{name}", [float(slope)], "exponent")
        floor, most = memory_of_a_decision(name, graphs[sizes[-1]])
        say(f"decision_peak_megabytes/{name}/{sizes[-1]}", [most], "MB", {"floor": floor})


if __name__ == "__main__":
    main()
