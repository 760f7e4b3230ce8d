"""Time of a pass of the graph networks over a layered graph of 80,000 ops, forward and backward.

`python benchmarks/encoders.py [--quick] [ENCODER ...]` prints JSON lines {"name", "value", "unit", "low", "high"}: the
median of several passes, with the smallest and the largest, in CPU time of one thread; encoders take turns. Sizes as in
conf/.
"""

import argparse
import time

import numpy as np
import torch
from lines import say

from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.learn.encoders.features import graph_features
from graphopt.run.config.construct import construct


def seconds(encoder: torch.nn.Module, data: object) -> float:
    start = time.thread_time()
    states, pooled = encoder(data)
    (states.square().mean() + pooled.square().mean()).backward()
    return time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8,000 ops, two passes")
    parser.add_argument("encoders", nargs="*", default=["graphsage", "gat", "gin", "pyg", "message_passing"])
    args = parser.parse_args()
    ops, passes = (8_000, 2) if args.quick else (80_000, 5)
    torch.set_num_threads(1)
    machine = construct(registry.option("machine", "gpu2"), "machine")
    data = graph_features(layered_graph(ops, np.random.default_rng(0), "layers"), machine)
    options = {name: registry.option("encoder", name) for name in args.encoders}
    encoders = {name: construct(node, "encoder", {"extra_width": 0}) for name, node in options.items()}
    taken: dict[str, list[float]] = {name: [] for name in encoders}
    for turn in range(passes + 1):
        for name, encoder in encoders.items():
            found = seconds(encoder, data)
            taken[name] += [found] if turn else []
    for name, found in taken.items():
        say(f"encoder_seconds/{name}/{ops}", found, "s")


if __name__ == "__main__":
    main()
