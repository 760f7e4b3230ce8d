"""Decision files of random keys, of shared devices, of further choices: small, replayed exactly, open to editing."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiled_work
import yaml
from toy import toy_graph

from graphopt import OWN_OPTIONS
from graphopt import load as load_answer
from graphopt.core.errors import DecisionError
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.operators import Category
from graphopt.core.plan import Plans, Role, compact
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import solve
from graphopt.report.decision import main
from graphopt.run.config.construct import construct
from graphopt.run.records.answer_file import load, save, write

# --- Whatever decided, choices say where every op runs; plans of random keys keep their own orders beside.

TASKS = {
    "placement": {}, "placement fused": {"fuse": True}, "placement_scheduling": {}, "joint": {}, "scheduling": {},
    "fusion": {}, "fusion priority": {"decision": "priority"},
}  # fmt: skip


@cache
def graph() -> Graph:
    return layered_graph(40, np.random.default_rng(4), "g")


@cache
def colocated(seed: int, groups: int) -> Graph:
    """A layered graph whose ops share devices in random groups; the first of a group that is no view leads it."""
    rng = np.random.default_rng(seed)
    graph = layered_graph(60, rng, f"g{seed}")
    group = rng.integers(0, groups, graph.num_ops)
    together = np.arange(graph.num_ops, dtype=np.int32)
    for members in (np.flatnonzero(group == g) for g in range(groups)):
        leaders = [m for m in members if graph.category[m] != Category.VIEW]
        if leaders:
            together[members] = leaders[0]
    return dataclasses.replace(graph, together=together)


@cache
def solved(graph: Graph, task_name: str, objective: str, keys: bool, on: str = "gpu4_pcie") -> tuple[Any, Any]:
    """A problem whose answer is a random one, even where the default is better; and its configuration."""
    config = {"machine": registry.option("machine", on), "seed": 0,
              "task": registry.option("task", task_name.partition(" ")[0]) | TASKS[task_name],
              "cost": registry.option("cost", "simulator") | {"objective": objective, "threads": 1}}  # fmt: skip
    machine = construct(config["machine"], "machine")
    task: AssignTask = construct(config["task"], "task", {"machine": machine})
    cost = construct(config["cost"], "cost", {"machine": machine, "task": task})
    problem, rng = AssignProblem(graph, task, cost, evals=1), np.random.default_rng(1)
    if keys:
        problem.best_plan = task.realise_keys(graph, rng.random((1, task.key_count(graph)), np.float32))
    else:
        counts = [head.count for head in task.heads]
        problem.best = rng.integers(0, counts, (graph.num_ops, len(counts))).astype(np.int16)
    problem.best_cost = float(cost.price(problem.solution().plans).cost[0])
    return problem, {**config, "judge": config["cost"]}


def kept(path: Path, problem: AssignProblem, config: dict[str, Any]) -> Path:
    """The file of its answer; the graph lies near."""
    save(path, problem=problem, judged=problem.best_cost, row={"initial": problem.initial_cost}, config=config)
    save_graph(path.parents[2] / "graphs" / f"{problem.graph.hash}.npz", problem.graph)
    return path


def problem() -> AssignProblem:
    made: AssignProblem = solved(graph(), "placement_scheduling", "peak_memory", True, "gpu2")[0]
    return made


def stored(folder: Path) -> Path:
    path = folder / "cell" / "decisions" / "a.npz"
    return kept(path, *solved(graph(), "placement_scheduling", "peak_memory", True, "gpu2"))


@pytest.mark.parametrize("objective", ["runtime", "max_load", "peak_memory"])
@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("keys", [False, True])
def test_answers_replay_and_choices_are_what_happens(
    tmp_path: Path, task_name: str, objective: str, keys: bool
) -> None:
    """What choices can say needs no plan."""
    for g in (graph(), *(colocated(seed, groups) for seed, groups in enumerate((60, 20, 8, 3)))):
        problem, config = solved(g, task_name, objective, keys)
        task, plan = problem.task, problem.solution().plans
        case = load_answer(kept(tmp_path / "cell" / "decisions" / "a.npz", problem, config))
        assert case.reprice()["judged"] == problem.best_cost
        assert case.check() == []
        file = case.decided
        orders = task.decides(Role.PRIORITY) or task_name == "fusion priority"
        assert bool(file.plan) == (keys and orders)
        said = dict(zip(file.heads, file.choices.T))
        runs = ~plan.inline[0]
        if "device" in said:
            assert np.array_equal(said["device"][runs], plan.device[0][runs])
        if "inline" in said:
            free = task.mask(g)[:, list(file.heads).index("inline")]
            assert np.array_equal(said["inline"][free].astype(bool), plan.inline[0][free])
        again = task.realise(g, file.choices[None])
        alone = objective == "max_load" and "fusion" not in task_name  # orders do not matter: choices are all there is
        if alone or set(file.described) == set(file.heads):
            assert float(problem._cost.price(again).cost[0]) == problem.best_cost


def test_old_files_are_read_and_say_what_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before orders were ranks, a file held the keys themselves and choices like the default's."""
    path, plan = stored(tmp_path), problem().solution().plans
    decision = load(path)
    del decision.header["described"]
    decision.choices[:] = decision.default
    assert plan.transfer is not None
    decision.plan.update(device=plan.device[0], priority=plan.priority[0], transfer=plan.transfer[0])
    write(path, decision)
    assert load_answer(path).check() == [] and main(["show", str(path)]) == 0
    assert "choices describe nothing else" in capsys.readouterr().out
    with pytest.raises(DecisionError, match=r"plan from random keys .* older version"):
        load_answer(path).bisect()
    assert main(["diff", str(path), str(path)]) == 1


