"""`Choices`: what tasks decide that give every op a choice under each of their heads.

Arrays of its file:

- `op_names`: JSON list as bytes, [N]; a decision refers to ops by name.
- `choices`, `default`: int16 [N, H], the decision and the default heuristic's, heads in the header's order.
- `plan_device`, `plan_priority`, `plan_inline`, `plan_transfer`, `plan_choice_HEAD`: only when the best came from
  random keys and no decision describes it. Then the plan is the answer (`graphopt.core.compact` says how its orders are
  stored), and `choices` says what it does under the header's `described` heads; under others it is the default's.

Shape legend: N ops, H heads.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from graphopt.core.compact import compact, expand, same
from graphopt.core.errors import DecisionError, Unreadable
from graphopt.core.graph import Graph
from graphopt.core.head import Role, named_counts
from graphopt.core.plan import Plans
from graphopt.problems import answer_format
from graphopt.problems.answer_format import Arrays, json_bytes
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.solution import Decided

if TYPE_CHECKING:
    from graphopt.problems.task import AssignTask


@dataclass(frozen=True, eq=False)
class Choices(Decided):
    """A choice per op and head."""

    op_names: tuple[str, ...]  # [N]
    choices: Decision  # [N, H]
    default: Decision  # [N, H]
    plan: Arrays  # arrays of `graphopt.core.compact`; empty when `choices` is the answer

    format = "graphopt decision 1"

    @classmethod
    def read(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        answer_format.check_heads(header)
        names, counts = answer_format.op_names(arrays), [count for _, count in header["heads"]]
        if len(names) != header["graph"]["ops"]:
            raise Unreadable(f"it has {len(names):,} op names, its graph {header['graph']['ops']:,} ops")
        decided, default = (answer_format.choices(arrays, name, len(names), counts) for name in ("choices", "default"))
        plan = answer_format.plan(arrays, len(names), dict(header["heads"]))
        return cls(header, answer_format.trace(arrays), names, decided, default, plan)

    def arrays(self) -> Arrays:
        return {
            "op_names": json_bytes(list(self.op_names)),
            "choices": np.asarray(self.choices, np.int16),
            "default": np.asarray(self.default, np.int16),
            **{f"plan_{name}": array for name, array in self.plan.items()},
        }

    @property
    def heads(self) -> dict[str, int]:
        """In the order of the last axis of `choices`."""
        return {str(name): int(count) for name, count in self.header["heads"]}

    @property
    def described(self) -> tuple[str, ...]:
        return tuple(self.header.get("described", ())) if self.plan else tuple(self.heads)

    def facts(self) -> list[tuple[str, str]]:
        known = ", ".join(self.described) or "nothing else"
        text = f"a plan from random keys: its orders are its own; choices describe {known}"
        return [("answer", text)] if self.plan else []

    def changed(self) -> NDArray[np.int64]:
        """Ops that differ from the default's choice."""
        return np.flatnonzero((self.choices != self.default).any(1))

    def op(self, name: str) -> int:
        """Index of the op of that name."""
        if name not in self.op_names:
            near = [n for n in self.op_names if name in n][:5]
            hint = f"; near: {', '.join(near)}" if near else "; `show` lists the names"
            raise DecisionError(f"graph {self.header['graph']['name']!r} has no op {name!r}{hint}")
        return self.op_names.index(name)

    def plans(self, graph: Graph, task: "AssignTask") -> Plans:
        return expand(graph, self.plan) if self.plan else task.realise(graph, self.choices[None])

    def default_plans(self, graph: Graph, task: "AssignTask") -> Plans:
        return task.realise(graph, self.default[None])

    def realise(self, graph: Graph, task: "AssignTask", choices: Decisions) -> Plans:
        """Plans of other choices [B, N, H]. Of a plan from random keys what choices do not describe stays."""
        plans = task.realise(graph, choices)
        if not self.plan:
            return plans
        kept = expand(graph, self.plan)[np.zeros(len(plans), np.int64)]
        stays = {name: array for name, array in kept.choices.items() if name not in self.described}
        return replace(plans, priority=kept.priority, transfer=kept.transfer, choices={**plans.choices, **stays})

    def must_fit(self, graph: Graph, task: "AssignTask", source: str) -> None:
        now = named_counts(task.heads)
        if list(now.items()) != list(self.heads.items()):
            raise DecisionError(f"{source} decides {self.heads}, but its task now decides {now}: solve the graph again")
        if len(self.op_names) != graph.num_ops:
            raise DecisionError(
                f"{source} names {len(self.op_names):,} ops, its graph has {graph.num_ops:,}: solve it again"
            )
        if self.plan:
            self._plan_must_fit(graph, task, source)

    def _plan_must_fit(self, graph: Graph, task: "AssignTask", source: str) -> None:
        plan, machine = self.plan, task.machine
        devices = machine.num_devices
        if int(plan["device"].max()) >= devices:
            raise DecisionError(f"{source} uses device {plan['device'].max()} of {devices} of machine={machine.name}")
        if "transfer" in plan and plan["transfer"].shape != (graph.num_tensors, devices):
            raise DecisionError(f"{source} is damaged: its transfer priorities are not those of {graph.num_tensors:,} "
                                f"tensors and {devices} devices")  # fmt: skip
        wanted = self.default_plans(graph, task).choices
        if {name: array.shape for name, array in expand(graph, plan).choices.items()} != {
            name: array.shape for name, array in wanted.items()
        }:
            decided = ", ".join(wanted) or "none"
            raise DecisionError(f"{source} is damaged: the further choices of its plan are not the task's ({decided})")


def chosen(task: "AssignTask", graph: Graph, trace: NDArray[np.float64], best: Decision, default: Decision) -> Choices:
    """A decision and the default's, both canonical, so that only real differences show."""
    return Choices(_header(task), trace, graph.op_names, best, default, {})


def described(task: "AssignTask", trace: NDArray[np.float64], plan: Plans, default: Decision) -> Choices:
    """What a plan (a batch of one) does of which no decision is known. Choices are kept alone if they say it all."""
    graph, devices = plan.graph, task.machine.num_devices
    choices, known = describe(task, default, plan)
    arrays = compact(plan, devices)
    if len(known) == len(task.heads) and same(arrays, compact(task.realise(graph, choices[None]), devices)):
        return chosen(task, graph, trace, choices, default)
    return Choices({**_header(task), "described": known}, trace, graph.op_names, choices, default, arrays)


def _header(task: "AssignTask") -> dict[str, Any]:
    return {"heads": [[head.name, head.count] for head in task.heads]}


def describe(task: "AssignTask", default: Decision, plan: Plans) -> tuple[Decision, list[str]]:
    """([N, H] what a decision can say of a plan (a batch of one), the heads that it speaks of): where every op that has
    a kernel runs, which ops with a choice are inline, and further choices of ops, where the task has such heads."""
    graph, choices, free, described = plan.graph, default.copy(), task.mask(plan.graph), []
    for column, head in enumerate(task.heads):
        if head.role is Role.DEVICE:
            runs = ~plan.inline[0]
            if len(graph.together):
                runs[graph.together[runs]] = True  # an op decides for others even where it has no kernel of its own
            choices[runs, column] = plan.device[0][runs]
        elif head.role is Role.FUSION and head.count == 2:
            choices[free[:, column], column] = plan.inline[0][free[:, column]]
        elif head.name in plan.choices and plan.choices[head.name].shape[1:] == (graph.num_ops,):
            choices[:, column] = plan.choices[head.name][0]
        else:
            continue
        described.append(head.name)
    return task.canonical(graph, choices), described
