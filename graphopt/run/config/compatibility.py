"""Who fits whom, found from classes alone, before anything is built.

Facts are class attributes. Optimisers have the tasks that they accept (`accepts`, `needs_roles`, `needs_one_of`,
`knows_roles`) and the prices that they need (`objectives`, `needs_cost`). Cost models have their offers (`objective`,
`provides`, `one_device`) and the decisions that they read (`reads`, `assumes`). Tasks have their decisions (`noun`,
`roles`, with settings `roles_of`). All three name required parts of graphs (`needs`), data sets the parts that their
graphs have (`gives`). `graphopt compat` prints the table of tasks and algorithms as Markdown, with `--families` its
short form.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, get_args

import yaml

from graphopt import CONF
from graphopt.core.errors import Incompatible, UsageError, UserError
from graphopt.core.machine import Machine
from graphopt.core.plan import Role
from graphopt.core.utils import registry
from graphopt.problems.cost_model import CostModel, Objective
from graphopt.problems.optimizer import Solver, unpriced
from graphopt.problems.problem import Task
from graphopt.run.config.construct import INJECTED, Node, arguments_of, check_complete, construct, target_of

MACHINES = ("identical", "cpu_core")  # suggestions beside the usual machine: devices alike without links, one device
UNFUSED = "task.fuse=false"


def learns(algo: type[Solver[Any]]) -> bool:
    """Whether it has to be trained. Does not import torch: a learner's module has done so already."""
    learner = sys.modules.get("graphopt.learn.learner")
    return learner is not None and issubclass(algo, learner.Learner)


def encoder_of(config: Mapping[str, Any]) -> str | None:
    """The name of the encoder; None where the algorithm takes none."""
    with suppress(UserError):  # of an algorithm that cannot be imported, which the run itself will say
        takes = "encoder" in arguments_of(target_of(config["algo"], "algo"))
        if not takes or not config["algo"].get("encoded", True):
            return None
    return str(config["encoder"]["name"])


def mismatch(algo: type[Solver[Any]], task: Node) -> tuple[str, str] | None:
    """(the need of the algorithm, the kind of the configured task), or None when they fit."""
    target: type[Task] = target_of(task, "task")
    if not issubclass(target, algo.accepts):
        return "needs " + " or ".join(wanted.noun for wanted in algo.accepts), f"is {target.noun}"
    decided = target.roles_of(task)
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
        needs, has = wrong
        named, posed = config["algo"]["name"], config["task"]["name"]
        tasks = [name for name, node in _tasks().items() if mismatch(algo, node) is None]
        algos = [name for name, one in _classes("algo").items() if mismatch(one, config["task"]) is None]
        raise Incompatible(f"algo={named} {needs}; task={posed} {has}. Tasks for {named}: {_or_none(tasks)}. "
                           f"Algorithms for {posed}: {_or_none(algos)}.")  # fmt: skip
    costs = {group: target_of(config[group], group) for group in ("cost", "judge")}
    check_reads(config)
    lacks = lacking(config["algo"], config)
    if lacks:
        advice = _advice(config) or "another algorithm: none of its settings helps"
        raise Incompatible(f"algo={config['algo']['name']} {lacks}. For task={config['task']['name']} take {advice}")
    for group, part in (("task", task), ("algo", algo), *costs.items()):
        missing = part.needs - dataset.gives
        if missing:
            found = f"dataset={config['dataset']['name']} has none. Data sets that do: "
            wanted = f"{group}={config[group]['name']} needs graphs that carry {', '.join(sorted(missing))}"
            raise Incompatible(f"{wanted}; {found}{_or_none(_givers(task.needs | part.needs))}.")


def lacking(algo: Node, config: Mapping[str, Any]) -> str:
    """Needs of an algorithm or the cost model that cost, objective and machine of a configuration do not meet; empty
    when they meet all."""
    target: type[Solver[Any]] = target_of(algo, "algo")
    cost: type[CostModel] = target_of(config["cost"], "cost")
    objective = config["cost"].get("objective", getattr(cost, "objective", None))
    lacks = unpriced(target, cost, objective)
    asks = cost.one_device or any("unfit" in vars(one) for one in target.__mro__ if one is not Solver)
    if lacks or not asks:
        return lacks
    try:
        machine: Machine = construct(config["machine"], "machine")
    except UserError:  # said when it is built
        return ""
    task = config["task"]
    if cost.op_by_op and task.get("fuse"):
        return f"needs task.fuse=false with cost={config['cost']['name']}, which runs ops one by one"
    if cost.one_device and machine.num_devices > 1 and task.get("placement") != "single":
        return f"needs one device with cost={config['cost']['name']}, machine={machine.name} has {machine.num_devices}"
    decides: set[Role] = {*target_of(task, "task").roles_of(task).values()}
    found: str = target.unfit(machine, task, decides, objective)
    return found


