"""Decision files of random keys, of shared devices, of further choices: small, replayed exactly, open to editing."""

import dataclasses
import json
from collections.abc import Callable
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
from graphopt.core.plan import Plans, compact, expand
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.graph_files import save_graph
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.optimizer import solve
from graphopt.report.decision import main
from graphopt.run.config.construct import construct
from graphopt.run.records.answer_file import load, save, write

# --- Decision files of random keys and of ops that share a device: small, replayed exactly, open to editing.

# --- Decision files of plans from random keys: small, replayed exactly, and open to reading and editing by device.

CONFIG = {group: registry.option(group, name) for group, name in (("machine", "gpu2"), ("cost", "simulator"))}
CONFIG["cost"] |= {"objective": "peak_memory", "threads": 1}


@cache
def graph() -> Graph:
    return layered_graph(40, np.random.default_rng(4), "g")


@cache
def problem(task: str) -> AssignProblem:
    """One whose answer is a plan of random keys, even where the default is better."""
    machine = construct(CONFIG["machine"], "machine")
    around = {"machine": machine, "task": construct(registry.option("task", task), "task", {"machine": machine})}
    cost = construct(CONFIG["cost"], "cost", around)
    made = AssignProblem(graph(), around["task"], cost, evals=1)
    keys = np.random.default_rng(1).random((1, around["task"].key_count(graph())), np.float32)
    made.best_cost = float(made.cost_keys(keys)[0])
    made.best_plan = around["task"].realise_keys(graph(), keys)
    return made


def stored(folder: Path, task: str = "placement_scheduling", name: str = "a") -> Path:
    path = folder / "cell" / "decisions" / f"{name}.npz"
    answer = problem(task)
    config = {**CONFIG, "judge": CONFIG["cost"], "task": registry.option("task", task), "seed": 0}
    row = {"objective": "peak_memory", "initial": answer.initial_cost}
    save(path, problem=answer, judged=answer.best_cost, row=row, config=config)
    save_graph(folder / "graphs" / f"{graph().hash}.npz", graph())
    return path


@pytest.mark.parametrize("task", ["placement_scheduling", "joint", "scheduling"])
def test_it_replays_exactly(tmp_path: Path, task: str) -> None:
    case = load_answer(stored(tmp_path, task))
    assert case.decided.plan and case.check() == []
    assert case.reprice()["judged"] == problem(task).best_cost


@pytest.mark.parametrize("task", ["placement", "fusion"])
def test_what_a_decision_can_say_needs_no_plan(tmp_path: Path, task: str) -> None:
    case = load_answer(stored(tmp_path, task))
    assert problem(task).best_plan is not None and not case.decided.plan
    assert case.check() == []


@pytest.mark.parametrize("task, heads", [("placement_scheduling", ["device"]), ("joint", ["device", "inline"])])
def test_choices_say_what_the_plan_does(tmp_path: Path, task: str, heads: list[str]) -> None:
    case, plan = load_answer(stored(tmp_path, task)), problem(task).solution().plans
    assert list(case.decided.described) == heads
    columns = dict(zip(case.decided.heads, case.decided.choices.T))
    kernels = ~plan.inline[0]
    assert np.array_equal(columns["device"][kernels], plan.device[0][kernels])
    again = case.decided.realise(case.graph, case.solution.task, case.decided.choices[None])
    assert np.array_equal(again.inline, plan.inline)
    assert case.judge.price(again).cost[0] == problem(task).best_cost


def test_old_files_are_read_and_say_what_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before orders were ranks, a file held the keys themselves and choices like the default's."""
    path, plan = stored(tmp_path), problem("placement_scheduling").solution().plans
    decision = load(path)
    del decision.header["described"]
    decision.choices[:] = decision.default
    assert plan.transfer is not None
    decision.plan.update(device=plan.device[0], priority=plan.priority[0], transfer=plan.transfer[0])
    size = path.stat().st_size
    write(path, decision)
    assert load_answer(path).check() == [] and main(["show", str(path)]) == 0
    assert "choices describe nothing else" in capsys.readouterr().out
    assert path.stat().st_size > size
    with pytest.raises(DecisionError, match=r"plan from random keys .* older version"):
        load_answer(path).bisect()
    assert main(["diff", str(path), str(path)]) == 1


def test_show_and_diff_name_ops_that_moved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_veto_moves_one_op_and_keeps_the_order(tmp_path: Path) -> None:
    """The price is that of the plan with one device changed, where that sends nothing new; new transfers go last."""
    case, plan = load_answer(stored(tmp_path)), problem("placement_scheduling").solution().plans
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


