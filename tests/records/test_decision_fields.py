"""Decision files of random keys and of ops that share a device: small, replayed exactly, open to editing."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.config.construct import construct
from graphopt.core.graph import Graph
from graphopt.core.operators import Category
from graphopt.core.plan import Plans
from graphopt.datasets.layered import layered_graph
from graphopt.decision import main
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.task import AssignTask
from graphopt.readers.formats.graph_files import save_graph
from graphopt.records.answer_format import DecisionError
from graphopt.records.decision_file import load, save, write
from graphopt.reporting.edit import bisect, veto
from graphopt.reporting.replay import check, open_case
from graphopt.utils import registry

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
    case = open_case(stored(tmp_path, task))
    assert case.decision.plan and check(case) == []
    assert case.reprice()["judged"] == problem(task).best_cost


@pytest.mark.parametrize("task", ["placement", "fusion"])
def test_what_a_decision_can_say_needs_no_plan(tmp_path: Path, task: str) -> None:
    case = open_case(stored(tmp_path, task))
    assert problem(task).best_plan is not None and not case.decision.plan
    assert check(case) == []


@pytest.mark.parametrize("task, heads", [("placement_scheduling", ["device"]), ("joint", ["device", "inline"])])
def test_choices_say_what_the_plan_does(tmp_path: Path, task: str, heads: list[str]) -> None:
    case, plan = open_case(stored(tmp_path, task)), problem(task).plans()
    assert list(case.decision.described) == heads
    columns = dict(zip(case.decision.heads, case.decision.choices.T))
    kernels = ~plan.inline[0]
    assert np.array_equal(columns["device"][kernels], plan.device[0][kernels])
    again = case.realise(case.decision.choices[None])
    assert np.array_equal(again.inline, plan.inline)
    assert case.judge.price(again).cost[0] == problem(task).best_cost


def test_old_files_are_read_and_say_what_cannot_be_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before orders were ranks, a file held the keys themselves and choices like the default's."""
    path, plan = stored(tmp_path), problem("placement_scheduling").plans()
    decision = load(path)
    del decision.header["described"]
    decision.choices[:] = decision.default
    assert plan.transfer is not None
    decision.plan.update(device=plan.device[0], priority=plan.priority[0], transfer=plan.transfer[0])
    size = path.stat().st_size
    write(path, decision)
    assert check(open_case(path)) == [] and main(["show", str(path)]) == 0
    assert "choices describe nothing else" in capsys.readouterr().out
    assert path.stat().st_size > size
    with pytest.raises(DecisionError, match=r"plan from random keys .* older version"):
        bisect(open_case(path))
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
    case, plan = open_case(stored(tmp_path)), problem("placement_scheduling").plans()
    assert plan.transfer is not None
    equal = 0
    for op in case.decision.changed().tolist():
        edited = veto(case, f"{graph().op_names[op]}=device:0").decision
        assert edited.plan["device"][op] == 0 and edited.choices[op, 0] == 0
        known = (edited.plan["transfer"] > 0) & (case.decision.plan["transfer"] > 0)
        if np.array_equal(known, edited.plan["transfer"] > 0):
            device = plan.device.copy()
            device[0, op] = 0
            by_hand = Plans(graph(), device, plan.priority, plan.inline, plan.transfer)
            assert edited.prices["judged"] == case.judge.price(by_hand).cost[0]
            equal += 1
    assert equal > 0


def test_veto_writes_a_plan_that_replays_and_refuses_orders(tmp_path: Path) -> None:
    case, path = open_case(stored(tmp_path)), tmp_path / "cell" / "decisions" / "edited.npz"
    name = graph().op_names[int(case.decision.changed()[0])]
    write(path, veto(case, name).decision)
    assert load(path).plan and check(open_case(path)) == []
    with pytest.raises(DecisionError, match="only device can be set, not priority"):
        veto(case, f"{name}=priority:3")


def test_bisect_prices_every_way_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = stored(tmp_path)
    case = open_case(path)
    blame = bisect(case)
    assert blame.judged == problem("placement_scheduling").best_cost
    assert blame.ops.tolist() == case.decision.changed().tolist()
    one = veto(case, graph().op_names[blame.ops[0]]).decision.prices["judged"]
    assert blame.reverted[0] == one
    assert main(["bisect", str(path)]) == 0
    assert "in the same orders with all choices back" in capsys.readouterr().out


def test_plans_and_decisions_of_one_task_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path), tmp_path / "cell" / "decisions" / "b.npz"
    decision = load(a)
    plain = type(decision)(
        {k: v for k, v in decision.header.items() if k != "described"}, decision.op_names, decision.default,
        decision.default, decision.trace, {},
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
    problem.best_cost = float(cost.price(problem.plans()).cost[0])
    return problem, {**config, "judge": config["cost"]}


@pytest.mark.parametrize("objective", ["runtime", "max_load", "peak_memory"])
@pytest.mark.parametrize("task_name", TASKS)
@pytest.mark.parametrize("keys", [False, True])
def test_choices_are_what_happens(tmp_path: Path, task_name: str, objective: str, keys: bool) -> None:
    for seed, groups in enumerate((60, 20, 8, 3)):
        graph = colocated(seed, groups)
        problem, config = solved(graph, task_name, objective, keys, seed)
        task, plan = problem.task, problem.plans()
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
