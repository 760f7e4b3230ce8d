"""Checkpoints that come with the package (graphopt/pretrained/): weights alone, made by `graphopt study ship`. The
file's name says what they are for."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from graphopt.config.construct import target_of
from graphopt.errors import UsageError, UserError
from graphopt.utils import registry

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
ANY = "any"  # in the name of a packaged checkpoint
RUNTIME = "runtime"  # the objective of cost models that say none


def packaged(config: Mapping[str, Any]) -> Path:
    """The checkpoint that comes with the package for the run's algorithm, task and objective. Raises UsageError, naming
    what there is, when there is none."""
    path = PRETRAINED / packaged_name(config)
    if not path.is_file():
        stored = [_words(tuple(file.stem.split("-"))) for file in sorted(PRETRAINED.glob("*.ckpt"))]
        raise UsageError(
            f"ckpt=pretrained: no checkpoint comes with graphopt for {_words(_purpose(config))}; "
            f"there are: {'; '.join(stored) or 'none'}; choose one of these, or train with ckpt=null"
        )
    return path


def packaged_name(config: Mapping[str, Any]) -> str:
    """The file name says what a packaged checkpoint is for. Raises UserError for names that are none of a file."""
    for part in _purpose(config):
        if not re.fullmatch(r"[A-Za-z0-9_+][A-Za-z0-9_.+]*", part):
            raise UserError(f"{part!r} is no name that a packaged checkpoint can have: letters, digits and _ only")
    return f"{'-'.join(_purpose(config))}.ckpt"


def _purpose(config: Mapping[str, Any]) -> tuple[str, str, str]:
    algo = registry.base("algo", config["algo"])
    if getattr(target_of(config["algo"], "algo"), "any_purpose", False):  # only learners say
        return algo, ANY, ANY
    cost = config["cost"]
    objective = cost["objective"] if "objective" in cost else getattr(target_of(cost, "cost"), "objective", RUNTIME)
    return algo, str(config["task"]["name"]), str(objective)


def _words(purpose: tuple[str, ...]) -> str:
    return ", ".join(f"{key}={value}" for key, value in zip(("algo", "task", "cost.objective"), purpose))
