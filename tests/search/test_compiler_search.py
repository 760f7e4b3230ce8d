"""The searches around a compiler's default, on costs whose best decision is known."""

import math

import numpy as np
import pytest
from cells import fusion

from graphopt.core.compiler import KNOBS, knobs
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Decisions, Plans
from graphopt.hardware.requests import CompilerRequest, request_of
from graphopt.hardware.search.compiler_policy import CompilerPolicy, Predicted, candidates
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.problems.optimizer import solve
from graphopt.search.fusion.compiler_search import (
    MASKS,
    NEAR,
    Changes,
    Climb,
    CompilerSearch,
    Stage,
    changed,
    knob_columns,
    rules,
)

CORE = Device(name="cpu", launch=1e-6, vector_flops=1e11, contraction_flops=3e11, bandwidth=2e10)
ONE = Machine(name="one", devices=(CORE,))
EVERY: list[Stage] = ["knobs", "combine", "rules", "retune", "classes", "cuts", "flips"]


def rows_and_scale(blocks: int = 3) -> Graph:
    """Per block a number per row, read by every element of it, and a large value that two ops read."""
    net = GraphBuilder("rows")
    x = net.tensor((64, 128))
    for i in range(blocks):
        row, scale, shared, a, b, out = (net.tensor(s) for s in [(64, 1)] * 2 + [(64, 128)] * 4)
        net.op("sum", [x], [row], name=f"sum{i}", attributes={})
        net.op("rsqrt", [row], [scale], name=f"rsqrt{i}", attributes={"stored": False})
        net.op("mul", [x, scale], [shared], name=f"mul{i}", attributes={"stored": False})
        net.op("tanh", [shared], [a], name=f"tanh{i}", attributes={"stored": False})
        net.op("relu", [shared], [b], name=f"relu{i}", attributes={"stored": False})
        net.op("add", [a, b], [out], name=f"add{i}", attributes={"stored": True} if i < blocks - 1 else {})
        x = out
    net.output(x)
    return net.build()


class Table(CostModel):
    """100, and what each wish that is fulfilled brings: (op, inline?) or (knob, choice). together: what all of them
    bring beside that."""

    name, objective = "table", "runtime"
    reads = CostModel.reads | {"cut", *(knob.name for knob in KNOBS)}

    def __init__(self, brings: dict[tuple[str, int], float], together: float = 0.0) -> None:
        self.brings, self.together = brings, together

    def price(self, plans: Plans) -> Prices:
        return Prices(np.array([self._one(plans, b) for b in range(len(plans))]), np.zeros(len(plans)))

    def _one(self, plans: Plans, b: int) -> float:
        names, cost, kept = plans.graph.op_names, 100.0, 0
        for (what, choice), brought in self.brings.items():
            is_now = plans.inline[b, names.index(what)] if what in names else plans.choices[what][b, 0]
            cost += brought * (int(is_now) == choice)
            kept += int(is_now) == choice
        return cost + self.together * (kept == len(self.brings))


def solved(brings: dict[tuple[str, int], float], *, evals: int, stages: list[Stage] = EVERY,
           only: list[str] | None = None, together: float = 0.0) -> AssignProblem:  # fmt: skip
    task = fusion(ONE, numerics="close")
    algo = CompilerSearch(name="s", stages=stages, only=only or [], batch=4, margin=0.001, order="bytes")
    return solve(algo, rows_and_scale(), task, Table(brings, together), evals=evals)[0]


def test_the_wide_rule_stores_what_each_row_would_compute_again() -> None:
    graph = rows_and_scale()
    free = np.array(["stored" in of for of in graph.attributes])
    named = {rule.name: [graph.op_names[op] for op in rule.ops] for rule in rules(graph, free)}
    assert named["wide_8"] == ["rsqrt0", "rsqrt1", "rsqrt2"]
    assert set(named["readers_2"]) >= {"mul0", "mul1", "mul2"} and "rsqrt0" not in named["readers_2"]


def test_a_rule_is_found_in_a_few_evaluations() -> None:
    brings = {(f"rsqrt{i}", 0): -5.0 for i in range(3)}
    assert solved(brings, evals=10, stages=["rules"]).best_cost == 85.0
    assert solved(brings, evals=1, stages=["rules"], only=["wide_8"]).best_cost == 85.0


def test_knobs_that_help_alone_are_combined() -> None:
    first, second = KNOBS[0].name, KNOBS[1].name
    problem = solved({(first, 1): -3.0, (second, 1): -4.0}, evals=40, stages=["knobs", "combine"])
    assert problem.best_cost == 93.0
    assert solved({(first, 1): -3.0, (second, 1): -4.0}, evals=40, stages=["knobs"]).best_cost == 96.0


