"""What a file says of a configuration, built here: what answers are priced by, and data sets that are made again."""

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from graphopt.config.build import machine_task_costs
from graphopt.config.construct import construct
from graphopt.config.stored import node_of
from graphopt.core.machine import Machine
from graphopt.datasets.dataset import Dataset
from graphopt.errors import DecisionError, UserError
from graphopt.problems.cost_model import CostModel
from graphopt.problems.task import Task

GROUPS = ("machine", "task", "cost", "judge")
MOST_OPS = 20_000_000  # of all graphs of a data set that is made again because a file says so
Made = TypeVar("Made")


def pricing(source: Path, said: Mapping[str, Any]) -> tuple[Machine, Task, CostModel, CostModel]:
    """Machine, task, cost and judge of what a file says. Raises DecisionError when it means nothing here."""
    config = {group: _here(source, group, said.get(group)) for group in GROUPS}
    text = json.dumps(config)  # keys in their order: that of a machine's devices matters
    return _built(source, "its configuration", lambda: _pricing(text))


def dataset(source: Path, said: Any, seed: int) -> Dataset:
    """The data set that a file says, if it makes its graphs of numbers alone, within limits, or reads third parties'
    data where they lie here. Raises DecisionError for all others."""
    node = _here(source, "dataset", said)
    made = _built(source, "its data set", lambda: _dataset(json.dumps(node, sort_keys=True), seed))
    extent = made.extent() if made.kept else 0
    if extent is None or extent > MOST_OPS:
        why = "which a file may not name" if extent is None else f"more than the {MOST_OPS:,} ops that are made again"
        raise DecisionError(f"{source}: dataset={made.name} would read files, run code or make very many graphs, {why}")
    return made


def _here(source: Path, group: str, said: Any) -> dict[str, Any]:
    """The node that a file's words mean in this installation."""
    try:
        return node_of(group, said, source)
    except UserError as error:
        raise DecisionError(f"{source}: {error}") from None


def _built(source: Path, what: str, build: Callable[[], Made]) -> Made:
    try:
        return build()
    except Exception as error:  # whatever constructors say of values from a file
        foreseen = isinstance(error, UserError)
        why = error if foreseen else f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise DecisionError(f"{source}: {what} cannot be had here: {why}") from None


@lru_cache(maxsize=16)
def _pricing(config: str) -> tuple[Machine, Task, CostModel, CostModel]:
    return machine_task_costs(json.loads(config))


@lru_cache(maxsize=4)
def _dataset(config: str, seed: int) -> Dataset:
    made: Dataset = construct(json.loads(config), "dataset", {"seed": seed})
    return made
