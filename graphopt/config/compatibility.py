"""Who fits whom, found from classes alone, before anything is built.

Facts are class attributes: optimisers say what they accept (`accepts`, `needs_roles`, `needs_one_of`, `knows_roles`),
tasks what they decide (`noun`, `roles`, with settings `roles_of`), costs what of it counts (`reads`, `assumes`), tasks
costs and optimisers what a graph must carry (`needs`), data sets what graphs carry (`gives`).
`graphopt compat` prints the table of tasks and algorithms as Markdown, with `--families` its short form.
"""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from graphopt.config.construct import INJECTED, Node, arguments_of, check_complete, target_of
from graphopt.core.head import Role
from graphopt.errors import Incompatible, UsageError, UserError
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import Solver
from graphopt.problems.task import Task
from graphopt.utils import registry


def learns(algo: type[Solver[Any]]) -> bool:
    """Whether it has to be trained. Does not import torch: a learner's module has done so already."""
    learner = sys.modules.get("graphopt.algos.learner")
    return learner is not None and issubclass(algo, learner.Learner)


def mismatch(algo: type[Solver[Any]], task: Node) -> tuple[str, str] | None:
    """(what the algorithm needs, what the configured task is), or None when they fit."""
    target: type[Task] = target_of(task, "task")
    if not issubclass(target, algo.accepts):
        return "needs " + " or ".join(wanted.noun for wanted in algo.accepts), f"is {target.noun}"
    return _roles_mismatch(algo, target.roles_of(task))


def _roles_mismatch(algo: type[Solver[Any]], decided: Mapping[str, Role]) -> tuple[str, str] | None:
    roles, decides = {*decided.values()}, f"decides {', '.join(sorted(decided)) or 'nothing'}"
    either = algo.needs_one_of
    if not algo.needs_roles <= roles or (either and not either & roles):
        wanted = [*_words(algo.needs_roles), *([" or ".join(_words(either))] if either else [])]
        return f"needs a task that decides {', '.join(wanted)}", decides
    if algo.knows_roles and not roles <= algo.knows_roles:
        return f"needs a task that decides nothing but {', '.join(_words(algo.knows_roles))}", decides
    return None


def _words(roles: Iterable[Role]) -> list[str]:
    return sorted(role.value for role in roles)


def check(config: Mapping[str, Any]) -> None:
    """Raises Incompatible, in one sentence with the alternatives, when the chosen classes do not fit."""
    task, algo = target_of(config["task"], "task"), target_of(config["algo"], "algo")
    check_complete(
        arguments_of(task), {*config["task"], *INJECTED}, "task", config["task"]
    )  # its settings are read now
    dataset = target_of(config["dataset"], "dataset")
    wrong = mismatch(algo, config["task"])
    if wrong is not None:
        raise Incompatible(_sentence(config, *wrong))
    costs = {group: target_of(config[group], group) for group in ("cost", "judge")}
    check_reads(config)
    for group, part in (("task", task), ("algo", algo), *costs.items()):
        missing = part.needs - dataset.gives
        if missing:
            raise Incompatible(
                f"{group}={config[group]['name']} needs graphs that carry {', '.join(sorted(missing))}; "
                f"dataset={config['dataset']['name']} has none. Data sets that do: {_or_none(_givers(missing))}."
            )


def check_reads(config: Mapping[str, Any]) -> None:
    """Raises Incompatible, in one sentence with the alternatives, when a cost model does not read what the task
    decides, or reads choices that it does not decide."""
    for group in ("cost", "judge"):
        wrong = unread(target_of(config[group], group), config["task"])
        if wrong:
            fitting = [name for name, cost in _classes("cost").items() if not unread(cost, config["task"])]
            raise Incompatible(f"{group}={config[group]['name']} {wrong}. Cost models for it: {_or_none(fitting)}.")


