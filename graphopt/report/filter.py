"""Searches random graphs for room for improvement, so that data sets can keep those that have it.

`graphopt models filter regal` prices draws of conf/dataset/regal.yaml until all its splits are full, or no more
draws are worth the time, and appends to the file that the data set reads. What is there already is kept, so a stopped
call goes on where it was. Prices stay what searches have reached when BRKGA comes to draw other random numbers; they
must be made again only when graphs or prices change.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from graphopt.core.errors import UsageError
from graphopt.core.graph import Graph
from graphopt.core.utils import registry
from graphopt.core.utils.marks import count
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.dataset import Split
from graphopt.graphs.regal import Draws, HeadroomPrices, Reached, Regal, load_headroom, save_headroom
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.run.config.construct import construct
from graphopt.search.genetic.brkga import Brkga

LOW, USUAL, HIGH, LONG = 1_000, 5_000, 10_000, 20_000  # evaluations
USUAL_SEEDS, LONG_SEEDS = (1001, 1002), (1003, 1004)  # not those of any table
LARGE = 600  # mean ops from which there is one long run only
DRAWS_PER_GRAPH = 4  # draws of a family for every graph that it should give, before others fill its share
HOPELESS = 6  # draws without one that passes, after which a family is left alone
RECIPE = {"machine": "gpu2", "task": "placement_scheduling", "low": LOW, "usual": USUAL, "high": HIGH, "long": LONG,
          "usual_runs": len(USUAL_SEEDS), "long_runs": len(LONG_SEEDS), "long_runs_from_600_ops": 1}  # fmt: skip


def search(graph: Graph, objective: str, evals: int, seed: int) -> AssignProblem:
    """BRKGA on the task and machine of RECIPE, by the simulator, all as their yaml files say."""
    around: dict[str, Any] = {"machine": construct(registry.option("machine", "gpu2"), "machine")}
    task = construct(registry.option("task", "placement_scheduling"), "task", around)
    node = registry.option("cost", "simulator") | {"objective": objective, "threads": 1}
    cost = construct(node, "cost", around | {"task": task})
    brkga: Brkga = construct(registry.option("algo", "brkga"), "algo")
    return solve(brkga, graph, task, cost, evals=evals, seed=seed)[0]


def reached(graph: Graph, objective: str, long_seeds: Sequence[int]) -> Reached:
    """What runs of all lengths reach. Low and high budgets are read off the long runs, which begin like short ones."""
    usual = [search(graph, objective, USUAL, seed).best_cost for seed in USUAL_SEEDS]
    long = [search(graph, objective, LONG, seed) for seed in long_seeds]
    low, high = (float(np.mean([[step.cost for step in run.trace if step.evals <= evals][-1] for run in long]))
                 for evals in (LOW, HIGH))  # fmt: skip
    return Reached(low, high, float(np.mean(usual)), min(run.best_cost for run in long))


def fill(data: Regal, room: HeadroomPrices, split: Split, sizes: Sequence[int]) -> None:
    """Prices draws of a split, smallest size first, until there are enough of each of the sizes; saves after each."""
    wanted = {ops: count for ops, count in zip(data.sizes, data.counts[split]) if ops in sizes}
    with Bar(f"{data.room.objective} {split}", sum(wanted.values())) as bar:
        for ops, count in sorted(wanted.items()):
            kinds = [Draws(data.room.objective, family, ops, split) for family in data.families]
            while (kind := next_kind(data, room, kinds, count)) is not None:
                found = room.reached.setdefault(str(kind), [])
                graph = data.draw(kind.family, ops, split, len(found))
                found.append(reached(graph, data.room.objective, LONG_SEEDS[: 1 if ops >= LARGE else 2]))
                save_headroom(room)
                below = 100 * (1 - found[-1].best / found[-1].usual)
                bar.step(f"{graph.name}: {below:.1f} % below", int(found[-1].passes(data.room.filter)))


def next_kind(data: Regal, room: HeadroomPrices, kinds: Sequence[Draws], count: int) -> Draws | None:
    """The family to draw from next, or None when there are enough graphs or no hope.

    Every family gets DRAWS_PER_GRAPH draws for every graph of its share; then those that gave any fill up.
    """
    share = -(-count // len(kinds))
    kept = {kind: sum(found.passes(data.room.filter) for found in room.of(kind)) for kind in kinds}
    draws = {kind: len(room.of(kind)) for kind in kinds}
    alive = [kind for kind in kinds if kept[kind] or draws[kind] < HOPELESS]
    lacking = [kind for kind in alive if kept[kind] < share and draws[kind] < DRAWS_PER_GRAPH * share]
    if lacking:
        return min(lacking, key=lambda kind: draws[kind])
    fertile = [kind for kind in alive if draws[kind] < 2 * DRAWS_PER_GRAPH * count]
    return min(fertile, key=lambda kind: kept[kind]) if sum(kept.values()) < count and fertile else None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt models filter", description="Find graphs with room.")
    parser.add_argument("dataset", help="a data set of conf/dataset that filters, such as regal")
    parser.add_argument("--split", action="append", choices=get_args(Split), help="only this one; may be repeated")
    parser.add_argument("--ops", action="append", type=count, help="only this mean size; may be repeated")
    parser.add_argument("--objective", choices=("runtime", "peak_memory"), help="instead of dataset.room.objective")
    parser.add_argument("--file", type=Path, help="instead of dataset.room.file or the package's file")
    args = parser.parse_args(arguments)
    data = _dataset(args)
    room = load_headroom(data.room.path)
    room.check(data.made_with | RECIPE)
    room.recipe |= data.made_with | RECIPE
    for split in args.split or ("val", "test", "train"):
        fill(data, room, split, args.ops or data.sizes)
    return 0


def _dataset(args: argparse.Namespace) -> Regal:
    """The data set as its yaml file says, but for what the command line changes."""
    node = registry.option("dataset", args.dataset)
    if "room" not in node or node["room"]["filter"] == "none":
        raise UsageError(f"dataset={args.dataset} filters nothing; give one with dataset.room, such as regal")
    change = {"objective": args.objective, "file": None if args.file is None else str(args.file)}
    node["room"] |= {key: value for key, value in change.items() if value is not None}
    made: Regal = construct(node, "dataset")
    return made
