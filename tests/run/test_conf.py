"""Yaml: every file's keys are its constructor's, it composes, and what no object can be made of is refused."""

import inspect
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pytorch_lightning.loggers import TensorBoardLogger

from graphopt.core.cli import composed, explained, readable_help
from graphopt.core.errors import ConfigError, UsageError, UserError
from graphopt.core.graph import GraphError
from graphopt.core.utils.registry import option, options, purpose
from graphopt.learn.encoders.encoder import LEAST, Allowance, TooLarge
from graphopt.problems.optimizer import solve
from graphopt.run.cell import settings_of
from graphopt.run.config.build import build
from graphopt.run.config.construct import INJECTED, arguments_of, call, construct, target_of

# --- Every yaml file of every group: its keys are its constructor's arguments, and it composes.

GROUPS = ("dataset", "task", "machine", "cost", "encoder", "algo", "trainer", "logger")
FILES = [(group, name) for group in GROUPS for name in options(group)]


@pytest.mark.parametrize(("group", "name"), FILES, ids=lambda value: str(value))
def test_keys_are_the_constructors_arguments(group: str, name: str) -> None:
    node = option(group, name)
    arguments = arguments_of(target_of(node, group))
    given = set(node) - {"_target_"}
    assert node["name"] == name
    assert set(arguments) - INJECTED <= given, "missing in the yaml file"
    assert given <= set(arguments), "no argument of the constructor"
    assert not given & INJECTED, "provided by the run"
    defaults = [key for key, p in arguments.items() if p.default is not inspect.Parameter.empty]
    assert not defaults, "defaults live in yaml files only"


# --- Yaml nodes to objects: what is refused, and what the sentence says.


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int
    rate: float = 0.5


class Part:
    def __init__(self, *, name: str, seed: int, depth: int, rate: float, mode: Literal["a", "b"], cap: float | None,
                 inner: tuple[Inner, ...], task: Any) -> None:  # fmt: skip
        self.got = (seed, depth, rate, mode, cap, inner, task)


GOOD = {"name": "p", "depth": 2, "rate": 1, "mode": "a", "cap": None, "inner": [{"size": 3}]}


def make(**changes: Any) -> Part:
    part: Part = call(Part, GOOD | changes, "part", {"seed": 7, "task": "T", "machine": "unused"})
    return part