def test_veto_writes_a_plan_that_replays_and_refuses_orders(tmp_path: Path) -> None:
    case, path = load_answer(stored(tmp_path)), tmp_path / "cell" / "decisions" / "edited.npz"
    name = graph().op_names[int(case.decided.changed()[0])]
    write(path, case.revert(name)[0].decided)
    assert load(path).plan and load_answer(path).check() == []
    with pytest.raises(DecisionError, match="only device can be set, not priority"):
        case.revert(f"{name}=priority:3")


def test_bisect_prices_every_way_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path)
    case = load_answer(path)
    blame = case.bisect()
    assert blame.judged == problem("placement_scheduling").best_cost
    assert blame.changed.tolist() == case.decided.changed().tolist()
    one = case.revert(graph().op_names[blame.changed[0]])[0].decided.prices["judged"]
    assert blame.reverted[0] == one
    assert main(["bisect", str(path)]) == 0
    assert "in the same orders with all choices back" in capsys.readouterr().out


def test_plans_and_decisions_of_one_task_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path), tmp_path / "cell" / "decisions" / "b.npz"
    decision = load(a)
    plain = type(decision)(
        {k: v for k, v in decision.header.items() if k != "described"}, decision.trace, decision.op_names,
        decision.default, decision.default, {},
    )  # fmt: skip
    write(b, plain)
    assert main(["diff", str(a), str(b)]) == 0
    assert f"{len(decision.changed())} of 40 ops differ in device" in capsys.readouterr().out


def test_files_are_small_and_plain(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with np.load(path, allow_pickle=False) as file:
        kinds: dict[str, Any] = {name: file[name].dtype for name in file.files if name.startswith("plan_")}
        json.loads(file["header"].tobytes())
    assert set(kinds) == {"plan_device", "plan_priority", "plan_inline", "plan_transfer"}
    assert all(kind.itemsize == 1 for kind in kinds.values())  # 40 ops: ranks below 256


# --- Ops that share a device: a decision file says where every op runs, and its choices alone give the price.

TASKS = {
    "placement": {}, "placement fused": {"fuse": True}, "placement_scheduling": {}, "joint": {}, "scheduling": {},
    "fusion": {}, "fusion priority": {"decision": "priority"},
}  # fmt: skip


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


def solved(graph: Graph, task_name: str, objective: str, keys: bool, seed: int) -> tuple[AssignProblem, dict[str, Any]]:
    """A problem whose answer is a random one, even where the default is better; and its configuration."""
    name = task_name.partition(" ")[0]
    config = {"machine": registry.option("machine", "gpu4_pcie"), "seed": 0,
              "task": registry.option("task", name) | TASKS[task_name],
              "cost": registry.option("cost", "simulator") | {"objective": objective, "threads": 1}}  # fmt: skip
    machine = construct(config["machine"], "machine")
    task: AssignTask = construct(config["task"], "task", {"machine": machine})
    cost = construct(config["cost"], "cost", {"machine": machine, "task": task})
    problem, rng = AssignProblem(graph, task, cost, evals=1), np.random.default_rng(seed)
    if keys:
        drawn = rng.random((1, task.key_count(graph)), np.float32)
        problem.cost_keys(drawn)
        problem.best_plan = task.realise_keys(graph, drawn)
    else:
        counts = [head.count for head in task.heads]
        problem.best = rng.integers(0, counts, (graph.num_ops, len(counts))).astype(np.int16)
    problem.best_cost = float(cost.price(problem.solution().plans).cost[0])
    return problem, {**config, "judge": config["cost"]}


@pytest.mark.parametrize("objective", ["runtime", "max_load", "peak_memory"])
@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("keys", [False, True])
def test_choices_are_what_happens(tmp_path: Path, task_name: str, objective: str, keys: bool) -> None:
    for seed, groups in enumerate((60, 20, 8, 3)):
        graph = colocated(seed, groups)
        problem, config = solved(graph, task_name, objective, keys, seed)
        task, plan = problem.task, problem.solution().plans
        save(tmp_path / "a.npz", problem=problem, judged=problem.best_cost, row={}, config=config)
        file = load(tmp_path / "a.npz")
        said = dict(zip(file.heads, file.choices.T))
        runs = ~plan.inline[0]
        if "device" in said:
            assert np.array_equal(said["device"][runs], plan.device[0][runs])
        if "inline" in said:
            free = task.mask(graph)[:, list(file.heads).index("inline")]
            assert np.array_equal(said["inline"][free].astype(bool), plan.inline[0][free])
        if set(file.described) == set(file.heads):
            again = task.realise(graph, file.choices[None])
            assert float(problem._cost.price(again).cost[0]) == problem.best_cost
        if objective == "max_load" and "fusion" not in task_name:  # orders do not matter, so choices are all there is
            again = task.realise(graph, file.choices[None])
            assert float(problem._cost.price(again).cost[0]) == problem.best_cost


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
        load_answer(file)