def test_rules_join_the_knobs_that_were_found() -> None:
    brings = {(KNOBS[0].name, 1): -3.0, ("rsqrt0", 0): -2.0, ("rsqrt1", 0): -2.0, ("rsqrt2", 0): -2.0}
    assert solved(brings, evals=60).best_cost == 91.0


def test_a_knob_that_does_harm_alone_is_tried_again_with_a_rule() -> None:
    brings = {(KNOBS[1].name, 1): 4.0, **{(f"rsqrt{i}", 0): -1.0 for i in range(3)}}
    assert solved(brings, evals=60, stages=["knobs", "rules"], together=-9.0).best_cost == 97.0
    assert solved(brings, evals=60, stages=["knobs", "rules", "retune"], together=-9.0).best_cost == 92.0


@pytest.mark.parametrize("op", ["mul1", "mul2"])
def test_single_ops_that_several_read_are_flipped(op: str) -> None:
    """Storing one of three alike ops helps, all three do not: only a flip finds it."""
    brings = {(op, 0): -3.0, **{(f"mul{i}", 0): 2.0 for i in range(3) if f"mul{i}" != op}}
    assert solved(brings, evals=80).best_cost == 97.0


def test_parts_of_the_best_decision_that_bring_nothing_are_taken_back() -> None:
    graph, task = rows_and_scale(), fusion(ONE, numerics="close")
    brings = {("rsqrt0", 0): -5.0, ("mul0", 0): 2.0, (KNOBS[0].name, 1): 1.0}
    problem = task.open(graph, Table(brings), evals=24)
    climb = Climb(problem, 4, 0.001)
    asked: Changes = [(graph.op_names.index(op), climb.head, 0) for op in ("rsqrt0", "rsqrt1", "mul0")]
    decision = changed(problem.initial, [*asked, (0, knob_columns(problem)[0], 1)])
    assert decision is not None
    climb.measure(decision[None])
    assert climb.score == 98.0
    climb.take_back()  # the knob, the two scales, the product; then the knob and the product together
    assert climb.score == 95.0 and problem.evals == 5


# --- Which plans are sampled to fit and judge cost models: some near the default, others up to random.


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
    cost = Recorded()
    algo = CompilerSearch(name="s", stages=list(stages), only=[], batch=5, margin=0.0, order="bytes")
    solve(algo, rows_and_scale(), fusion(ONE, numerics="close"), cost, evals=evals)
    return cost.asked[1:]  # the default is not of the sample


def test_masks_reach_from_the_default_to_random_ones() -> None:
    asked = sampled(64, "masks")
    changes = np.array([len(one.requests) for one in asked])
    assert len(asked) == MASKS and not any(one.knobs for one in asked)
    assert changes[:10].mean() < changes[-10:].mean() / 2


def test_near_the_default_are_knobs_rules_and_small_flips_each_once() -> None:
    asked = sampled(64, "near")
    assert len(asked) == len({repr(one) for one in asked}) == NEAR
    count = sum(len(knob.values) - 1 for knob in knobs("close"))
    turned, others = asked[:count], asked[count:]
    assert all(len(one.knobs) == 1 and not one.requests for one in turned)
    assert not any(one.knobs for one in others)
    wide = {"rsqrt0": "store", "rsqrt1": "store", "rsqrt2": "store"}
    assert any(one.requests == wide for one in others)
    assert all(0 < len(one.requests) <= 3 for one in others[7:])
    assert any("cut" in one.requests.values() for one in others)


def test_the_budget_ends_it() -> None:
    assert len(sampled(7, "masks", "near")) == 7


# --- The policy that measures in the order of predicted times.


PRESET = "epyc_zen5_avx512_torch213"
BRINGS = {("mul2", 0): -20.0, ("decompose_tanh", 1): -10.0, ("rsqrt1", 0): -5.0, ("tanh0", 0): 9.0}


def by_policy(brings: dict[tuple[str, int], float], *, evals: int, each: int = 6, fails: str = "", pool: int = 40,
           untold: int = 0, simulated: dict[tuple[str, int], float] | None = None,
           truth: dict[tuple[str, int], float] = BRINGS) -> AssignProblem:  # fmt: skip
    """brings: as predicted; simulated: as simulated, the same if None; truth: as measured. What stores `fails` cannot
    be lowered."""
    cost, graph = Table(truth), rows_and_scale()
    told, sketched = Table(brings), Table(brings if simulated is None else simulated)
    task = fusion(ONE, numerics="close")
    algo = CompilerPolicy(name="p", considered=300, pool=pool, each=each, untold=untold, sure=0.04, margin=0.001,
                          preset=PRESET, code=True, table=None, builders=1)  # fmt: skip

    def predict(problem: AssignProblem, decisions: Decisions) -> list[Predicted]:
        plans = task.realise(graph, decisions)
        asked = [request_of(plans, b) for b in range(len(plans))]
        return [(math.inf if fails in one.requests else seconds, repr(one), {})
                for one, seconds in zip(asked, told.price(plans).cost.tolist(), strict=True)]  # fmt: skip

    algo.predict = predict
    algo.simulate = lambda problem, decisions: sketched.price(task.realise(graph, decisions)).cost
    return solve(algo, graph, task, cost, evals=evals)[0]