def test_values_and_injection() -> None:
    seed, depth, rate, mode, cap, inner, task = make().got
    assert (seed, depth, mode, cap, task) == (7, 2, "a", None, "T")
    assert isinstance(rate, float) and inner == (Inner(size=3, rate=0.5),)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"typo": 1}, ["part.typo does not exist", "depth, rate, mode, cap, inner"]),
        ({"depth": "deep"}, ["part.depth=deep", "whole number"]),
        ({"depth": True}, ["part.depth=True", "whole number"]),
        ({"depth": 1.5}, ["part.depth=1.5"]),
        ({"rate": "x"}, ["part.rate=x", "a number"]),
        ({"mode": "c"}, ["part.mode=c", "a, b"]),
        ({"cap": "x"}, ["part.cap=x", "float or null"]),
        ({"inner": [{"size": "x"}]}, ["part.inner[0].size=x"]),
        ({"inner": [{"sise": 1}]}, ["part.inner[0].sise does not exist", "size, rate"]),
        ({"inner": "x"}, ["part.inner=x must be a list"]),
        ({"task": "other"}, ["part.task", "provided by the run"]),
    ],
)
def test_refused(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        make(**changes)
    assert caught.value.exit_code == 2
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_file_wins_over_an_injected_number() -> None:
    assert make(seed=3).got[0] == 3


def test_missing_and_unknown_targets() -> None:
    with pytest.raises(ConfigError, match="part lacks depth"):
        call(Part, {k: v for k, v in GOOD.items() if k != "depth"}, "part", {"seed": 0, "task": 0})
    with pytest.raises(ConfigError, match=r"no module 'graphopt\.nowhere'"):
        construct({"_target_": "graphopt.nowhere.X", "name": "x"}, "algo")
    with pytest.raises(ConfigError, match="has no 'Nothing'"):
        construct({"_target_": "graphopt.core.machine.Nothing", "name": "x"}, "algo")


def test_further_arguments_are_not_asked_for(tmp_path: Path) -> None:
    """Any logger of Lightning: some take `**kwargs`."""
    given = {"_target_": "pytorch_lightning.loggers.CSVLogger", "save_dir": str(tmp_path)}
    assert construct(given, "trainer.logger[0]").save_dir == str(tmp_path)
    assert "kwargs" not in arguments_of(TensorBoardLogger)
    assert {"save_dir", "name"} <= {*arguments_of(TensorBoardLogger)}


def test_an_inner_option_is_of_the_class_that_is_wanted() -> None:
    node = option("dataset", "regal_mixed")
    node["real"] = option("machine", "gpu2")
    with pytest.raises(UsageError, match=r"dataset\.real is a Machine, and has to be a Dataset"):
        construct(node, "dataset", {"seed": 0})


# --- Settings that nothing can be made of, or that ask for more than any machine has, end in a sentence.

SMALL = ("dataset=synthetic", "dataset.families=[layered]",
         "dataset.ops=[12]", "dataset.train=1", "dataset.val=1", "dataset.test=1", "logger=none")  # fmt: skip
FUSION = ("task=fusion", "algo=local", "machine=gpu2")
JOINT = ("task=placement_scheduling", "algo=brkga", "machine=cpu_gpu")


def nest(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


def run(words: tuple[str, ...], path: str, value: Any) -> float:
    """Builds a small run with one setting changed, and solves a graph; what the answer costs."""
    config = composed([*SMALL, *words])
    *parents, key = path.split(".")
    node: Any = config
    for name in parents:
        node = node[name]
    node[key] = value
    settings_of(config)
    parts = build(config)
    return solve(parts.algo, parts.dataset.graphs("test")[0], parts.task, parts.cost, evals=6)[0].best_cost


GO = ("task=placement", "algo=go", "machine=gpu2")
MESSAGES = (*GO, "encoder=message_passing")
LAF = ("task=fusion", "algo=laf", "machine=gpu2")
REGAL = ("task=placement", "algo=regal", "machine=gpu2")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "words, path, value, said",
    [
        (FUSION, "machine.transfer", [{"lane": "link"}], "must be fields by name"),
        (FUSION, "machine.devices.gpu.bandwidth", nest(1000), "bandwidth=a list must be a number"),
        (JOINT, "algo.evolution.population", 10**9, "from 3 to"),
        (GO, "encoder.width", 10**6, r"encoder\.width=1000000 must be from 1 to 4,096"),
        (GO, "encoder.width", 4096, "more than 100,000,000 numbers"),  # of all layers together
        (GO, "algo.network.superposition", True, "modulates attention layers, of which there are none"),
        (GO, "algo.network.prior", 0.5, "must be fields by name"),
        (GO, "algo.network.prior.device", "x", r"algo\.network\.prior\.device=x must be a number"),
        ((*GO, "encoder=pyg"), "encoder.options", {"heads": 10**6, "concat": False}, "more than 100,000,000 numbers"),
        (LAF, "algo.learning.priority", 2, r"algo\.learning\.priority=2\.0 must be from 0 to 1"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(words: tuple[str, ...], path: str, value: Any, said: str) -> None:
    """Ranges of all numbers: test_numbers."""
    with pytest.raises((UserError, GraphError), match=said):
        run(words, path, value)


def test_many_small_tensors_are_too_many() -> None:
    """They take long, however little they hold. Copies and results are no part of what is asked for."""
    with Allowance(10 * LEAST):
        found = [torch.zeros(1) for _ in range(10)]
        assert float((torch.cat(found) + 1).sum()) == 10
        with pytest.raises(TooLarge, match="more than 10,000 numbers"):
            torch.zeros(())


def test_every_learner_fits_its_limits() -> None:
    """No option that comes with the package is near them."""
    for words in (GO, (*GO, "encoder=pyg"), (*GO, "encoder=gat"), MESSAGES, LAF, REGAL, (*REGAL[:1], "algo=gas")):
        learner: Any = build(composed([*SMALL, *words])).algo
        assert 10_000 < sum(weight.numel() for weight in learner.parameters()) < 2_000_000


@pytest.mark.timeout(60)
def test_a_neighbourhood_ends_with_the_graph() -> None:
    """A radius beyond the graph takes no longer than one that spans it."""
    assert run(FUSION, "algo.hops", 10**9) == run(FUSION, "algo.hops", 1000)


@pytest.mark.parametrize("limit", [1000, 10_000])  # some libraries raise Python's
def test_a_deep_nest_in_place_of_a_word_is_a_sentence(limit: int, request: pytest.FixtureRequest) -> None:
    request.addfinalizer(partial(sys.setrecursionlimit, sys.getrecursionlimit()))
    sys.setrecursionlimit(limit)
    with pytest.raises(UserError, match="split=a list is not one of train, val, test"):
        run(FUSION, "split", nest(1000))


@pytest.mark.parametrize(
    "words, group, key", [(FUSION, "task", "decision"), (JOINT, "task", "fuse"), (FUSION, "dataset", "ops")]
)
def test_a_setting_that_is_missing_is_named(words: tuple[str, ...], group: str, key: str) -> None:
    config = composed([*SMALL, *words])
    del config[group][key]
    with pytest.raises(UserError, match=f"{group} lacks {key}"):
        build(config)


def test_a_rival_without_a_name_is_a_sentence() -> None:
    with pytest.raises(UserError, match="algo=-1 does not exist"):
        build({**composed([*SMALL, *FUSION]), "compare": [-1]})


@pytest.mark.parametrize("word", ["logger=null", "~logger=[a,b]", "dataset=[1,2]"])
def test_a_group_without_the_name_of_an_option_is_a_sentence(word: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        composed([*SMALL, *FUSION, word])
    sentence, code = explained(caught.value)
    assert code == 2 and "choose GROUP=NAME" in sentence


@pytest.mark.parametrize(("group", "name"), [*FILES, *(("experiment", name) for name in options("experiment"))])
def test_every_option_says_what_it_is_for(group: str, name: str) -> None:
    assert len(purpose(group, name).split()) > 1


def test_the_help_has_a_line_for_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with readable_help(["--help"]):
        print("cost: flops, simulator\nalgo: go\nKeys (key=value)")
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["cost:", f"  flops      {purpose('cost', 'flops')}"]
    assert lines[3] == "algo:" and lines[4].startswith("  go  GO: ") and lines[-1] == "Keys (key=value)"