def settings_for(algo: Node, task: Node) -> str | None:
    """Words with which an algorithm solves a task, beside the usual ones: the fewest; None where no option helps. Usual
    are the machine of conf/config.yaml, and its cost model or, of a task which that does not price, the first one."""
    return next((" ".join(words) for words, _, _ in _fitting(algo, task)), None)


def _advice(config: Mapping[str, Any]) -> str:
    """Words after which the configured algorithm solves its task, beside those of the configuration."""
    for words, cost, machine in _fitting(config["algo"], config["task"]):
        named = {word.partition("=")[0] for word in words}
        said = words if "cost" in named or cost["name"] == config["cost"]["name"] else [f"cost={cost['name']}", *words]
        moved = "machine" not in named and machine != config["machine"]["name"]
        return " ".join([*said, f"machine={machine}"] if moved else said)
    return ""


def _fitting(algo: Node, task: Node) -> Iterator[tuple[list[str], Node, str]]:
    """The choices with which an algorithm solves a task."""
    for words, cost, machine in _choices(task):
        posed = {**task, "fuse": False} if UNFUSED in words else task
        if not lacking(algo, {"task": posed, "cost": cost, "machine": registry.option("machine", machine)}):
            yield words, cost, machine


def _choices(task: Node) -> Iterator[tuple[list[str], Node, str]]:
    """(words, cost, machine) that price a task, the usual ones first, then those that take the fewest words."""
    first = _usual_cost(task)
    yield [], registry.option("cost", first), usual("machine")
    found: list[tuple[list[str], Node, str]] = []
    for machine in (usual("machine"), *MACHINES):
        words = [] if machine == usual("machine") else [f"machine={machine}"]
        for cost in sorted(_pricing(task), key=lambda name: name != first):
            node, named = registry.option("cost", cost), [] if cost == first else [f"cost={cost}"]
            if task.get("fuse") and target_of(node, "cost").op_by_op:
                named.append(UNFUSED)
            found.append(([*named, *words], node, machine))
            others = [one for one in get_args(Objective) if node.get("objective") not in (None, one)]
            found += [
                ([*named, f"cost.objective={one}", *words], {**node, "objective": one}, machine) for one in others
            ]
    yield from sorted(found, key=lambda one: len(one[0]))


def _pricing(task: Node) -> list[str]:
    return [name for name, cost in _classes("cost").items() if not unread(cost, task)]


def _usual_cost(task: Node) -> str:
    cost = usual("cost")
    fits = not unread(target_of(registry.option("cost", cost), "cost"), task)
    return cost if fits else next(iter(_pricing(task)), cost)


