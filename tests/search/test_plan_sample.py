"""Which plans are sampled to fit and judge cost models: some near the default, others up to random."""

import numpy as np

from graphopt.core.compiler import KNOBS
from graphopt.core.machine import Machine
from graphopt.core.plan import Plans
from graphopt.hardware.requests import CompilerRequest, request_of
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import solve
from graphopt.problems.tasks.fusion import Fusion
from graphopt.search.fusion.compiler_search import MASKS, NEAR, CompilerSearch, Stage
from tests.search.test_compiler_search import CORE, Table, rows_and_scale


class Recorded(CostModel):
    """Prices nothing, keeps what was asked."""

    name, objective = "recorded", "runtime"
    reads = Table.reads

    def __init__(self) -> None:
        self.asked: list[CompilerRequest] = []

    def price(self, plans: Plans) -> Prices:
        self.asked += [request_of(plans, b) for b in range(len(plans))]
        return Prices(np.ones(len(plans)), np.zeros(len(plans)))


def sampled(evals: int, *stages: Stage) -> list[CompilerRequest]:
    task = Fusion(name="fusion", machine=Machine(name="one", devices=(CORE,)), decision="binary", numerics="close",
                  levels=2, max_ops=64, max_inputs=16, max_duplicates=8)  # fmt: skip
    cost = Recorded()
    algo = CompilerSearch(name="s", stages=list(stages), only=[], batch=5, margin=0.0, order="bytes")
    solve(algo, rows_and_scale(), task, cost, evals=evals)
    return cost.asked[1:]  # the default is not of the sample


def test_masks_reach_from_the_default_to_random_ones() -> None:
    asked = sampled(64, "masks")
    changes = np.array([len(one.requests) for one in asked])
    assert len(asked) == MASKS and not any(one.knobs for one in asked)
    assert changes[:10].mean() < changes[-10:].mean() / 2


def test_near_the_default_are_knobs_rules_and_small_flips_each_once() -> None:
    asked = sampled(64, "near")
    assert len(asked) == len({repr(one) for one in asked}) == NEAR
    count = sum(len(knob.values) - 1 for knob in KNOBS)
    knobs, others = asked[:count], asked[count:]
    assert all(len(one.knobs) == 1 and not one.requests for one in knobs)
    assert not any(one.knobs for one in others)
    wide = {"rsqrt0": "store", "rsqrt1": "store", "rsqrt2": "store"}
    assert any(one.requests == wide for one in others)
    assert all(0 < len(one.requests) <= 3 for one in others[7:])
    assert any("cut" in one.requests.values() for one in others)


def test_the_budget_ends_it() -> None:
    assert len(sampled(7, "masks", "near")) == 7
