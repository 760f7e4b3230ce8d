"""Who fits whom, and what the refusals say."""

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import frame_parts as parts_of
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from graphopt import CONF
from graphopt.core.cli import composed, config_dir
from graphopt.core.errors import ConfigError, Incompatible, Unsolved
from graphopt.core.utils import registry
from graphopt.graphs.in_memory import InMemory
from graphopt.graphs.layered import layered_graph
from graphopt.problems.optimizer import solve, unpriced
from graphopt.run.config import compatibility
from graphopt.run.config.build import build
from graphopt.run.config.construct import construct, target_of

PEERS = [
    ([], ["default", "motif_scan"]),
    (["algo=motif_scan"], ["default"]),
    (["compare=[]"], []),
    (["cost=inductor", "dataset=lowered"], ["default", "compiler_search"]),
    (["task=placement_scheduling"], ["default", "windowed"]),
    (["task=placement_scheduling", "cost.objective=peak_memory"], ["default", "hot_local"]),
    (["task=rewrite", "algo=xrlflow", "cost=flops"], ["tensat"]),
]
TASKS, ALGOS = registry.options("task"), registry.options("algo")


@pytest.fixture
def toy_options(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = {
        "task": {
            "binary": parts_of.node(parts_of.Binary, "binary"),
            "rewrite": parts_of.node(parts_of.Rewriting, "rewrite"),
        },
        "algo": {
            "draws": parts_of.node(parts_of.Draws, "draws"),
            "rewrites": parts_of.node(parts_of.Rewrites, "rewrites"),
            "missing": {"_target_": "not_installed.X", "name": "missing"},
        },
        "dataset": {"toys": parts_of.node(parts_of.ToyGraphs, "toys", empty=[])},
    }  # fmt: skip
    monkeypatch.setattr(registry, "options", lambda group: sorted(nodes.get(group, {})))
    monkeypatch.setattr(registry, "option", lambda group, name: nodes[group][name])


@pytest.mark.usefixtures("toy_options")
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"algo": parts_of.node(parts_of.Rewrites, "rewrites")},
            "algo=rewrites needs a rewriting task; task=binary is a task that assigns a choice to every op. "
            "Tasks for rewrites: rewrite. Algorithms for binary: draws.",
        ),
        (
            {"task": parts_of.node(parts_of.Rewriting, "rewrite")},
            "algo=draws needs a task that assigns a choice to every op; task=rewrite is a rewriting task. "
            "Tasks for draws: binary. Algorithms for rewrite: rewrites.",
        ),
        (
            {"algo": parts_of.node(parts_of.DecidesDevice, "device")},
            "algo=device needs a task that decides device; task=binary decides inline. "
            "Tasks for device: none. Algorithms for binary: draws.",
        ),
        (
            {"judge": parts_of.node(parts_of.NeedsProgram, "real", factor=1.0)},
            "judge=real needs graphs that carry program; dataset=toys has none. Data sets that do: none.",
        ),
    ],
)
def test_one_sentence_before_anything_is_built(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    config = parts_of.config(tmp_path, **changes)
    config["dataset"]["empty"] = 3  # would fail if it were built
    with pytest.raises(Incompatible) as caught:
        build(config)
    assert str(caught.value) == sentence


def test_cost_and_judge_price_the_same_thing(tmp_path: Path) -> None:
    config = parts_of.config(tmp_path)
    config["judge"] = config["cost"]
    parts = build(config)
    assert parts.judge is parts.cost
    config["judge"] = parts_of.node(parts_of.Bytes, "bytes", factor=1.0)
    with pytest.raises(
        ConfigError, match=r"cost prices runtime, judge prices peak_memory; set judge\.objective=runtime"
    ):
        build(config)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("algo", ALGOS[::3])
def test_every_refusal_names_an_alternative(task: str, algo: str) -> None:
    config = {group: registry.option(group, name) for group, name in (("task", task), ("algo", algo))}
    own = {"recompute": ("training_step", "step"), "sharding": ("sharding", "strategy_cost"),
           "tiling": ("tiling", "tile_time")}  # fmt: skip
    dataset, cost = own.get(task, ("onnx", "simulator"))
    needs = target_of(config["algo"], "algo").needs
    config["dataset"] = registry.option("dataset", "lowered" if "compiled_program" in needs else dataset)
    config["cost"] = config["judge"] = registry.option("cost", cost)
    config["machine"] = registry.option("machine", "gpu2")
    fit = compatibility.mismatch(target_of(config["algo"], "algo"), config["task"]) is None
    words = FITS.get(algo, {}).get(task)
    try:
        compatibility.check(config)
        assert fit and words == ""
    except Incompatible as error:
        if fit:
            assert words and str(error).endswith(f"For task={task} take {words}"), "the table says it, and so does this"
            return
        for_algo, for_task = str(error).split(f"Tasks for {algo}: ")[1].split(f" Algorithms for {task}: ")
        assert for_algo != "none." and for_task != "none."


def test_the_matrix_has_every_task_and_algorithm() -> None:
    head, _, *lines = compatibility.matrix().splitlines()
    assert head == f"| algo | {' | '.join(TASKS)} |"
    assert [line.split()[1] for line in lines] == ALGOS
    assert all("yes" in line or "`" in line for line in lines)


FITS = compatibility.fits()
CELLS = [(algo, task, words) for algo, fitting in FITS.items() for task, words in fitting.items()]
OF_TASK = {"recompute": "training_step", "sharding": "sharding", "tiling": "tiling", "rewrite": "onnx"}
TINY: dict[str, Any] = {"width": 8, "layers": 1}


@pytest.mark.parametrize(("algo", "task", "words"), CELLS, ids=lambda part: part.replace(" ", ",") or "-")
def test_every_cell_of_the_table_can_be_built(algo: str, task: str, words: str) -> None:
    """With the words that it says, the usual machine and the task's usual cost model; and the checks of a run hold."""
    given = dict(word.split("=") for word in words.split())
    needs = target_of(registry.option("algo", algo), "algo").needs
    cost = registry.option("cost", given.pop("cost", compatibility._usual_cost(registry.option("task", task))))
    cost |= {"objective": given.pop("cost.objective")} if "cost.objective" in given else {}
    unfused = {"fuse": given.pop("task.fuse") == "true"} if "task.fuse" in given else {}
    encoder = {key: TINY.get(key, value) for key, value in registry.option("encoder", "graphsage").items()}
    dataset = "lowered" if "compiled_program" in needs else "programs" if cost["name"] == "live_bytes" else "synthetic"
    config = {
        "task": registry.option("task", task) | unfused, "algo": registry.option("algo", algo),
        "cost": cost, "judge": cost,
        "dataset": registry.option("dataset", OF_TASK.get(task, dataset)), "encoder": encoder, "seed": 0,
        "machine": registry.option("machine", given.pop("machine", "gpu2")), "compare": [],
        "trainer": registry.option("trainer", "default"),
    }  # fmt: skip
    assert not given
    config["dataset"] |= {"path": "model.onnx"} if "path" in config["dataset"] else {}
    try:
        parts = build(config, InMemory(name="given", held=[]))
    except ConfigError as error:  # of an extra that is not installed
        assert "pip install" in str(error)
        return
    assert not unpriced(type(parts.algo), type(parts.cost), parts.cost.objective)


def test_what_the_run_asks_of_prices_is_what_the_table_asks() -> None:
    """`solve` refuses by the same facts, also what a program puts together."""
    for algo, objective, said in (("load_balance", "runtime", "max_load"), ("windowed", "peak_memory", "runtime")):
        problem = {"machine": construct(registry.option("machine", "gpu2"), "machine")}
        task = construct(registry.option("task", "placement"), "task", problem)
        cost = construct(registry.option("cost", "simulator") | {"objective": objective}, "cost", problem)
        made = construct(registry.option("algo", algo), "algo", {})
        with pytest.raises(Unsolved, match=rf"needs cost\.objective={said} .* not {objective}"):
            solve(made, layered_graph(8, np.random.default_rng(0), "one"), task, cost, evals=1)


def test_families_say_what_the_matrix_says() -> None:
    """Every algorithm is named once, by itself or by a NAME* that fits the same tasks, in bold if it learns."""
    found: dict[str, tuple[dict[str, str], bool]] = {}
    for line in compatibility.families().splitlines()[2:]:
        said, names = (cell.strip() for cell in line.strip("|").split("|"))
        tasks, _, words = said.removesuffix("`").partition(" with `")
        for shown in names.split(", "):
            plain = shown.removeprefix("**").removesuffix("**")
            found.setdefault(plain, ({}, shown != plain))[0].update(dict.fromkeys(tasks.split(", "), words))
    fits, matrix = compatibility.fits(), compatibility.matrix()
    for algo in ALGOS:
        said = [name for name in found if name in (algo, f"{algo}*")] or [
            name for name in found if name.endswith("*") and algo.startswith(f"{name[:-1]}_")
        ]
        nearest = max(said, key=len)
        assert found[nearest] == (fits[algo], f"| {algo} (learns) |" in matrix), algo
    assert all(name.rstrip("*") in ALGOS for name in found) and len(found) < len(ALGOS)


def test_options_follow_their_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "CONF", tmp_path)
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "a.yaml").write_text("name: a\nsize: {x: 1, y: 2}\n")
    (tmp_path / "machine" / "b.yaml").write_text("defaults: [a, _self_]\nname: b\nsize: {y: 3}\n")
    assert registry.option("machine", "b") == {"name": "b", "size": {"x": 1, "y": 3}}
    with pytest.raises(ConfigError, match="machine=c does not exist; available: a, b"):
        registry.option("machine", "c")


