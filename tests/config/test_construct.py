"""Yaml nodes to objects: what is refused, and what the sentence says."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pytest
import torch

from graphopt.config.construct import call, construct, convert
from graphopt.errors import ConfigError, UsageError


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


def test_partial_keeps_the_optimiser_open() -> None:
    made = convert({"_target_": "torch.optim.SGD", "_partial_": True, "lr": 0.5}, Any, "algo.optim")
    assert isinstance(made, partial)
    assert made([torch.zeros(1, requires_grad=True)]).param_groups[0]["lr"] == 0.5
    with pytest.raises(UsageError, match=r"algo.optim.lrr does not exist"):
        convert({"_target_": "torch.optim.SGD", "_partial_": True, "lrr": 0.5}, Any, "algo.optim")