@pytest.mark.parametrize("evals", [1, 5])
def test_it_stays_within_its_budget(evals: int) -> None:
    assert by_policy(BRINGS, evals=evals).evals == evals


def test_with_true_predictions_it_is_at_the_best_in_fewer_evaluations_than_the_search() -> None:
    problem, best = by_policy(BRINGS, evals=60), 100.0 - 35.0
    assert problem.best_cost == best
    task = problem.task
    search = CompilerSearch(name="s", stages=EVERY, only=[], batch=3, margin=0.001, order="bytes")
    peer = solve(search, problem.graph, task, Table(BRINGS), evals=60)[0]
    assert peer.best_cost == best
    reached, peers = (next(step.evals for step in of.trace if step.cost == best) for of in (problem, peer))
    assert reached <= 2 < peers


def test_without_evaluations_the_predicted_best_is_the_answer() -> None:
    wrong = {what: -brought for what, brought in BRINGS.items()}
    assert by_policy(BRINGS, evals=0, pool=60).best_cost == 65.0
    assert by_policy(wrong, evals=0, pool=60).best_cost > 100.0  # nothing says that predictions are wrong
    small = {what: 0.1 * brought for what, brought in BRINGS.items()}
    assert by_policy(small, evals=0, pool=60).best_cost == 100.0  # 3.5 % are predicted: not enough


def test_what_is_predicted_to_be_slower_is_no_answer_however_it_is_simulated() -> None:
    slower, faster = {("mul2", 0): 20.0}, {("mul2", 0): -80.0}
    assert by_policy(slower, simulated=faster, evals=0, pool=60).best_cost == 100.0
    assert by_policy({("mul2", 0): -1.0}, simulated=faster, evals=0, pool=60).best_cost < 100.0


@pytest.mark.parametrize("each", [1, 6])
def test_what_it_would_answer_unmeasured_is_measured_first(each: int) -> None:
    unmeasured, measured = (by_policy(BRINGS, evals=evals, pool=60, each=each) for evals in (0, 1))
    assert measured.evals == 1 and measured.best_cost == unmeasured.best_cost == 65.0


def test_misleading_predictions_cost_evaluations_and_no_more() -> None:
    wrong = {what: -brought for what, brought in BRINGS.items()}
    assert by_policy(wrong, evals=400).best_cost == 65.0


def test_a_knob_that_the_simulator_does_not_know_counts_as_predicted() -> None:
    known = {what: brought for what, brought in BRINGS.items() if what[0] != "decompose_tanh"}
    problem = by_policy(BRINGS, evals=6, pool=4, simulated=known)
    assert problem.best_cost == 65.0


def test_a_setting_that_predictions_speak_against_is_tried_among_those_that_come_as_they_are() -> None:
    against, truth = (BRINGS | {("contract", 1): brings} for brings in (30.0, -30.0))
    told, blind = (by_policy(against, evals=8, each=4, untold=untold, truth=truth) for untold in (0, 1))
    assert blind.best_cost <= 40.0 < 65.0 <= told.best_cost


def test_what_predictions_do_not_know_is_tried_once_what_they_praise_was_measured() -> None:
    """Nothing is known of `contract`, which brings most; what is predicted to help does not."""
    told, truth = {("mul2", 0): -20.0, ("rsqrt1", 0): -10.0}, {("contract", 1): -30.0}
    assert by_policy(told, evals=24, each=4, truth=truth).best_cost == 70.0


def test_knobs_of_compiling_come_first_and_by_turns() -> None:
    problem = by_policy(BRINGS, evals=1)
    names = [head.name for head in problem.task.heads]
    for come, name in enumerate(("simdlen", "contract", "reads_threshold")):
        made = candidates(problem, Climb(problem, 4, 0.001), lambda decisions: np.ones(len(decisions)), come)
        assert names[int(np.flatnonzero((made[0] != problem.initial).any(0))[0])] == name


def test_what_cannot_be_lowered_is_not_measured_and_nothing_is_measured_twice() -> None:
    problem = by_policy(BRINGS, evals=300, fails="mul2")
    assert problem.best_cost == 85.0
    assert problem.evals == problem.distinct
