"""Experiments, from their yaml files: every cell composes and fits, and each runs, shrunk."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from commands import command
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from graphopt import CONF
from graphopt.core.utils import registry
from graphopt.run.cell import settings_of
from graphopt.run.config import compatibility

EXPERIMENTS = registry.options("experiment")
OF_ZOO = (
    "train=[{model: rnnlm, layers: 1, steps: 2, batch: 2, width: 32}]",
    "val=[{model: gnmt, layers: 1, steps: 2}]",
    "test=[{model: deep_rank}]",
)
OF_ROOM = ("sizes=[12]", "train=[2]", "val=[1]", "test=[1]", "room.filter=none")
MODEL = "test=[{model: nasrnn, steps: 1, width: 8}]"
SMALL: dict[str, list[str]] = {  # by data set
    **{name: [f"dataset.{word}" for word in OF_ZOO] for name in ("zoo", "zoo_large", "zoo_laf")},
    "regal_mixed": [*(f"dataset.synthetic.{word}" for word in OF_ROOM), *(f"dataset.real.{word}" for word in OF_ZOO),
                    "dataset.test=[synthetic]", "dataset.perturb.copies=1"],
    "rewrite_models": [f"dataset.{MODEL}"],
    "models": ["dataset.min_ops=50", "dataset.max_ops=100", "dataset.training=2", "dataset.testing=1"],
    "models_far": ["dataset.min_ops=50", "dataset.max_ops=100", "dataset.training=2", "dataset.testing=1"],
    "tiling": ["dataset.source=random", "dataset.random.test=[8]", "algo.seconds=1"],
    "sharding": ["dataset.source=random", "dataset.random.nodes=12", "budget.seconds=1"],
    "synthetic": ["dataset.ops=[20]", "dataset.train=1", "dataset.val=1", "dataset.test=1"],
}  # fmt: skip
OF_LAF = ("algo.collection.sweeps=1", "algo.collection.slots=10", "algo.collection.folder=samples")
OF_REGAL = ("algo.learning.evals=20", "algo.evolution.population=10", "trainer.val_evals=20")
WORDS: dict[str, tuple[str, ...]] = {  # one cell of each, and what is small there
    "cost_discrepancy": ("judge.table=ops.jsonl",),
    "go_ablation": ("task=joint", "algo=choice(recurrent)"),
    "go_far": ("algo=kernel_model",),
    "go_joint": ("task=joint", "algo=run_model", "algo.modelled=20", "algo.plans=2"),
    "go_placement": ("machine=gpu2", "algo=run_model", "algo.modelled=20", "algo.plans=2"),
    "go_tasks": ("task=joint",),
    "go_transfer": ("algo=choice(fine_tuned)",),
    "laf_ablation": ("algo=choice(laf_fresh)", *OF_LAF),
    "laf_far": ("algo=laf_refit", *OF_LAF),
    "laf_figure1": ("algo=choice(laf_gain_random_start)", *OF_LAF),
    "laf_sensitivity": ("algo=laf_refit", "algo.search.guide.top=10", *OF_LAF),
    "laf_table1": ("algo=laf", *OF_LAF),
    "learning_curve": ("algo=choice(kernels_10)",),
    "go_machines": ("algo=choice(roofline_scan)", "machine=gpu2"),
    "regal_far": ("cost.objective=peak_memory", "algo=choice(network_off)", *OF_REGAL),
    "regal_runtime": ("algo=regal", *OF_REGAL),
    "regal_table1": ("algo=gas", *OF_REGAL),
    "regal_table3": ("algo.use={placement: true, scheduling: false, elite_bias: true}", *OF_REGAL),
    "sharding": ("algo=sharding_search",),
    "quick": ("algo=go",),
    "rewrite_flops": ("algo=choice(tensat_greedy)",),
    "tiling": ("algo=tile_walk",),
    "rewrite_mcts": ("algo=mcts", "algo.simulations=2"),
    "rewrite_table": ("algo=rewrite_greedy", "cost.table=ops.jsonl", "judge.table=ops.jsonl"),
}


RUN_PROGRAMS = ("calibration", "hardware_fusion", "hardware_memory", "hardware_recompute",
                "xrlflow_ablation", "xrlflow_blind", "xrlflow_latency", "xrlflow_one_policy",
                "xrlflow_shapes")  # fmt: skip


def composed(*words: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=list(words), return_hydra_config=True)


@cache
def plan_of(experiment: str) -> Any:
    """Its sweeper's configuration."""
    return composed(f"experiment={experiment}").hydra.sweeper


