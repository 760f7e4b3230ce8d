"""Tasks, cost models and options as tests build them, with caps that seldom bind."""

from typing import Any

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.utils import registry
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.tasks.fusion import Fusion
from graphopt.problems.tasks.placement import Joint, Placement, Scheduling
from graphopt.run.config.construct import construct

CAPS = {"max_ops": 64, "max_inputs": 16, "max_duplicates": 8}


def identical(count: int, **fields: Any) -> Machine:
    """So many devices of one operation a second; transfers take no time, but for `fields` of the machine."""
    return Machine(name="identical", devices=(Device(),) * count, **fields)


def simulator(machine: Machine, objective: Any = "runtime", threads: int = 1) -> Simulator:
    return Simulator(name="s", machine=machine, objective=objective, threads=threads)


def joint(machine: Machine, levels: int = 16, fuse: bool = False) -> Joint:
    return Joint(name="joint", machine=machine, levels=levels, fuse=fuse, **CAPS)


def placement(machine: Machine, fuse: bool = False) -> Placement:
    return Placement(name="placement", machine=machine, fuse=fuse, **CAPS)


def scheduling(machine: Machine, place: Any = "single", levels: int = 16, fuse: bool = False) -> Scheduling:
    return Scheduling(name="scheduling", machine=machine, levels=levels, placement=place, fuse=fuse, **CAPS)


def fusion(machine: Machine, decision: Any = "binary", levels: int = 2, numerics: Any = None, **caps: int) -> Fusion:
    how = {"decision": decision, "levels": levels, "numerics": numerics, "device": "cpu"}
    return Fusion(name="fusion", machine=machine, **how, **(CAPS | caps))


def option(group: str, name: str, around: dict[str, Any] | None = None, **changes: Any) -> Any:
    """An option as its yaml file says, but for `changes`; around: the objects that its class asks for."""
    return construct(registry.option(group, name) | changes, group, around or {})


def opened(graph: Graph, task: AssignTask, objective: Any = "runtime", evals: int = 100,
           seed: int = 0) -> AssignProblem:  # fmt: skip
    """A problem that the simulator of the task's machine prices."""
    return AssignProblem(graph, task, simulator(task.machine, objective), evals=evals, seed=seed)


def story(problem: Any) -> list[tuple[int, float]]:
    """Evaluations and cost of every improvement."""
    return [(step.evals, step.cost) for step in problem.trace]
