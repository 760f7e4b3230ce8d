"""Choices that graphopt knows nothing of: plans carry them, searches keep to what each op has, files hold them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiled_work
import yaml
from toy import toy_graph

from graphopt import OWN_OPTIONS
from graphopt.config.construct import construct
from graphopt.core.compact import compact, expand
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.readers.formats.graph_files import save_graph
from graphopt.records.answer_format import DecisionError
from graphopt.records.decision_file import load, save, write
from graphopt.reporting.edit import veto
from graphopt.reporting.replay import check, open_case
from graphopt.utils import registry

OPS = 6
GRAPH = toy_graph(OPS, 2)
MACHINE = Machine(name="one", devices=(Device(),))
TASK = tiled_work.Tiled(name="tiled", machine=MACHINE)
COST = tiled_work.TiledTime(name="tiled_time", machine=MACHINE, objective="runtime")
NODES: dict[str, Any] = {
    "machine": registry.option("machine", "gpu2"),
    "task": {"_target_": "tiled_work.Tiled", "name": "tiled"},
    "cost": {"_target_": "tiled_work.TiledTime", "name": "tiled_time", "objective": "runtime"},
}


def keys(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((3, TASK.key_count(GRAPH)))


def test_plans_of_a_batch_carry_their_choices() -> None:
    plans = TASK.realise_keys(GRAPH, keys())
    one, copied = plans[1], plans.copy()
    assert np.array_equal(one.choices["tile"][0], plans.choices["tile"][1])
    assert one.choices["unroll"].shape == (1,)
    plans.choices["tile"][:] = 0
    assert copied.choices["tile"].any()
    assert {"choice_tile", "choice_unroll", "device"} <= plans.arrays().keys()
    with pytest.raises(ValueError, match=r"choices of shape \[B, \.\.\.\], B = 3"):
        Plans(GRAPH, plans.device, plans.priority, plans.inline, choices={"tile": plans.choices["tile"][:2]})


def test_a_compact_plan_costs_the_same_and_is_no_other() -> None:
    plans = TASK.realise_keys(GRAPH, keys())
    for b in range(3):
        small = compact(plans[b], 1)
        again = expand(GRAPH, small)
        assert COST.price(again).cost[0] == COST.price(plans[b]).cost[0]
        assert all(np.array_equal(again.choices[name], plans[b].choices[name]) for name in plans.choices)


@pytest.mark.parametrize("algo", ["random", "local", "scan", "annealing", "brkga"])
def test_searches_ask_for_no_choice_that_an_op_lacks(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    realise = tiled_work.Tiled.realise

    def watched(task: tiled_work.Tiled, graph: Any, decisions: np.ndarray) -> Plans:
        asked.append(decisions)
        return realise(task, graph, decisions)

    monkeypatch.setattr(tiled_work.Tiled, "realise", watched)
    optimizer: Any = construct(registry.option("algo", algo), f"algo {algo}", {})
    problem, _ = solve(optimizer, GRAPH, TASK, COST, evals=1500, seed=1)
    every = np.concatenate(asked)
    assert (every < TASK.counts(GRAPH)).all() and (every[:, 1:, 2] == 0).all()
    assert problem.best_cost == 0.5  # the last tile everywhere, unrolled, nobody before op 0


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stored plan of random keys."""
    for group, node in NODES.items():
        if group != "machine":
            (tmp_path / "options" / group).mkdir(parents=True)
            (tmp_path / "options" / group / f"{node['name']}.yaml").write_text(yaml.dump(node))
    monkeypatch.setenv(OWN_OPTIONS, str(tmp_path / "options"))
    problem = AssignProblem(GRAPH, TASK, COST, evals=3)
    problem.cost_keys(keys())
    problem.best_plan = TASK.realise_keys(GRAPH, keys())[0]
    problem.best_cost = float(COST.price(problem.best_plan).cost[0])
    path = tmp_path / "cell" / "decisions" / "a.npz"
    row = {"initial": problem.initial_cost}
    save(path, problem=problem, judged=problem.best_cost, row=row, config={**NODES, "judge": NODES["cost"], "seed": 0})
    save_graph(tmp_path / "graphs" / f"{GRAPH.hash}.npz", GRAPH)
    return path


def test_a_stored_plan_replays_with_its_choices(file: Path) -> None:
    case = open_case(file)
    assert case.decision.plan and check(case) == []
    wanted = TASK.realise_keys(GRAPH, keys())[0].choices
    assert all(np.array_equal(case.plans().choices[name], wanted[name]) for name in wanted)
    assert case.decision.described == ("tile",)  # a knob of the whole graph is no op's choice
    assert np.array_equal(case.decision.choices[:, 1], wanted["tile"][0])


def test_a_choice_is_edited_and_the_rest_stays(file: Path) -> None:
    case = open_case(file)
    op = int(np.flatnonzero(case.plans().choices["tile"][0])[0])
    edited = veto(case, f"{GRAPH.op_names[op]}=tile:0")
    assert edited.accepted
    write(file, edited.decision)
    before, after = case.plans(), open_case(file).plans()
    assert after.choices["tile"][0, op] == 0 and np.array_equal(after.choices["unroll"], before.choices["unroll"])
    assert compact(after, 1)["priority"].tolist() == compact(before, 1)["priority"].tolist()
    assert check(open_case(file)) == []


def _set(plan: dict[str, Any], name: str, array: np.ndarray) -> None:
    plan[name] = array


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda plan: _set(plan, "choice_tile", np.full(OPS, 3)), "choice_tile of its plan is no array of choices"),
        (lambda plan: _set(plan, "choice_tile", np.zeros(OPS)), "choice_tile of its plan is no array of choices"),
        (lambda plan: _set(plan, "choice_what", np.zeros(OPS, int)), "choice_what of its plan is no array of choices"),
        (lambda plan: plan.pop("choice_tile"), r"further choices of its plan are not the task's \(tile, unroll\)"),
        (lambda plan: _set(plan, "choice_tile", np.zeros(2, int)), "further choices of its plan are not the task's"),
    ],
)
def test_choices_of_a_file_are_checked(file: Path, damage: Callable[[dict[str, Any]], Any], message: str) -> None:
    decision = load(file)
    damage(decision.plan)
    write(file, decision)
    with pytest.raises(DecisionError, match=message):
        open_case(file)