def test_own_options_stand_beside_the_packaged_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "mine.yaml").write_text("defaults: [gpu2, _self_]\nname: mine\n")
    with pytest.raises(ConfigError, match="machine=mine does not exist"):
        registry.option("machine", "mine")
    with config_dir(["task=fusion", "--config-dir", str(tmp_path)]):
        assert {"mine", "gpu2"} <= {*registry.options("machine")}
        assert registry.option("machine", "mine") == {**registry.option("machine", "gpu2"), "name": "mine"}
    assert "mine" not in registry.options("machine")


def test_prices_of_single_ops_are_for_rewriting() -> None:
    config = {"task": registry.option("task", "fusion"), "algo": registry.option("algo", "default"),
              "dataset": registry.option("dataset", "onnx"), "judge": registry.option("cost", "simulator"),
              "cost": registry.option("cost", "flops")}  # fmt: skip
    with pytest.raises(Incompatible, match=r"cost=flops prices programs, .*Cost models for it: .*simulator"):
        compatibility.check(config)


@pytest.mark.parametrize(("words", "peers"), PEERS)
def test_a_run_is_compared_with_the_default_and_the_strongest_search(words: list[str], peers: list[str]) -> None:
    found = compatibility.with_peers(OmegaConf.create(composed(words)))
    assert found.compare == peers


