"""Settings that nothing can be made of, or that ask for more than any machine has, end in a sentence."""

from typing import Any

import pytest

from graphopt.cli import composed, explained
from graphopt.config.build import build
from graphopt.core.graph import GraphError
from graphopt.errors import UserError
from graphopt.problems.optimizer import solve
from graphopt.run.cell import settings_of

SMALL = ("dataset=layered", "dataset.ops=[12]", "dataset.train=1", "dataset.val=1", "dataset.test=1", "logger=none")
FUSION = ("task=fusion", "algo=local", "machine=gpu2")
JOINT = ("task=placement_scheduling", "algo=brkga", "machine=cpu_gpu")


def run(words: tuple[str, ...], path: str, value: Any) -> None:
    """Builds a small run with one setting changed, and solves a graph."""
    config = composed([*SMALL, *words])
    *parents, key = path.split(".")
    node: Any = config
    for name in parents:
        node = node[name]
    node[key] = value
    settings_of(config)
    parts = build(config)
    solve(parts.algo, parts.dataset.graphs("test")[0], parts.task, parts.cost, evals=6)


@pytest.mark.parametrize(
    "words, path, value, said",
    [
        (FUSION, "dataset.graph_seed", -1, "must not be negative"),
        (FUSION, "dataset.ops", [10**12], "more than can be drawn"),
        (FUSION, "dataset.test", 10**12, "more than can be drawn"),
        (FUSION, "dataset.test", -1, "cannot have -1 graphs"),
        (FUSION, "task.max_inputs", 10**9, "from 1 to"),
        (FUSION, "task.max_duplicates", 10**18, "from 1 to"),
        (FUSION, "task.max_duplicates", -1, "from 1 to"),
        (FUSION, "task.levels", 10**9, "from 1 to"),
        (FUSION, "machine.transfer", [{"lane": "link"}], "must be fields by name"),
        (FUSION, "machine.devices.gpu.cache_speedup", 0, "must be positive"),
        (FUSION, "machine.devices.gpu.saturation", 0, "must be positive"),
        (JOINT, "algo.evolution.population", 10**9, "give fewer"),
        (JOINT, "task.levels", 0, "from 1 to"),
        (("task=fusion", "algo=annealing", "machine=gpu2"), "algo.hot", -1.0, r"must be in \[0, 1\]"),
        (("task=fusion", "algo=laf_unguided", "machine=gpu2"), "algo.steps.batch", 0, "from 1 to"),
        (("task=scheduling", "algo=cpsat", "machine=gpu2"), "algo.workers", 10**9, "from 1 to"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(words: tuple[str, ...], path: str, value: Any, said: str) -> None:
    with pytest.raises((UserError, GraphError), match=said):
        run(words, path, value)


@pytest.mark.timeout(60)
def test_a_neighbourhood_ends_with_the_graph() -> None:
    """A radius beyond the graph takes no longer than one that spans it."""
    run(FUSION, "algo.hops", 10**18)


def test_a_deep_nest_in_place_of_a_word_is_a_sentence() -> None:
    nest: list[Any] = []
    for _ in range(1000):
        nest = [nest]
    with pytest.raises(UserError, match="split=a list is not one of train, val, test"):
        run(FUSION, "split", nest)


def test_a_group_set_to_nothing_is_a_sentence() -> None:
    with pytest.raises(ValueError) as caught:
        composed([*SMALL, *FUSION, "logger=null"])
    sentence, code = explained(caught.value)
    assert code == 2 and "choose GROUP=NAME" in sentence