def unread(cost: type[CostModel], task: Node) -> str:
    """What a cost model and the configured task do not agree on; empty when they fit."""
    target: type[Task] = target_of(task, "task")
    decided = target.roles_of(task)
    choices = {name for name, role in decided.items() if role is Role.CHOICE}
    beside = choices - cost.reads
    if cost.prices_programs and not target.makes_programs:
        return f"prices programs, whatever their plan, so that only rewriting counts, not task={task['name']}"
    if beside or (decided and not cost.reads & {*choices, *decided.values()}):
        return f"does not read {', '.join(sorted(beside or decided))}, which task={task['name']} decides"
    missing = {name for name in cost.reads if isinstance(name, str)} - cost.assumes - choices
    return f"reads {', '.join(sorted(missing))}, which task={task['name']} does not decide" if missing else ""


def check_unused(config: Mapping[str, Any]) -> None:
    """Raises UsageError for unknown keys of groups that not every cell builds: the yaml file says what is known."""
    for group in ("encoder", "trainer"):
        node = config[group]
        if node["name"] not in registry.options(group):
            continue
        known = registry.option(group, node["name"])
        for key in node:
            if key not in known:
                valid = ", ".join(k for k in known if k not in ("_target_", "name"))
                raise UsageError(f"{group}.{key} does not exist; keys of {group}={node['name']}: {valid}")


def refusal(algo: str, task: Node) -> str:
    """Why the algorithm of that name cannot solve the configured task; empty when it can."""
    wrong = mismatch(target_of(registry.option("algo", algo), "algo"), task)
    return "" if wrong is None else f"algo={algo} {wrong[0]}; task={task['name']} {wrong[1]}"


def _sentence(config: Mapping[str, Any], needs: str, has: str) -> str:
    task, algo = config["task"]["name"], config["algo"]["name"]
    return (
        f"algo={algo} {needs}; task={task} {has}. "
        f"Tasks for {algo}: {_or_none(_tasks_for(config['algo']))}. "
        f"Algorithms for {task}: {_or_none(_algos_for(config['task']))}."
    )


def _or_none(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _classes(group: str) -> dict[str, Any]:
    """Name -> class of a group's options; those whose packages are not installed are left out."""
    found = {}
    for name in registry.options(group):
        try:
            found[name] = target_of(registry.option(group, name), group)
        except UserError:
            continue
    return found


def _tasks_for(algo: Node) -> list[str]:
    target = target_of(algo, "algo")
    return [name for name, task in _tasks().items() if mismatch(target, task) is None]


def _tasks() -> dict[str, Node]:
    return {name: registry.option("task", name) for name in registry.options("task")}


def _algos_for(task: Node) -> list[str]:
    return [name for name, algo in _classes("algo").items() if mismatch(algo, task) is None]


def _givers(needs: frozenset[str]) -> list[str]:
    return [name for name, dataset in _classes("dataset").items() if needs <= dataset.gives]


def fits() -> dict[str, list[str]]:
    """Algorithm -> tasks that it can solve, in the order of the names."""
    tasks = _tasks()
    return {
        name: [task for task, node in tasks.items() if mismatch(algo, node) is None]
        for name, algo in _classes("algo").items()
    }


def matrix() -> str:
    """Markdown: one line per algorithm, one column per task."""
    tasks, algos = registry.options("task"), _classes("algo")
    lines = [f"| algo | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for name, fitting in fits().items():
        cells = ["yes" if task in fitting else "-" for task in tasks]
        lines.append(f"| {name}{' (learns)' if learns(algos[name]) else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def families() -> str:
    """Markdown: `matrix` in few lines. Algorithms of the same tasks share a line; NAME* also stands for its variants
    NAME_..., where these fit the same tasks and learn as it does."""
    classes = _classes("algo")
    algos = {name: (tuple(fitting), learns(classes[name])) for name, fitting in fits().items()}
    lines: dict[tuple[str, ...], list[str]] = {}
    for name, same in algos.items():
        if any(name.startswith(f"{other}_") and algos[other] == same for other in algos):
            continue
        variants = any(other.startswith(f"{name}_") and algos[other] == same for other in algos)
        shown = f"{name}*" if variants else name
        lines.setdefault(same[0], []).append(f"**{shown}**" if same[1] else shown)
    rows = sorted(lines.items(), key=lambda line: (-len(line[0]), line[0]))
    table = [f"| {', '.join(tasks)} | {', '.join(names)} |" for tasks, names in rows]
    return "\n".join(["| tasks | algorithms |", "|---|---|", *table])
