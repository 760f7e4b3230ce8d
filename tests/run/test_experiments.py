"""Experiments, from their yaml files: every cell composes and fits, and all that it names can be built."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import command
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from graphopt import CONF
from graphopt.core.utils import registry
from graphopt.graphs.in_memory import InMemory
from graphopt.run.cell import settings_of
from graphopt.run.config.build import build

EXPERIMENTS = registry.options("experiment")


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(words), return_hydra_config=True)


@cache
def plan_of(experiment: str) -> Any:
    """Its sweeper's configuration."""
    return composed(f"experiment={experiment}").hydra.sweeper


def jobs(experiment: str) -> Iterator[list[str]]:
    """Of its sweep, but for seeds: each job's words."""
    plan = plan_of(experiment)
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    params = [f"{key}={value}" for key, value in (plan.params or {}).items()]
    (batch,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides([*params, "seed=0"]), None)
    return iter(batch)


def flat(node: Any, above: str = "algo") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {above: node}
    return {key: value for name, inner in node.items() for key, value in flat(inner, f"{above}.{name}").items()}


def telling(words: Iterator[list[str]]) -> Iterator[list[str]]:
    """The jobs that bring a word, or a pair of task and algorithm, that those before had not."""
    seen = set[object]()
    for job in words:
        parts = {*job, *pairwise(word for word in job if re.match(r"(task|algo)=", word))}
        if not parts <= seen:
            yield job
        seen |= parts


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_cell_composes_and_fits(experiment: str) -> None:
    names, own = [], dict(plan_of(experiment).algos)
    from graphopt.run.sweep import spelled_out  # after composing, which loads Hydra's plugins

    for job in telling(chain(jobs(experiment), ([f"algo={name}"] for name in list(own)))):
        made = composed(f"experiment={experiment}", *spelled_out(job, plan_of(experiment).algos))
        ours = OmegaConf.masked_copy(made, [key for key in made if key != "hydra"])
        config = OmegaConf.to_container(ours, resolve=True)
        assert isinstance(config, dict)
        settings_of(config)
        build(config, InMemory(name="given", held=[]))  # raises
        named = (config[part]["name"] for part in ("task", "algo", "cost", "judge", "machine"))
        names.append((*named, config["dataset"]["name"], str(config["judge"]), config["study"]))
        if (name := config["algo"]["name"]) in own:
            says_its_words(name, list(own.pop(name)), job, made)
    assert len(set(names)) == len(names) and {study for *_, study in names} == {experiment} and not own


def says_its_words(name: str, words: list[str], job: list[str], made: DictConfig) -> None:
    """An algorithm of an experiment's own is its option with these values, and what the job sets."""
    option = words[0].removeprefix("algo=")
    said, node = dict(word.split("=") for word in words[1:]), registry.option("algo", option)
    inner = {key: value for key, value in said.items() if "@" in key}
    for key, value in inner.items():  # another option under a key of it, such as algo@algo.search=mcts
        node[key.removeprefix("algo@algo.")] = registry.option("algo", value)
    found, plain = flat(OmegaConf.to_container(made.algo)), flat(node)
    changed = {key: value for key, value in said.items() if key.startswith("algo.")}
    others = said.keys() - changed.keys() - inner.keys()
    assert all(
        re.sub("[' ]", "", str(OmegaConf.select(made, key))).replace("None", "null") == said[key] for key in others
    )
    assert name not in set(registry.options("algo")) - {option} and found.keys() == plain.keys()
    renamed = set() if name == option else {"algo.name"}
    swept = {key for word in job for key in plain if word.startswith((f"{key}=", f"{key.rpartition('.')[0]}="))}
    different = {key for key in plain if found[key] != plain[key]}
    assert different - swept == {*renamed, *changed} - swept and found["algo.name"] == name
    assert all(re.sub("[' ]", "", str(found[key])).lower().replace("none", "null") == value.replace("none", "null")
               for key, value in changed.items() if key not in swept)  # fmt: skip


def test_words_after_an_own_algorithm_count() -> None:
    from graphopt.run.sweep import spelled_out

    algos = {"mine": ["algo=local", "algo.start=random"]}
    job = ["seed=0", "algo=mine", "algo.start=zero"]
    assert spelled_out(job, algos) == ["seed=0", "algo=local", "algo.start=random", "algo.name=mine", "algo.start=zero"]
    assert spelled_out(["algo=local", "study=mine"], algos) == ["algo=local", "study=mine"]


def test_the_first_one_runs_shrunk(tmp_path: Path) -> None:
    """With one of its own algorithms and all that it compares with."""
    small = ["budget.evals=[3]", "trainer.steps=1", "trainer.val_every=1", "trainer.batch_graphs=1", "seed=0",
             "dataset.train=[{model: rnnlm, layers: 1, steps: 2, batch: 2, width: 32}]",
             "dataset.val=[{model: gnmt, layers: 1, steps: 2}]", "dataset.test=[{model: deep_rank}]"]  # fmt: skip
    answer = command(tmp_path, "experiment=quick", "algo=choice(kernel_model_trained_here)", *small)
    assert answer.code == 0, answer.err
    solved = {row["algo"] for row in answer.rows if row["status"] == "ok"}
    assert solved == {"kernel_model_trained_here", *composed("experiment=quick").compare} and {
        row["study"] for row in answer.rows
    } == {"quick"}