def test_the_strongest_searches_are_options_that_need_no_training() -> None:
    known = yaml.safe_load((CONF / "strongest.yaml").read_text())
    assert {task.split("/")[0] for task in known} == {*TASKS}
    for name in itertools.chain(*known.values()):
        assert not compatibility.learns(target_of(registry.option("algo", name), "algo"))


ADVICE = re.compile(
    r"For task=\S+ take (?P<words>.+)$|Cost models for it: (?P<cost>\w+)|Data sets that do: (?P<dataset>\w+)"
    r"|Algorithms for \S+: (?P<algo>\w+)"
)


def test_who_follows_the_advice_comes_to_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third of task x cost x algorithm: each refusal names one change, and after three at most there is none."""
    monkeypatch.setattr(registry, "option", functools.cache(registry.option))
    names = {"dataset": "synthetic", "machine": "gpu2"}
    for task, cost, algo in list(itertools.product(TASKS, registry.options("cost"), ALGOS))[::3]:
        chosen = {**names, "task": task, "cost": cost, "judge": cost, "algo": algo}
        config = {group: registry.option("cost" if group == "judge" else group, name) for group, name in chosen.items()}
        for _ in range(4):
            try:
                compatibility.check(config)
            except Incompatible as refused:
                config = after(config, str(refused))
            else:
                break
        else:
            pytest.fail(f"task={task} cost={cost} algo={algo}: still refused after four changes")
        assert config["task"]["name"] == task


def after(config: dict[str, Any], said: str) -> dict[str, Any]:
    """The configuration when what a refusal advises is done."""
    found = ADVICE.search(said)
    assert found is not None and found.lastgroup is not None, said
    words = found["words"] or f"{found.lastgroup}={found[found.lastgroup]}"
    for path, value in (word.split("=") for word in words.split()):
        group, _, key = path.partition(".")
        node = {**config[group], key: yaml.safe_load(value)} if key else registry.option(group, value)
        config = {**config, **dict.fromkeys(("cost", "judge") if group == "cost" else (group,), node)}
    return config
