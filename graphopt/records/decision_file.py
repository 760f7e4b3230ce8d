"""Decision files: the answer to one graph as a small portable file that any run can replay, diff, veto and bisect.

The file is an npz without pickles:

- `header`: JSON as bytes: graph (name, family, hash, ops), heads and their number of choices, prices (initial,
  searched, judged, noise), config (machine, task, cost, judge, dataset), row (what produced it), versions.
- `op_names`: JSON list as bytes, [N]; a decision refers to ops by name.
- `choices`, `default`: int16 [N, H], the decision and the default heuristic's, heads in the header's order.
- `trace`: float64 [S, 3]: evaluations, seconds, best cost, one line per improvement.
- `plan_device`, `plan_priority`, `plan_inline`, `plan_transfer`, `plan_choice_HEAD`: only when the best came from
  random keys and no decision describes it. Then the plan is the answer (`graphopt.core.compact` says how its orders are
  stored), and `choices` says what it does under the header's `described` heads; under others it is the default's.

`python -m graphopt.decision show|diff|replay|veto|bisect|draw` works on them, and on those in a pack
(`graphopt.records.packed`): everywhere the path of one may be `STUDY/answers.zip#DIGEST`.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from graphopt.config.stored import words
from graphopt.core.compact import compact, expand, same
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.errors import Unreadable
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.problems.problem import Problem
from graphopt.problems.task import AssignTask
from graphopt.records import answer_format
from graphopt.records.answer_format import DecisionError, damaged, read_answer

FORMAT = "graphopt decision 1"
CONFIG_KEYS = ("machine", "task", "cost", "judge", "dataset", "objective", "seed")
ROW_KEYS = (
    *("study", "dataset", "split", "graph", "family", "task", "machine", "cost", "judge", "objective", "encoder"),
    *("algo", "seed", "evals_cap", "evals", "config_hash"),
)


class StoredAnswer(Protocol):
    """A stored answer of any format."""

    @property
    def header(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class DecisionFile:
    """The contents of a decision file."""

    header: dict[str, Any]
    op_names: tuple[str, ...]  # [N]
    choices: Decision  # [N, H]
    default: Decision  # [N, H]
    trace: NDArray[np.float64]  # [S, 3] evaluations, seconds, best cost
    plan: dict[str, NDArray[Any]]  # arrays of `graphopt.core.compact`; empty when `choices` is the answer

    @property
    def heads(self) -> dict[str, int]:
        """Number of choices of every head, in the order of the last axis of `choices`."""
        return {str(name): int(count) for name, count in self.header["heads"]}

    @property
    def prices(self) -> dict[str, float]:
        """initial, searched, judged, noise."""
        return {key: float(value) for key, value in self.header["prices"].items()}

    @property
    def described(self) -> tuple[str, ...]:
        """Heads under which `choices` says what the answer does."""
        return tuple(self.header.get("described", ())) if self.plan else tuple(self.heads)

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

    def plans(self, graph: Graph) -> Plans | None:
        """The stored plan as a batch of one, or None when the decision describes it."""
        return expand(graph, self.plan) if self.plan else None


def save(
    path: Path | str, *, problem: AssignProblem, judged: float, row: Mapping[str, Any], config: Mapping[str, Any]
) -> None:
    """Writes the best answer of a solved problem.

    judged: its price by the judge. row: the row's fields (what is known of them). config: the resolved configuration as
    plain containers; its machine, task, cost, judge and dataset parts are kept.
    """
    graph, task = problem.graph, problem.task
    header = {
        "format": FORMAT,
        "heads": [[head.name, head.count] for head in task.heads],
        **header_of(problem, graph, judged, row, config),
    }
    default = task.canonical(graph, task.initial(graph))  # as `best`, so that only real differences show
    best, plan = task.canonical(graph, problem.best), {}
    if problem.best_plan is not None:
        best, header["described"] = describe(task, default, problem.best_plan)
        plan = compact(problem.best_plan, task.machine.num_devices)
        if same(plan, compact(task.realise(graph, best[None]), task.machine.num_devices)):
            plan = {}  # the decision says it all
    write(path, DecisionFile(header, graph.op_names, best, default, trace_of(problem), plan))


def header_of(
    problem: Problem, graph: Graph, judged: float, row: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """What a file says of graph, prices, configuration, row and versions, whatever was decided."""
    return {
        "graph": {"name": graph.name, "family": graph.family, "hash": graph.hash, "ops": graph.num_ops},
        "prices": {
            "initial": float(row.get("initial", problem.initial_cost)),
            "searched": float(problem.best_cost),
            "judged": float(judged),
            "noise": float(row.get("noise", 0.0)),
        },
        "config": {key: _said(key, config[key]) for key in CONFIG_KEYS if key in config},
        "row": {key: row[key] for key in ROW_KEYS if key in row},
        "versions": versions(str(row.get("commit", ""))),
    }


def _said(key: str, value: Any) -> Any:
    return words(key, value) if isinstance(value, Mapping) else value


def trace_of(problem: Problem) -> NDArray[np.float64]:
    """[S, 3] evaluations, seconds, best cost."""
    return np.array([[s.evals, s.seconds, s.cost] for s in problem.trace], np.float64).reshape(-1, 3)


def describe(task: AssignTask, default: Decision, plan: Plans) -> tuple[Decision, list[str]]:
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


def versions(commit: str) -> dict[str, str]:
    """What computed the answer. torch counts only when it is loaded."""
    found = {"python": platform.python_version(), "numpy": np.__version__, "commit": commit}
    try:
        found["graphopt"] = version("graphopt")
    except PackageNotFoundError:
        found["graphopt"] = "source"
    torch = sys.modules.get("torch")
    return {**found, "torch": str(torch.__version__)} if torch is not None else found


def write(path: Path | str, decision: DecisionFile) -> None:
    """Writes the file, all or nothing."""
    arrays: dict[str, NDArray[Any]] = {
        "header": json_bytes(decision.header),
        "op_names": json_bytes(list(decision.op_names)),
        "choices": np.asarray(decision.choices, np.int16),
        "default": np.asarray(decision.default, np.int16),
        "trace": decision.trace,
        **{f"plan_{name}": array for name, array in decision.plan.items()},
    }
    write_arrays(path, arrays)


def write_arrays(path: Path | str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes atomically: a reader never sees half a file."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as stream:
            np.savez_compressed(stream, allow_pickle=False, **arrays)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def copy(source: Path | str, target: Path | str) -> None:
    """Writes an answer of any format, wherever it is, as a file of its own. Raises DecisionError as `load` does."""
    header, arrays = read_answer(Path(source))
    write_arrays(target, {"header": json_bytes(header), **arrays})


def load(path: Path | str) -> DecisionFile:
    """Reads a decision file. Raises DecisionError when it is missing, damaged or of an unknown format."""
    source = Path(path)
    header, arrays = read_answer(source)
    if str(header.get("format")).startswith("graphopt rewriting"):
        raise DecisionError(f"{source} holds a rewritten program: use show, replay or draw, which know such files")
    if header.get("format") != FORMAT:
        raise DecisionError(f"{source} has format {str(header.get('format'))[:40]!r}, this version reads {FORMAT!r}")
    try:
        answer_format.check_heads(header)
        names, counts = answer_format.op_names(arrays), [count for _, count in header["heads"]]
        if len(names) != header["graph"]["ops"]:
            raise Unreadable(f"it has {len(names):,} op names, its graph {header['graph']['ops']:,} ops")
        decided, default = (answer_format.choices(arrays, name, len(names), counts) for name in ("choices", "default"))
        plan = answer_format.plan(arrays, len(names), dict(header["heads"]))
        return DecisionFile(header, names, decided, default, answer_format.trace(arrays), plan)
    except Unreadable as error:
        raise damaged(source, error) from None


def json_bytes(value: Any) -> NDArray[np.uint8]:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def match(decision: StoredAnswer, graph: Graph, source: str) -> None:
    """Raises DecisionError unless the decision is of this graph."""
    expected = decision.header["graph"]["hash"]
    if graph.hash != expected:
        raise DecisionError(
            f"{source} decides about graph {decision.header['graph']['name']!r} ({expected}), "
            f"but the graph given is {graph.name!r} ({graph.hash}): give the graph that it was made for"
        )
