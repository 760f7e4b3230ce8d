"""How often `tile_walk` misses the optimum of small problems of `task=tiling`.

`python benchmarks/tiling.py [--problems 60] [--seconds 2]` has `tile_walk` and `tile_exact` solve so many random
problems of 5 to 7 ops. It prints how many answers of the walk are above the optimum, and by how much. Minutes of one
core.
"""

import argparse
from contextlib import suppress
from typing import Any

import numpy as np
from lines import say

from graphopt.contests.tiling.tiling_contest import random_workload
from graphopt.contests.tiling.workload_files import graph_of_workload
from graphopt.core.graph import GraphError
from graphopt.core.utils.registry import option
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct

SIZES = (128, 256, 512, 1024)
MACHINE: Any = construct(option("machine", "cpu_core"), "machine")
READING = {"shared_slices": "per_operand"}  # that of the numbers in docs/contests.md
TASK: Any = construct(option("task", "tiling") | READING, "task", {"machine": MACHINE})
COST: Any = construct(option("cost", "tile_time"), "cost", {"machine": MACHINE, "task": TASK})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a walk")
    given = parser.parse_args()
    walk, exact = (construct(option("algo", name), "algo") for name in ("tile_walk", "tile_exact"))
    over = []
    for number in range(given.problems):
        rng, ops = np.random.default_rng([7, number]), 5 + number % 3
        graph = graph_of_workload(random_workload(rng, ops, SIZES, 0.5, f"random_{number}"))
        with suppress(GraphError):  # a product that fits with no tile
            best = solve(exact, graph, TASK, COST, evals=10**7, seconds=60.0, seed=0)[0].best_cost
            found = solve(walk, graph, TASK, COST, evals=10**7, seconds=given.seconds, seed=0)[0].best_cost
            over.append(found / best - 1.0)
    missed = [share for share in over if share > 1e-9]
    say("tiling_walk/above_the_optimum", [float(len(missed))], "problems", {"problems": len(over)})
    say("tiling_walk/above_the_optimum_by", missed or [0.0], "of the optimum")


if __name__ == "__main__":
    main()