def test_show_diff_and_bisect_name_ops_that_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path), tmp_path / "cell" / "decisions" / "b.npz"
    moved = load(a).changed()
    name = load(a).op_names[moved[0]]
    assert main(["show", str(a)]) == 0
    shown = capsys.readouterr().out
    assert f"{len(moved)} of 40 ops differ from the default" in shown and "device 1" in shown
    assert "priority" not in shown  # a plan's own order is no choice
    assert main(["veto", str(a), name, "-o", str(b)]) == 0
    capsys.readouterr()
    assert main(["diff", str(a), str(b)]) == 0
    shown = capsys.readouterr().out
    assert "1 of 40 ops differ in device" in shown and f"\n{name} " in shown
    assert main(["bisect", str(a)]) == 0
    assert "in the same orders with all choices back" in capsys.readouterr().out
    case = load_answer(a)
    blame = case.bisect()
    assert blame.judged == problem().best_cost and blame.changed.tolist() == moved.tolist()
    assert blame.reverted[0] == case.revert(name)[0].decided.prices["judged"]


def test_veto_moves_one_op_and_keeps_the_order(tmp_path: Path) -> None:
    """The price is that of the plan with one device changed, where that sends nothing new; new transfers go last."""
    case, plan = load_answer(stored(tmp_path)), problem().solution().plans
    assert plan.transfer is not None
    equal = 0
    for op in case.decided.changed().tolist():
        edited = case.revert(f"{graph().op_names[op]}=device:0")[0].decided
        assert edited.plan["device"][op] == 0 and edited.choices[op, 0] == 0
        known = (edited.plan["transfer"] > 0) & (case.decided.plan["transfer"] > 0)
        if np.array_equal(known, edited.plan["transfer"] > 0):
            device = plan.device.copy()
            device[0, op] = 0
            by_hand = Plans(graph(), device, plan.priority, plan.inline, plan.transfer)
            assert edited.prices["judged"] == case.judge.price(by_hand).cost[0]
            equal += 1
    assert equal > 0
    path, name = tmp_path / "cell" / "decisions" / "edited.npz", graph().op_names[op]
    write(path, edited)
    assert load(path).plan and load_answer(path).check() == []
    with pytest.raises(DecisionError, match="only device can be set, not priority"):
        case.revert(f"{name}=priority:3")


def test_files_are_small_and_plain(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with np.load(path, allow_pickle=False) as file:
        kinds: dict[str, Any] = {name: file[name].dtype for name in file.files if name.startswith("plan_")}
        json.loads(file["header"].tobytes())
    assert set(kinds) == {"plan_device", "plan_priority", "plan_inline", "plan_transfer"}
    assert all(kind.itemsize == 1 for kind in kinds.values())  # 40 ops: ranks below 256


# --- Choices that graphopt knows nothing of: plans carry them, searches keep to what each op has, files hold them.

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
    config = {**NODES, "judge": NODES["cost"], "seed": 0}
    return kept(tmp_path / "cell" / "decisions" / "a.npz", problem, config)


def test_a_stored_plan_replays_with_its_choices(file: Path) -> None:
    case = load_answer(file)
    assert case.decided.plan and case.check() == []
    wanted = TASK.realise_keys(GRAPH, keys())[0].choices
    assert all(np.array_equal(case.solution.plans.choices[name], wanted[name]) for name in wanted)
    assert case.decided.described == ("tile",)  # a knob of the whole graph is no op's choice
    assert np.array_equal(case.decided.choices[:, 1], wanted["tile"][0])


def test_a_choice_is_edited_and_the_rest_stays(file: Path) -> None:
    case = load_answer(file)
    op = int(np.flatnonzero(case.solution.plans.choices["tile"][0])[0])
    edited, accepted = case.revert(f"{GRAPH.op_names[op]}=tile:0")
    assert accepted
    write(file, edited.decided)
    before, after = case.solution.plans, load_answer(file).solution.plans
    assert after.choices["tile"][0, op] == 0 and np.array_equal(after.choices["unroll"], before.choices["unroll"])
    assert compact(after, 1)["priority"].tolist() == compact(before, 1)["priority"].tolist()
    assert load_answer(file).check() == []


NO_ARRAY, OTHERS = "of its plan is no array of choices", "further choices of its plan are not the task's"


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("choice_tile", np.full(OPS, 3), NO_ARRAY), ("choice_tile", np.zeros(OPS), NO_ARRAY),
        ("choice_what", np.zeros(OPS, int), NO_ARRAY), ("choice_tile", np.zeros(2, int), OTHERS),
        ("choice_tile", None, rf"{OTHERS} \(tile, unroll\)"),
    ],
)  # fmt: skip
def test_choices_of_a_file_are_checked(file: Path, name: str, array: np.ndarray | None, message: str) -> None:
    decision = load(file)
    decision.plan.pop(name, None)
    decision.plan.update({} if array is None else {name: array})
    write(file, decision)
    with pytest.raises(DecisionError, match=message):
        load_answer(file)