def jobs(experiment: str) -> Iterator[list[str]]:
    """Of its sweep, but for seeds: each job's words."""
    plan = plan_of(experiment)  # composing loads Hydra's plugins, which may not be imported before
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper

    from graphopt.run.sweep import spelled_out

    params = [f"{key}={value}" for key, value in (plan.params or {}).items()]
    (batch,) = BasicSweeper.split_arguments(OverridesParser.create().parse_overrides([*params, "seed=0"]), None)
    return (spelled_out(job, plan.algos) for job in batch)


def flat(node: Any, above: str = "algo") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {above: node}
    return {key: value for name, inner in node.items() for key, value in flat(inner, f"{above}.{name}").items()}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_every_cell_composes_and_fits(experiment: str) -> None:
    names = []
    for job in jobs(experiment):
        config = OmegaConf.to_container(
            OmegaConf.masked_copy(
                made := composed(f"experiment={experiment}", *job), [key for key in made if key != "hydra"]
            ),
            resolve=True,
        )
        assert isinstance(config, dict)
        settings_of(config)
        compatibility.check(config)  # raises
        names.append((config["task"]["name"], config["algo"]["name"], config["cost"]["name"], config["judge"]["name"],
                      str(config["judge"]), config["machine"]["name"], config["study"]))  # fmt: skip
    assert len(set(names)) == len(names) and {study for *_, study in names} == {experiment}


@pytest.mark.parametrize(
    ("experiment", "name"), [(each, name) for each in EXPERIMENTS for name in plan_of(each).algos], ids=str
)
def test_an_own_algorithm_is_its_option_with_these_values(experiment: str, name: str) -> None:
    from graphopt.run.sweep import spelled_out

    words = list(plan_of(experiment).algos[name])
    option = words[0].removeprefix("algo=")
    made = composed(f"experiment={experiment}", *spelled_out([f"algo={name}"], plan_of(experiment).algos))
    said, node = dict(word.split("=") for word in words[1:]), registry.option("algo", option)
    inner = {key: value for key, value in said.items() if "@" in key}
    for key, value in inner.items():  # another option under a key of it, such as algo@algo.search=mcts
        node[key.removeprefix("algo@algo.")] = registry.option("algo", value)
    found, plain = flat(OmegaConf.to_container(made.algo)), flat(node)
    changed = {key: value for key, value in said.items() if key.startswith("algo.")}
    others = said.keys() - changed.keys() - inner.keys()
    assert all(re.sub("[' ]", "", str(OmegaConf.select(made, key))) == said[key] for key in others)
    assert name not in set(registry.options("algo")) - {option} and found.keys() == plain.keys()
    renamed = set() if name == option else {"algo.name"}
    assert {key for key in plain if found[key] != plain[key]} == {*renamed, *changed} and found["algo.name"] == name
    assert all(re.sub("[' ]", "", str(found[key])).lower().replace("none", "null") == value.replace("none", "null")
               for key, value in changed.items())  # fmt: skip


def test_words_after_an_own_algorithm_count() -> None:
    from graphopt.run.sweep import spelled_out

    algos = {"mine": ["algo=local", "algo.start=random"]}
    job = ["seed=0", "algo=mine", "algo.start=zero"]
    assert spelled_out(job, algos) == ["seed=0", "algo=local", "algo.start=random", "algo.name=mine", "algo.start=zero"]
    assert spelled_out(["algo=local", "study=mine"], algos) == ["algo=local", "study=mine"]


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_each_runs_shrunk(experiment: str, tmp_path: Path) -> None:
    if experiment in RUN_PROGRAMS:
        pytest.skip("runs and compiles programs for minutes; its parts are tested in costs, search and apply")
    words = WORDS.get(experiment, ())
    (config,) = [composed(f"experiment={experiment}")]
    small = [*SMALL[config.dataset.name], *(word.replace("=samples", f"={tmp_path}/samples") for word in words)]
    small = [word.replace("=ops.jsonl", f"={tmp_path}/ops.jsonl") for word in small]
    quick = ["budget.evals=[3]", "seed=0", "trainer.steps=1", "trainer.val_every=1", "trainer.batch_graphs=1"]
    answer = command(tmp_path, f"experiment={experiment}", *quick, *small)
    assert answer.code == 0, answer.err
    algos = [re.sub(r"algo=(?:choice\()?(\w+)\)?", r"\1", word) for word in words if word.startswith("algo=")]
    solved = {row["algo"] for row in answer.rows if row["status"] == "ok"}
    assert len(solved) == 1 + len(config.compare) and {row["study"] for row in answer.rows} == {experiment}
    assert set(config.compare) | ({*algos} if experiment != "laf_sensitivity" else set()) <= solved
