"""The policy that measures in the order of predicted times, on costs whose best decision is known."""

import math

import numpy as np
import pytest
from cells import fusion
from test_compiler_search import EVERY, ONE, Table, rows_and_scale

from graphopt.core.plan import Decisions
from graphopt.hardware.code_time import SHIPPED
from graphopt.hardware.requests import request_of
from graphopt.hardware.search.compiler_policy import CompilerPolicy, Predicted, candidates
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.search.fusion.compiler_search import Climb, CompilerSearch

PRESET = "xeon_sapphire_rapids_torch213"
BRINGS = {("mul2", 0): -20.0, ("decompose_tanh", 1): -10.0, ("rsqrt1", 0): -5.0, ("tanh0", 0): 9.0}


def solved(brings: dict[tuple[str, int], float], *, evals: int, each: int = 6, fails: str = "", pool: int = 40,
           untold: int = 0, simulated: dict[tuple[str, int], float] | None = None,
           truth: dict[tuple[str, int], float] = BRINGS) -> AssignProblem:  # fmt: skip
    """brings: as predicted; simulated: as simulated, the same if None; truth: as measured. What stores `fails` cannot
    be lowered."""
    cost, graph = Table(truth), rows_and_scale()
    told, sketched = Table(brings), Table(brings if simulated is None else simulated)
    task = fusion(ONE, numerics="close")
    algo = CompilerPolicy(name="p", considered=300, pool=pool, each=each, untold=untold, margin=0.001, preset=PRESET,
                          weights=SHIPPED, table=None, builders=1)  # fmt: skip

    def predict(problem: AssignProblem, decisions: Decisions) -> list[Predicted]:
        plans = task.realise(graph, decisions)
        asked = [request_of(plans, b) for b in range(len(plans))]
        return [(math.inf if fails in one.requests else seconds, repr(one))
                for one, seconds in zip(asked, told.price(plans).cost.tolist(), strict=True)]  # fmt: skip

    algo.predict = predict
    algo.simulate = lambda problem, decisions: sketched.price(task.realise(graph, decisions)).cost
    return solve(algo, graph, task, cost, evals=evals)[0]


@pytest.mark.parametrize("evals", [1, 5])
def test_it_stays_within_its_budget(evals: int) -> None:
    assert solved(BRINGS, evals=evals).evals == evals


def test_with_true_predictions_it_is_at_the_best_in_fewer_evaluations_than_the_search() -> None:
    problem, best = solved(BRINGS, evals=60), 100.0 - 35.0
    assert problem.best_cost == best
    task = problem.task
    search = CompilerSearch(name="s", stages=EVERY, only=[], batch=3, margin=0.001, order="bytes")
    peer = solve(search, problem.graph, task, Table(BRINGS), evals=60)[0]
    assert peer.best_cost == best
    reached, peers = (next(step.evals for step in of.trace if step.cost == best) for of in (problem, peer))
    assert reached <= 2 < peers


def test_misleading_predictions_cost_evaluations_and_no_more() -> None:
    wrong = {what: -brought for what, brought in BRINGS.items()}
    assert solved(wrong, evals=400).best_cost == 65.0


def test_a_knob_that_the_simulator_does_not_know_counts_as_predicted() -> None:
    known = {what: brought for what, brought in BRINGS.items() if what[0] != "decompose_tanh"}
    problem = solved(BRINGS, evals=6, pool=4, simulated=known)
    assert problem.best_cost == 65.0


def test_a_setting_that_predictions_speak_against_is_tried_among_those_that_come_as_they_are() -> None:
    against, truth = (BRINGS | {("contract", 1): brings} for brings in (30.0, -30.0))
    told, blind = (solved(against, evals=8, each=4, untold=untold, truth=truth) for untold in (0, 1))
    assert blind.best_cost <= 40.0 < 65.0 <= told.best_cost


def test_knobs_of_compiling_come_first_and_by_turns() -> None:
    problem = solved(BRINGS, evals=1)
    names = [head.name for head in problem.task.heads]
    for come, name in enumerate(("simdlen", "contract", "reads_threshold")):
        made = candidates(problem, Climb(problem, 4, 0.001), lambda decisions: np.ones(len(decisions)), come)
        assert names[int(np.flatnonzero((made[0] != problem.initial).any(0))[0])] == name


def test_what_cannot_be_lowered_is_not_measured_and_nothing_is_measured_twice() -> None:
    problem = solved(BRINGS, evals=300, fails="mul2")
    assert problem.best_cost == 85.0
    assert problem.evals == problem.distinct