@cache
def usual(group: str) -> str:
    """The option of a group in conf/config.yaml."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"), resolve=False)
    return next(str(entry[group]) for entry in config["defaults"] if group in entry and isinstance(entry, dict))


def check_reads(config: Mapping[str, Any]) -> None:
    """Raises Incompatible, in one sentence with the alternatives, when a cost model does not read the task's decisions,
    or reads choices that it does not decide."""
    for group in ("cost", "judge"):
        wrong = unread(target_of(config[group], group), config["task"])
        if wrong:
            fitting = _or_none(_pricing(config["task"]))
            raise Incompatible(f"{group}={config[group]['name']} {wrong}. Cost models for it: {fitting}.")


def unread(cost: type[CostModel], task: Node) -> str:
    """The misfit of a cost model and the configured task; empty when they fit."""
    target: type[Task] = target_of(task, "task")
    decided = target.roles_of(task)
    choices = {name for name, role in decided.items() if role is Role.CHOICE}
    beside = choices - cost.reads
    if cost.prices_programs and not target.makes_programs:
        return f"prices programs, whatever their plan, so that only rewriting counts, not task={task['name']}"
    if beside or (decided and not cost.reads & {*choices, *decided.values()}):
        return f"does not read {', '.join(sorted(beside or decided))}, which task={task['name']} decides"
    missing = {name for name in cost.reads if isinstance(name, str)} - cost.assumes - choices
    if missing:
        return f"reads {', '.join(sorted(missing))}, which task={task['name']} does not decide"
    if target.needs and cost.needs and not _givers(target.needs | cost.needs):
        both = f"{', '.join(sorted(cost.needs))}, task={task['name']} {', '.join(sorted(target.needs))}"
        return f"needs graphs that carry {both}, and no data set has both"
    return ""


def _givers(needs: frozenset[str]) -> list[str]:
    """Data sets whose graphs carry all that is needed."""
    return [name for name, one in _classes("dataset").items() if needs <= one.gives]


def check_unused(config: Mapping[str, Any]) -> None:
    """Raises UsageError for unknown keys of groups that not every cell builds: the yaml file has the known ones."""
    for group in ("encoder", "trainer"):
        node = config[group]
        if node["name"] not in registry.options(group):
            continue
        known = registry.option(group, node["name"])
        for key in node:
            if key not in known:
                valid = ", ".join(k for k in known if k not in ("_target_", "name"))
                raise UsageError(f"{group}.{key} does not exist; keys of {group}={node['name']}: {valid}")


def refusal(algo: str, config: Mapping[str, Any]) -> str:
    """Why the algorithm of that name cannot solve the configured task at these prices; empty when it can."""
    node, task = registry.option("algo", algo), config["task"]
    wrong = mismatch(target_of(node, "algo"), task)
    if wrong is not None:
        return f"algo={algo} {wrong[0]}; task={task['name']} {wrong[1]}"
    lacks = lacking(node, config)
    return f"algo={algo} {lacks}" if lacks else ""


def with_peers(config: Any) -> Any:
    """The composed configuration of a single run, with those that it is compared with. Where it does not say, these are
    the default and the strongest search of its task that fits (conf/strongest.yaml)."""
    if config.get("compare") is not None:
        return config
    from omegaconf import OmegaConf

    plain: Any = OmegaConf.to_container(config, resolve=True)
    with suppress(UserError):  # errors of the configuration are raised when it is built
        own, default = registry.base("algo", plain["algo"]), [] if refusal("default", plain) else ["default"]
        plain["compare"] = [name for name in [*default, *strongest(plain)] if name != own]
    return OmegaConf.create(plain)


def strongest(config: Mapping[str, Any]) -> list[str]:
    """The strongest search without learning that fits the configuration (conf/strongest.yaml), or none."""
    task, cost = (registry.base(group, config[group]) for group in ("task", "cost"))
    known: dict[str, list[str]] = yaml.safe_load((CONF / "strongest.yaml").read_text())
    return [name for name in known.get(f"{task}/{cost}", known.get(task, [])) if not refusal(name, config)][:1]


def recommended(config: Mapping[str, Any]) -> tuple[str, bool]:
    """(the algorithm to take, whether with the policy that ships) for the configuration: conf/recommended.yaml."""
    task, cost = (registry.base(group, config[group]) for group in ("task", "cost"))
    known: dict[str, str] = yaml.safe_load((CONF / "recommended.yaml").read_text())
    if task in known and cost == "simulator" and config["cost"]["objective"] == "runtime":
        return known[task], True
    return next(iter(strongest(config)), "default"), False


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


def _tasks() -> dict[str, Node]:
    return {name: registry.option("task", name) for name in registry.options("task")}


def fits() -> dict[str, dict[str, str]]:
    """Algorithm -> task that it can solve -> words that this takes beside the usual ones, in the order of the names."""
    tasks, found = _tasks(), dict[str, dict[str, str]]()
    for name, algo in _classes("algo").items():
        node, fitting = registry.option("algo", name), [t for t in tasks if mismatch(algo, tasks[t]) is None]
        found[name] = {task: words for task in fitting if (words := settings_for(node, tasks[task])) is not None}
    return found


def matrix() -> str:
    """Markdown: one line per algorithm, one column per task."""
    tasks, algos = registry.options("task"), _classes("algo")
    lines = [f"| algo | {' | '.join(tasks)} |", f"|---|{'---|' * len(tasks)}"]
    for name, fitting in fits().items():
        cells = [(f"`{fitting[task]}`" if fitting[task] else "yes") if task in fitting else "-" for task in tasks]
        lines.append(f"| {name}{' (learns)' if learns(algos[name]) else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def families() -> str:
    """Markdown: `matrix` in few lines. Algorithms of the same tasks share a line; NAME* also stands for its variants
    NAME_..., where these fit the same tasks and learn as it does."""
    classes = _classes("algo")
    algos = {name: (tuple(fitting.items()), learns(classes[name])) for name, fitting in fits().items()}
    lines: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for name, same in algos.items():
        if any(name.startswith(f"{other}_") and algos[other] == same for other in algos):
            continue
        variants = any(other.startswith(f"{name}_") and algos[other] == same for other in algos)
        shown = f"{name}*" if variants else name
        for words in dict.fromkeys(words for _, words in same[0]):
            tasks = tuple(task for task, needed in same[0] if needed == words)
            lines.setdefault((tasks, words), []).append(f"**{shown}**" if same[1] else shown)
    rows = sorted(lines.items(), key=lambda line: (line[0][1] != "", -len(line[0][0]), line[0]))
    table = [
        f"| {', '.join(tasks)}{f' with `{words}`' if words else ''} | {', '.join(names)} |"
        for (tasks, words), names in rows
    ]
    return "\n".join(["| tasks | algorithms |", "|---|---|", *table])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="graphopt compat", description="Which algorithms fit which tasks.")
    parser.add_argument("--families", action="store_true", help="in few lines: algorithms of the same tasks share one")
    print(families() if parser.parse_args(arguments).families else matrix())
    return 0
