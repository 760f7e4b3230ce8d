"""Speed of X-RLflow's environment and of its policy: steps per second, and what takes their time.

`python benchmarks/xrlflow.py [--quick] [--measure]` prints JSON lines {"name", "value", "unit", "low", "high"}: medians
with the smallest and the largest. `enumerate_seconds` is what a step takes that finds about 500 candidates of a large
program: matching around the change, pricing by the additive model, telling apart; single rewrites, as in the paper, and
`.../sweeps` with our sweeps too. `draw_seconds` is what drawing them for the policy takes. All in CPU time of one
thread. `steps_per_second` is of 10 episodes side by side, in wall time, with
the shares of matching, drawing, network and pricing; with --measure, prices are of whole programs in ONNX Runtime.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from lines import say

from graphopt.core.utils import registry
from graphopt.learn.rewriters.xrlflow import XRLflow, drawn
from graphopt.problems.cost_model import CostModel
from graphopt.rewrite.environment.episodes import Episode, Game
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.models import build_model
from graphopt.run.config.construct import construct

LARGE: dict[str, dict[str, Any]] = {"nasrnn": {}, "bert": {"blocks": 34}, "nasnet_a": {}}  # about 500 candidates each
SMALL: dict[str, dict[str, Any]] = {
    "squeezenet": {"size": 32, "channels": 8, "classes": 10}, "bert": {"blocks": 2, "seq": 16, "width": 64, "heads": 4},
    "inception_v3": {"size": 75, "divisor": 16},
}  # fmt: skip
PARTS = ("matching", "drawing", "network", "pricing")


def learner(cost: CostModel | None = None) -> tuple[XRLflow, CostModel]:
    machine = construct(registry.option("machine", "cpu_core"), "machine")
    around: dict[str, Any] = {"machine": machine}
    around["task"] = construct(registry.option("task", "rewrite"), "task", around)
    priced: CostModel = cost or construct(registry.option("cost", "flops"), "cost", around)
    torch.manual_seed(0)
    made = construct(registry.option("algo", "xrlflow"), "algo", around | {"cost": priced, "seed": 0})
    assert isinstance(made, XRLflow)
    return made, priced


def game_of(model: str, sizes: dict[str, Any], cost: CostModel | None = None, waves: int | None = None
            ) -> tuple[XRLflow, Game]:  # fmt: skip
    """waves: of sweeps; None: as many as algo=xrlflow has."""
    made, priced = learner(cost)
    problem = made.task.open(graph_of(build_model(model, sizes), name=model), priced, evals=10**9)
    return made, made.game(problem, made.episode if waves is None else replace(made.episode, waves=waves))


def enumeration(model: str, steps: int, sweeps: bool) -> None:
    """Random steps through a large program; the first one, which matches everything, does not count."""
    _, game = game_of(model, LARGE[model], waves=None if sweeps else 0)
    rng = np.random.default_rng(0)
    episode, found, drawn, candidates = Episode(game, rng), list[float](), list[float](), list[float]()
    _ = episode.place.graphs
    for _ in range(steps):
        start = time.thread_time()
        episode.act(int(rng.integers(1, episode.place.actions)))
        matched = time.thread_time()
        _ = episode.place.graphs
        found.append(matched - start)
        drawn.append(time.thread_time() - matched)
        candidates.append(float(episode.place.actions - 1 + episode.place.left_out))
        episode.settle(1.0)
    suffix = "/sweeps" if sweeps else ""
    say(f"enumerate_seconds/{model}{suffix}", found, "s", {"candidates": float(np.median(candidates))})
    say(f"draw_seconds/{model}{suffix}", drawn, "s")


def rollout(name: str, made: XRLflow, game: Game, repeats: int) -> None:
    """Episodes side by side, as training has them."""
    rng, rates, shares = np.random.default_rng(0), list[float](), list[dict[str, float]]()
    for _ in range(repeats):
        spent, steps = dict.fromkeys(PARTS, 0.0), 0
        start = time.perf_counter()
        episodes = [Episode(game, rng) for _ in range(made.learning.episodes)]
        spent["matching"] += time.perf_counter() - start
        while running := [episode for episode in episodes if not episode.over]:
            steps += len(running)
            _step(made, game, running, rng, spent)
        rates.append(steps / (time.perf_counter() - start))
        shares.append({part: seconds / sum(spent.values()) for part, seconds in spent.items()})
    say(f"steps_per_second/{name}", rates, "1/s")
    for part in PARTS:
        say(f"share/{part}/{name}", [share[part] for share in shares], "ratio")


def _step(
    made: XRLflow, game: Game, running: Sequence[Episode], rng: np.random.Generator, spent: dict[str, float]
) -> None:
    marks = [time.perf_counter()]
    graphs = [episode.place.graphs for episode in running]
    marks.append(time.perf_counter())
    with torch.no_grad():
        actions, *_ = drawn(made.policy, graphs, rng, [1.0] * len(running))
    marks.append(time.perf_counter())
    for episode, action in zip(running, actions):
        episode.act(action)
    marks.append(time.perf_counter())
    wanting = [episode for episode in running if episode.wants_price]
    prices = dict(zip(map(id, wanting), game.prices([episode.place.point for episode in wanting])))
    for episode in running:
        episode.settle(prices.get(id(episode), float("nan")))
    marks.append(time.perf_counter())
    for part, seconds in zip(("drawing", "network", "matching", "pricing"), np.diff(marks)):
        spent[part] += float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions")
    parser.add_argument("--measure", action="store_true", help="price by ONNX Runtime, too (minutes)")
    words = parser.parse_args()
    torch.set_num_threads(1)
    for model, sweeps in product(LARGE, (False, True)):
        enumeration(model, 4 if words.quick else 20, sweeps)
    for model, sizes in SMALL.items():
        rollout(model, *game_of(model, sizes), 1 if words.quick else 3)
    if words.measure:
        with TemporaryDirectory() as folder:
            node = registry.option("cost", "onnxruntime") | {"table": f"{folder}/measured.jsonl"}
            cost: CostModel = construct(node, "cost")
            rollout("squeezenet/measured", *game_of("squeezenet", SMALL["squeezenet"], cost), 1)


if __name__ == "__main__":
    main()
