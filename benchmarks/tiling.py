"""Whether moves of `task=tiling` that gain can be told before they are priced, and what an order of them is worth.

`python benchmarks/tiling.py [--steps 150] [--quick]` teaches `tile_policy` on the training graphs of
`dataset=tiling_drawn`. On its validation graphs it prints, in mean: the area under the curve (gains or not) of the
learned score, of bytes saved and of the potential, and the share of all gain that the tenth of moves with the largest
scores holds; then what each start of `tile_walk` comes to after as many evaluations as there are ops, over the best of
all, two seeds. Minutes of one core.

`python benchmarks/tiling.py --exact 60` instead has `tile_walk` (2 s) and `tile_exact` solve so many problems of
5 to 7 ops of each kind of drawing, and prints how many answers of the walk are above the optimum, and by how much.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from lines import say
from torch.utils.data import DataLoader

from graphopt.algos.contests.tile_policy import TilePolicy
from graphopt.config.construct import construct
from graphopt.core.graph import F64, Graph, GraphError
from graphopt.datasets.contests.tiling_drawn import TilingDrawn, drawn_workload
from graphopt.datasets.contests.tiling_random import random_workload
from graphopt.problems.optimizer import solve
from graphopt.search.tiling.move_columns import COLUMNS
from graphopt.tiling.tile_workload import TileWorkload
from graphopt.tiling.workload_graph import graph_of_workload
from graphopt.utils.registry import option
from graphopt.utils.share_network import expected

MACHINE: Any = construct(option("machine", "cpu_core"), "machine")
READING = {"shared_slices": "per_operand"}  # that of the numbers in docs/tiling.md
TASK: Any = construct(option("task", "tiling") | READING, "task", {"machine": MACHINE})
COST: Any = construct(option("cost", "tile_time"), "cost", {"machine": MACHINE, "task": TASK})
ORDERS = ("passes", "even", "saved", "potential")
BATCH = 4  # graphs of a training step


def taught(graphs: Sequence[Graph], steps: int) -> TilePolicy:
    torch.manual_seed(0)
    parts = {"machine": MACHINE, "task": TASK, "cost": COST, "seed": 0}
    policy: TilePolicy = construct(option("algo", "tile_policy"), "algo", parts)
    policy.gather(list(graphs))
    rng = np.random.default_rng(0)
    batches = [[graphs[i] for i in rng.integers(len(graphs), size=BATCH)] for _ in range(steps)]
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
                         enable_model_summary=False, accelerator="cpu")  # fmt: skip
    trainer.fit(policy, DataLoader(batches, batch_size=None, collate_fn=lambda x: x))  # type: ignore[arg-type]
    return policy


def told(policy: TilePolicy, graphs: Sequence[Graph]) -> None:
    """How well scores tell which moves gain."""
    curve: dict[str, list[float]] = {}
    tenth: dict[str, list[float]] = {}
    for graph in graphs:
        rows = policy.solved(graph)
        gain = rows[:, -1] * rows[:, -2]
        if not 0 < (gain > 0).sum() < len(gain):
            continue
        for name, score in scores(policy, rows).items():
            curve.setdefault(name, []).append(area(score, gain > 0))
            first = np.argsort(-score, kind="stable")[: max(1, len(gain) // 10)]
            tenth.setdefault(name, []).append(float(gain[first].sum() / gain.sum()))
    for name in curve:
        say(f"tiling_moves/area_under_curve/{name}", [float(np.mean(curve[name]))], "", {"graphs": len(curve[name])})
        say(f"tiling_moves/gain_in_first_tenth/{name}", [float(np.mean(tenth[name]))], "of all gain")


def scores(policy: TilePolicy, rows: F64) -> Mapping[str, F64]:
    """[R] of moves [R, F+2]."""
    network, latency = policy.as_numbers(), rows[:, -2]
    learned = np.array([expected(row[-2], row[:-2], network) for row in rows])
    return {"learned": learned, "saved": rows[:, COLUMNS.index("saved")] * latency,
            "potential": rows[:, COLUMNS.index("potential")]}  # fmt: skip


def area(score: F64, gains: Any) -> float:
    """Under the receiver's curve: how often a move that gains has the larger score; ties are a half."""
    yes, no = score[gains], score[~gains]
    return float((yes[:, None] > no).mean() + 0.5 * (yes[:, None] == no).mean())


def ordered(policy: TilePolicy, graphs: Sequence[Graph], seeds: Sequence[int]) -> None:
    """What starts of the walk are worth where one price an op is all there is."""
    algorithms = {by: option("algo", "tile_walk") | {"order": option("algo", "tile_walk")["order"] | {"by": by}}
                  for by in ORDERS}  # fmt: skip
    searches: dict[str, Any] = {by: construct(node, "algo") for by, node in algorithms.items()} | {"learned": policy}
    found = {by: np.array([[solve(search, graph, TASK, COST, evals=graph.num_ops, seed=seed)[0].best_cost
                            for graph in graphs] for seed in seeds]) for by, search in searches.items()}  # fmt: skip
    best = np.min([costs.min(0) for costs in found.values()], 0)
    for by, costs in found.items():
        say(f"tiling_moves/over_best/{by}", np.exp(np.log(costs / best).mean(1)).tolist(), "of the best's cost")


def against_exact(count: int) -> None:
    """Of small problems, how often the walk misses the optimum."""
    walk, exact = (construct(option("algo", name), "algo") for name in ("tile_walk", "tile_exact"))
    over = []
    for number in range(2 * count):
        graph = graph_of_workload(small_problem(number // 2, blocks=number % 2 == 0))
        with suppress(GraphError):  # a product that fits with no tile
            best = solve(exact, graph, TASK, COST, evals=10**7, seconds=60.0, seed=0)[0].best_cost
            found = solve(walk, graph, TASK, COST, evals=10**7, seconds=2.0, seed=0)[0].best_cost
            over.append(found / best - 1.0)
    missed = [share for share in over if share > 1e-9]
    say("tiling_walk/above_the_optimum", [float(len(missed))], "problems", {"problems": len(over)})
    say("tiling_walk/above_the_optimum_by", missed or [0.0], "of the optimum")


def small_problem(number: int, *, blocks: bool) -> TileWorkload:
    rng, ops = np.random.default_rng([7, number]), 5 + number % 3
    if blocks:
        return drawn_workload(rng, ops, (128, 256, 512, 1024, 2048), f"drawn_{number}")
    return random_workload(rng, ops, (128, 256, 512, 1024), 0.5, f"random_{number}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150, help="of training")
    parser.add_argument("--quick", action="store_true", help="eight graphs to learn from and three to try, one seed")
    parser.add_argument("--exact", type=int, help="instead: the walk against the optimum of so many small problems")
    given = parser.parse_args()
    if given.exact is not None:
        against_exact(given.exact)
        return
    drawn: TilingDrawn = construct(option("dataset", "tiling_drawn"), "dataset")
    train, new = drawn.graphs("train"), drawn.graphs("val")
    if given.quick:
        train, new = train[:8], new[:3]
    policy = taught(train, given.steps)
    told(policy, new)
    ordered(policy, new, (0,) if given.quick else (0, 1))


if __name__ == "__main__":
    main()
