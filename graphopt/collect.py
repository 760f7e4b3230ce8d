"""Collects the local advantages that LAF learns from, without training: `python -m graphopt.collect task=fusion`.

Takes what `run.py` takes; `algo` is laf unless a variant is named. What is on disk already is kept, so a stopped call
goes on where it was; training collects what is missing by itself. With `ckpt=...`, it also says how well that model
ranks the slots of each graph: `python -m graphopt.collect --split test ckpt=outputs/default/CELL`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np

from graphopt import cli
from graphopt.algos.laf import LAF
from graphopt.cli import sentences
from graphopt.config.build import build
from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Split
from graphopt.errors import UsageError, UserError
from graphopt.training import checkpoint
from graphopt.training.adopt import said, with_network
from graphopt.utils.printable import say


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m graphopt.collect", description="Collect samples of advantages.")
    result.add_argument("settings", nargs="*", help="as for run.py, such as task=fusion algo.collection.sweeps=8")
    result.add_argument("--split", default="train", choices=get_args(Split), help="of which graphs; default: train")
    return result


def composed(settings: Sequence[str]) -> dict[str, Any]:
    """The configuration that `run.py` would have."""
    algo = [] if any(word.startswith("algo=") for word in settings) else ["algo=laf"]
    plain = cli.composed([*algo, *settings])
    return said(with_network(plain), plain) if plain["ckpt"] else plain


def learner_of(config: dict[str, Any], split: Split) -> tuple[LAF, list[Graph]]:
    """The configured LAF, with the weights of its checkpoint if it has one, and the graphs of a split."""
    parts = build(config)
    learner = parts.algo
    if not isinstance(learner, LAF):
        raise UsageError(f"algo={learner.name} learns from no samples; choose algo=laf or one of its variants")
    if config["ckpt"]:
        source = checkpoint.find(str(config["ckpt"]), config)
        checkpoint.adopt_weights(learner, source, checkpoint.about(config, learner))
    return learner.eval(), parts.dataset.graphs(split)


def ranks(learner: LAF, graphs: Sequence[Graph]) -> Iterator[str]:
    """Markdown: how well predicted and true sizes of advantages agree, mean over the collected decisions."""
    yield "| graph | rank correlation | of the true top tenth, found in the predicted one | decisions |"
    yield "|---|---|---|---|"
    for graph in graphs:
        found = np.array(learner.agreement(graph)).reshape(-1, 2)
        both = " | ".join(f"{value:.2f}" for value in np.nanmean(found, 0)) if len(found) else "- | -"
        yield f"| {graph.name} | {both} | {len(found)} |"


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_intermixed_args(arguments)
    try:
        config = composed(args.settings)
        learner, graphs = learner_of(config, args.split)
        learner.gather(graphs)
        say(f"{learner.train_evals} prices around decisions of {len(graphs)} graphs")
        if config["ckpt"]:
            say("\n".join(ranks(learner, graphs)), keep="\n")
    except (UserError, GraphError) as error:
        say(error, sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with sentences():
        sys.exit(main(sys.argv[1:]))
