"""From configuration to objects: flat, and in one visible order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from graphopt.core.errors import ConfigError
from graphopt.core.machine import Machine
from graphopt.core.utils import registry
from graphopt.graphs.dataset import Dataset
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import Solver
from graphopt.problems.problem import Task
from graphopt.run.config import compatibility
from graphopt.run.config.construct import arguments_of, construct, convert, target_of
from graphopt.run.config.suggested_machine import warn_of_other_machine


@dataclass(frozen=True)
class Parts:
    """Everything that one cell is made of."""

    dataset: Dataset
    machine: Machine
    task: Task
    cost: CostModel  # trained and searched on
    judge: CostModel  # re-prices the winner
    algo: Solver[Any]
    compared: tuple[Solver[Any], ...]  # further optimisers, evaluated on the same graphs
    refused: dict[str, str]  # name -> why, of those that were to be compared and do not fit
    learns: bool  # `algo` is a `Learner`


def build(config: Mapping[str, Any], held: Dataset | None = None) -> Parts:
    """Checks that the chosen classes fit, then makes dataset, machine, task, cost, judge, encoder, algorithm, in order.

    config: the resolved configuration as plain containers. held: a data set that is there already, of the class that
    the configuration names. Raises Incompatible before anything is made.
    """
    compatibility.check_unused(config)
    compatibility.check(config)
    seed = int(config["seed"])
    dataset: Dataset = held or construct(config["dataset"], "dataset", {"seed": seed})
    machine: Machine = construct(config["machine"], "machine")
    warn_of_other_machine(dataset, machine)
    task: Task = construct(config["task"], "task", {"machine": machine})
    around = {"machine": machine, "task": task}
    cost: CostModel = construct(config["cost"], "cost", around)
    judge = judge_of(config, cost, around)
    around |= {"cost": cost, "dataset": dataset, "seed": seed}
    learns = compatibility.learns(target_of(config["algo"], "algo"))
    algo: Solver[Any]
    if learns:
        from graphopt.learn.encoders.encoder import MOST, Allowance

        with Allowance(MOST):  # raises TooLarge before the network takes more memory than one may
            algo = construct(config["algo"], "algo", {**around, "encoder": encoder(config, task)})
    else:
        algo = construct(config["algo"], "algo", around)
    compared, refused = list[Solver[Any]](), dict[str, str]()
    names: list[str] = convert(config["compare"] or [], list[str], "compare")
    for name in names:
        why = compatibility.refusal(name, config)
        if why:
            refused[name] = why
            continue
        node = registry.option("algo", name)
        if compatibility.learns(target_of(node, "algo")):
            raise ConfigError(f"compare: {name} has to be trained; give it a cell of its own with algo={name}")
        compared.append(construct(node, f"algo {name}", around))
    return Parts(dataset, machine, task, cost, judge, algo, tuple(compared), refused, learns)


def judge_of(config: Mapping[str, Any], cost: CostModel, around: Mapping[str, Any]) -> CostModel:
    """The cost model itself where both are configured alike, so that they share results. Raises ConfigError when they
    price different things."""
    judge: CostModel = cost if config["judge"] == config["cost"] else construct(config["judge"], "judge", around)
    if judge.objective != cost.objective:
        raise ConfigError(
            f"cost prices {cost.objective}, judge prices {judge.objective}; "
            f"set judge.objective={cost.objective} as well, or choose another cost@judge=..."
        )
    return judge


def encoder(config: Mapping[str, Any], task: Task) -> Any:
    """The network that reads graphs, with room for the learner's own inputs per op; None for a learner that takes none.
    Seeds torch first, so that equal seeds start from equal weights."""
    import torch

    torch.manual_seed(int(config["seed"]))
    learner = target_of(config["algo"], "algo")
    if "encoder" not in arguments_of(learner):
        return None
    return construct(config["encoder"], "encoder", {"extra_width": learner.extra_width(task)})


def stored_config(config: Mapping[str, Any], parts: Parts) -> dict[str, Any]:
    """The configuration that decisions keep: with all that pricing them again elsewhere needs."""
    models = {"cost": parts.cost, "judge": parts.judge}
    return {**config, **{key: {**config[key], **model.stored()} for key, model in models.items()}}


def machine_task_costs(config: Mapping[str, Any]) -> tuple[Machine, Task, CostModel, CostModel]:
    """The parts that price a stored decision again: machine, task, cost and judge. Raises Incompatible."""
    machine: Machine = construct(config["machine"], "machine")
    task: Task = construct(config["task"], "task", {"machine": machine})
    compatibility.check_reads(config)
    around = {"machine": machine, "task": task}
    cost: CostModel = construct(config["cost"], "cost", around)
    return machine, task, cost, judge_of(config, cost, around)
