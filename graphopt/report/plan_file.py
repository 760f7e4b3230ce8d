"""A placement, an order or fusions given by hand or by another tool, as JSON, priced like any answer.

    {"device": {"conv_1": 1, "add_3": "gpu0"}, "order": ["conv_1", "add_3"], "inline": {"relu_2": true}}

All three are optional, ops go by name, and other ops stay as in the task's default. Ops of `order` start before all
others that are ready on their device, in that order.

Shape legend: N ops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from graphopt.core.cli import composed, meant
from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.core.plan import Plans, Role, compact
from graphopt.core.utils.limits import MIB, read_json
from graphopt.problems.assignment import AssignTask, describe
from graphopt.problems.problem import Solution
from graphopt.report.answer import Answer
from graphopt.run.config.build import build, stored_config
from graphopt.run.records.answer_file import complete

PARTS = ("device", "order", "inline")


@dataclass(frozen=True)
class PlanFile:
    """The requests of a file."""

    device: Mapping[str, int | str]
    order: Sequence[str]
    inline: Mapping[str, bool]


def read_plan(path: Path | str) -> PlanFile:
    """Reads the JSON. Raises UserError."""
    content = read_json(path, 64 * MIB)
    if not isinstance(content, dict) or not set(content) <= set(PARTS):
        raise UserError(f"{path} should be a JSON object with some of {', '.join(PARTS)}")
    device, order, inline = content.get("device", {}), content.get("order", []), content.get("inline", {})
    if not isinstance(device, dict) or any(type(where) not in (int, str) for where in device.values()):
        raise UserError(f"{path}: device should be an object of op names and device numbers or names")
    if not isinstance(order, list) or any(not isinstance(name, str) for name in order):
        raise UserError(f"{path}: order should be a list of op names")
    if not isinstance(inline, dict) or any(not isinstance(flag, bool) for flag in inline.values()):
        raise UserError(f"{path}: inline should be an object of op names and true or false")
    if len(set(order)) < len(order):
        twice = next(name for i, name in enumerate(order) if name in order[:i])
        raise UserError(f"{path}: order names op {twice!r} twice")
    return PlanFile(device, order, inline)


def plan_of(file: PlanFile, graph: Graph, task: AssignTask) -> Plans:
    """The requests as a batch of one plan, the rest as the task has it by default. Raises UserError where the graph has
    no such op, the machine no such device, the task no such head, or the plan cannot be."""
    choices, numbers = task.initial(graph).copy(), {name: n for n, name in enumerate(graph.op_names)}
    device = {_op(numbers, graph, name): _device(task, where) for name, where in file.device.items()}
    inline = {_op(numbers, graph, name): int(flag) for name, flag in file.inline.items()}
    order = [_op(numbers, graph, name) for name in file.order]
    if order and not task.decides(Role.PRIORITY):
        raise UserError(f"task={task.name} decides no order; take task=placement_scheduling or task=scheduling")
    for part, role, wanted in (("device", Role.DEVICE, device), ("inline", Role.FUSION, inline)):
        if wanted and not task.decides(role):
            decided = ", ".join(head.name for head in task.heads)
            raise UserError(f"task={task.name} does not decide {part}; it decides {decided}")
        for op, choice in wanted.items():
            choices[op, task.column(role)] = choice
    plan = task.realise(graph, choices[None])
    _must_be(plan, device, inline)
    return replace(plan, priority=_priority(graph, order)[None], transfer=None) if order else plan


def _op(numbers: Mapping[str, int], graph: Graph, name: str) -> int:
    if name not in numbers:
        raise UserError(f"graph {graph.name!r} has no op {name!r}{meant(name, graph.op_names)}")
    return numbers[name]


def _device(task: AssignTask, where: int | str) -> int:
    names = [device.name for device in task.machine.devices]
    if isinstance(where, str) and where in names:
        return names.index(where)
    if isinstance(where, int) and 0 <= where < len(names):
        return where
    raise UserError(f"machine={task.machine.name} has no device {where!r}; its devices are 0 to {len(names) - 1}: "
                     f"{', '.join(names)}")  # fmt: skip


def _must_be(plan: Plans, device: Mapping[int, int], inline: Mapping[int, int]) -> None:
    """Tasks resolve illegal requests; here they are an error."""
    name = plan.graph.op_names
    for op, where in device.items():
        if not plan.inline[0, op] and plan.device[0, op] != where:
            leader = name[plan.graph.together[op]]
            raise UserError(f"op {name[op]!r} has to share the device of op {leader!r}; place that one")
    for op, flag in inline.items():
        if plan.inline[0, op] != flag:
            raise UserError(f"op {name[op]!r} cannot be {'inlined' if flag else 'stored'} beside the other choices")


def _priority(graph: Graph, order: Sequence[int]) -> NDArray[np.float64]:
    """[N] the first of the order highest, all others 0. Raises UserError where an op comes before its inputs."""
    priority = np.zeros(graph.num_ops)
    priority[list(order)] = np.arange(len(order), 0, -1)
    last = list(range(graph.num_ops))  # of an op and all that it needs, the one that the order has last
    for op in range(graph.num_ops):
        makers = graph.producer[graph.operands(op)]
        needed = [last[maker] for maker in makers.tolist() if maker >= 0]
        late = min((n for n in needed if priority[n]), key=lambda n: priority[n], default=op)
        if priority[op] and priority[late] < priority[op]:
            names = graph.op_names
            raise UserError(f"the order has op {names[op]!r} before op {names[late]!r}, which it needs")
        last[op] = op if priority[op] else late
    return priority


def default_answer(settings: Sequence[str], graph_name: str | None) -> Answer:
    """The default's answer to a graph of a configuration, as `run.py` would have it. Raises UserError or GraphError."""
    config = composed(["algo=default", *settings])
    parts = build(config)
    if parts.task.makes_programs:
        raise UserError(f"task={parts.task.name} is {parts.task.noun}; take one that places or schedules ops")
    graphs = parts.dataset.graphs(config["split"])
    chosen = [graph for graph in graphs if graph_name in (None, graph.name)]
    if len(chosen) != 1:
        names = ", ".join(graph.name for graph in graphs[:20])
        raise UserError(f"dataset={parts.dataset.name} has {len(chosen)} such graphs; say --graph with one of "
                            f"{names}")  # fmt: skip
    graph = chosen[0]
    problem = parts.task.open(graph, parts.cost, evals=0)
    solution = problem.solution()
    row = {key: config[key]["name"] for key in ("dataset", "task", "machine", "cost", "judge")}
    facts = {**row, "objective": parts.cost.objective, "initial": solution.default_price(parts.judge).cost}
    decided = complete(problem, facts["initial"], facts, stored_config(config, parts))
    return Answer(Path(graph.name), replace(decided, trace=np.zeros((0, 3))), solution, parts.cost, parts.judge)


def answer_of(plan: Plans, like: Answer, source: Path) -> Answer:
    """The answer that a plan of a file is. like: one that brings graph, task, machine and cost."""
    before, task = like.choices, like.solution.task
    choices, known = describe(task, before.default, plan)
    prices = {**before.prices, **like.reprice(Solution(like.graph, task, before, plan))}
    header = {**before.header, "row": {**before.header["row"], "algo": "given"}, "prices": prices,
              "edits": [f"given by {source.name}"], "described": known}  # fmt: skip
    arrays = compact(plan, like.machine.num_devices)
    decided = replace(before, header=header, trace=np.zeros((0, 3)), choices=choices, plan=arrays)
    return replace(like, decided=decided, solution=Solution(like.graph, task, decided, plan))
