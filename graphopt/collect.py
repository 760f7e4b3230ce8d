"""Collects the local advantages that LAF learns from, without training: `python -m graphopt.collect task=fusion`.

Takes what `run.py` takes; `algo` is laf unless another learner is named. What is on disk already is kept, so a stopped
call goes on where it was, and so does training, which collects what is missing by itself.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, get_args

from graphopt.build import build
from graphopt.cli import sentences
from graphopt.compat import CONF
from graphopt.datasets.base import Split
from graphopt.errors import UsageError, UserError
from graphopt.graph import GraphError


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="python -m graphopt.collect", description="Collect samples of advantages.")
    result.add_argument("settings", nargs="*", help="as for run.py, such as task=fusion algo.collection.sweeps=8")
    result.add_argument("--split", default="train", choices=get_args(Split), help="of which graphs; default: train")
    return result


def composed(settings: Sequence[str]) -> dict[str, Any]:
    """The configuration that `run.py` would have."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = OmegaConf.to_container(compose("config", overrides=["algo=laf", *settings]), resolve=True)
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def main(arguments: Sequence[str]) -> int:
    args = parser().parse_args(arguments)
    try:
        from graphopt.algos.laf import LAF

        parts = build(composed(args.settings))
        if not isinstance(parts.algo, LAF):
            raise UsageError(f"algo={parts.algo.name} learns from no samples; choose algo=laf or one of its variants")
        graphs = parts.dataset.graphs(args.split)
        parts.algo.gather(graphs)
        print(f"{parts.algo.train_evals} prices around decisions of {len(graphs)} graphs")
    except (UserError, GraphError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    with sentences():
        sys.exit(main(sys.argv[1:]))
