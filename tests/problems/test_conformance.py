"""Every algorithm on every task that it fits, as the yaml files say: budgets, plans, repetition. A new yaml file of
conf/task or conf/algo is tested without an edit here."""

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from graphopt.contests.tiling.tiling_contest import random_workload
from graphopt.contests.tiling.tiling_task import Tiling
from graphopt.contests.tiling.workload_files import graph_of_workload
from graphopt.core.errors import Unsolved
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.kernels import KernelLimits
from graphopt.core.machine import Machine
from graphopt.core.oracles import check
from graphopt.core.plan import Plans
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.problems.assignment import AssignProblem, AssignTask
from graphopt.problems.cost_model import CostModel, Flips, Prices
from graphopt.problems.optimizer import Optimizer, solve
from graphopt.problems.problem import Problem
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.ir.program_builder import ProgramBuilder
from graphopt.rewrite.rewrite_problem import Rewriting
from graphopt.run.config import compatibility
from graphopt.run.config.build import encoder
from graphopt.run.config.construct import construct, target_of

BUDGETS = (0, 1, 7, 50)
OF_STEPS = ("recompute", "sharding")  # of graphs of their own: tests/search/test_saved_sets.py, tests/contests
OF_SHARDING = ("sharding_search",)  # by the clock: tests/contests
OF_PROGRAMS = ("compiler_policy",)  # lowers programs that graphs carry: tests/search
OF_ORDERS = ("inductor_order", "order_walk")  # priced by cost=live_bytes alone: tests/search
OF_PIPELINES = ("load_balance",)  # balances the loads of a pipeline, and refuses other objectives
TINY: dict[str, Any] = {"width": 8, "layers": 1}  # of encoders, so that learners are quick
VARIANTS: dict[str, list[dict[str, Any]]] = {"fusion": [{"decision": "priority"}], "joint": [{"fuse": False}]}


def task_nodes() -> dict[str, dict[str, Any]]:
    """The yaml file of every task, and some with other settings."""
    nodes = {name: registry.option("task", name) for name in registry.options("task") if name not in OF_STEPS}
    changed = {
        f"{name}:{next(iter(change))}": nodes[name] | change for name, all_ in VARIANTS.items() for change in all_
    }
    return nodes | changed


@cache
def machine(name: str = "gpu2") -> Machine:
    made: Machine = construct(registry.option("machine", name), "machine")
    return made


@cache
def task_of(label: str, on: str = "gpu2") -> Any:
    made: AssignTask | Rewriting | Tiling = construct(task_nodes()[label], "task", {"machine": machine(on)})
    return made


@cache
def simulator(objective: str = "runtime", on: str = "gpu2") -> CostModel:
    node = registry.option("cost", "simulator") | {"threads": 1, "objective": objective}
    made: CostModel = construct(node, "cost", {"machine": machine(on)})
    return made


@cache
def graphs() -> tuple[Graph, Graph]:
    return layered_graph(50, np.random.default_rng(1), "one"), layered_graph(40, np.random.default_rng(2), "two")


def make(algo: str, label: str, network: str = "graphsage", **changes: Any) -> Optimizer:
    """The algorithm as its yaml file says, but for `changes`; untrained and with a tiny encoder if it learns."""
    node = registry.option("algo", algo) | changes
    if "effort" in node and not isinstance(node["effort"], dict):
        # of solvers: a limit that does not depend on the clock, so that they are quick and repeat
        node |= {"effort": 0.05}
    if algo == "brkga":  # with the local search before it; regal and gas are without
        node |= {"local_evals": 20}
    if "episode" in node:  # short ones
        node |= {"episode": node["episode"] | {"horizon": 5}}
    around: dict[str, Any] = {"machine": machine(), "task": task_of(label), "cost": simulator(), "seed": 0}
    if compatibility.learns(target_of(node, "algo")):
        tiny = {key: TINY.get(key, value) for key, value in registry.option("encoder", network).items()}
        around["encoder"] = encoder({"algo": node, "encoder": tiny, "seed": 0}, task_of(label))
    made: Optimizer = construct(node, "algo", around)
    return made


def fits(algo: str, label: str) -> bool:
    return compatibility.mismatch(target_of(registry.option("algo", algo), "algo"), task_nodes()[label]) is None


ALGOS = [algo for algo in registry.options("algo") if algo not in (*OF_ORDERS, *OF_PROGRAMS, *OF_SHARDING)]
LABELS = {algo: [label for label in task_nodes() if fits(algo, label)] for algo in ALGOS}
# Options of one class differ in values alone: that of the shortest name is tried on every task, the others on one.
CLASSES = {algo: registry.option("algo", algo)["_target_"] for algo in ALGOS}
FIRST = {CLASSES[algo]: algo for algo in sorted(ALGOS, key=len, reverse=True)}
FITTING = [(algo, label) for algo in ALGOS for label in LABELS[algo][: None if FIRST[CLASSES[algo]] == algo else 1]]
CELLS = [(algo, label) for algo, label in FITTING if isinstance(task_of(label), AssignTask)]
OTHERS = [cell for cell in FITTING if cell not in CELLS]
LEARNED = [algo for algo in dict.fromkeys(algo for algo, _ in CELLS)
           if compatibility.learns(target_of(registry.option("algo", algo), "algo"))]  # fmt: skip


class Counted(CostModel):
    """A cost model that counts every price it gives, whichever way it is asked."""

    def __init__(self, inner: CostModel) -> None:
        self.inner, self.name, self.objective, self.prices = inner, inner.name, inner.objective, 0

    def price(self, plans: Plans) -> Prices:
        self.prices += len(plans)
        return self.inner.price(plans)

    def flips(self, graph: Graph, inline: NDArray[np.bool_], limits: KernelLimits) -> Flips | None:
        found = self.inner.flips(graph, inline, limits)
        return None if found is None else CountedFlips(self, found)


class CountedFlips:
    def __init__(self, count: Counted, inner: Flips) -> None:
        self.count, self.inner = count, inner

    def price(self, ops: NDArray[np.int64]) -> NDArray[np.float64]:
        self.count.prices += len(ops)
        return self.inner.price(ops)

    def follow(self, requests: NDArray[np.uint8]) -> float:
        self.count.prices += 1
        return self.inner.follow(requests)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def run(
    optimizer: Optimizer, graph: Graph, label: str, evals: int, objective: str = "runtime"
) -> tuple[AssignProblem, int]:
    """(the solved problem, prices asked for besides the initial one's). Skips where an exact method says that it cannot
    solve it."""
    cost = Counted(simulator(objective))
    try:
        problem, _ = solve(optimizer, graph, task_of(label), cost, evals=evals, seed=3)
    except Unsolved as refusal:
        pytest.skip(str(refusal))
    return problem, cost.prices - 1 - (evals == 0)  # the harness prices the answer to a budget of 0


@pytest.mark.parametrize(("algo", "label"), CELLS, ids=lambda part: part)
def test_a_legal_cell(algo: str, label: str) -> None:
    optimizer = make(algo, label)
    for evals in BUDGETS:
        conforms(optimizer, graphs()[0], label, evals, "max_load" if algo in OF_PIPELINES else "runtime")


@pytest.mark.parametrize("algo", LEARNED)
@pytest.mark.parametrize("network", registry.options("encoder"))
def test_learners_with_every_encoder(algo: str, network: str) -> None:
    label = next(label for label in task_nodes() if fits(algo, label))
    conforms(make(algo, label, network), graphs()[0], label, 7)


@pytest.mark.parametrize(("algo", "label"), CELLS, ids=lambda part: part)
def test_a_legal_cell_priced_by_memory(algo: str, label: str) -> None:
    conforms(make(algo, label), graphs()[0], label, 7, "peak_memory")


def improving(problem: Problem) -> list[tuple[int, float]]:
    """(evaluations, cost) of every improvement."""
    steps = [(step.evals, step.cost) for step in problem.trace]
    assert steps[0] == (0, problem.initial_cost) and steps[-1][0] <= problem.evals
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(steps))
    return steps


def conforms(optimizer: Optimizer, graph: Graph, label: str, evals: int, objective: str = "runtime") -> None:
    torch.manual_seed(evals)
    problem, prices = run(optimizer, graph, label, evals, objective)
    assert problem.evals <= evals
    assert problem.evals == prices
    assert problem.distinct <= problem.evals
    assert check(problem.solution().plans, machine()) == []
    priced = simulator(objective).price(problem.solution().plans).cost[0]
    assert problem.best_cost == priced
    steps = improving(problem)
    if evals:
        assert problem.best_cost == steps[-1][1] <= problem.initial_cost
    torch.manual_seed(evals + 1)  # solving has its own generator, and leaves torch's alone
    state = torch.get_rng_state()
    again, _ = run(optimizer, graph, label, evals, objective)
    assert torch.equal(torch.get_rng_state(), state)
    assert steps == improving(again)
    assert np.array_equal(problem.best, again.best)
    assert problem.best.shape == (graph.num_ops, len(task_of(label).heads))


@pytest.mark.parametrize(("algo", "label"), CELLS, ids=lambda part: part)
def test_what_was_solved_before_does_not_matter(algo: str, label: str) -> None:
    """A fresh optimiser and one that has solved another graph give the same answer."""
    used, (graph, other) = make(algo, label), graphs()
    run(used, other, label, 7)
    first, second = (run(o, graph, label, 20)[0] for o in (used, make(algo, label)))
    assert improving(first) == improving(second)
    assert np.array_equal(first.best, second.best)


@pytest.mark.parametrize(("algo", "label"), CELLS, ids=lambda part: part)
def test_a_graph_without_choices_is_solved(algo: str, label: str) -> None:
    """One op: an output, so nothing to fuse."""
    b = GraphBuilder("one_op")
    x, y = b.tensor((8,)), b.tensor((8,))
    b.op("relu", [x], [y])
    b.output(y)
    conforms(make(algo, label), b.build(), label, 7)


@cache
def programs() -> tuple[Graph, Graph]:
    """Graphs that carry programs: products that share their input, convs with relus; and one without a rewrite."""
    b = ProgramBuilder()
    x, image = b.input((4, 8)), b.input((1, 4, 6, 6))
    convs = [b.op("relu", inputs=(b.conv(image, 4, 3),)) for _ in range(2)]
    many = b.build(b.linear(x, 6), b.op("relu", inputs=(b.linear(x, 6),)), b.op("add", inputs=tuple(convs)))
    b = ProgramBuilder()
    return graph_of(many, name="many"), graph_of(b.build(b.op("tanh", inputs=(b.input((3,)),))), name="one")


@cache
def workloads() -> tuple[Graph, Graph]:
    """Graphs that carry tiling problems, small enough for the exact search."""
    drawn = [
        random_workload(np.random.default_rng(seed), ops, [128, 256], 0.5, f"w{ops}") for seed, ops in ((1, 6), (2, 1))
    ]
    return graph_of_workload(drawn[0]), graph_of_workload(drawn[1])


@pytest.mark.parametrize(("algo", "label"), OTHERS, ids=lambda part: part)
def test_a_legal_cell_of_programs_or_tilings(algo: str, label: str) -> None:
    task = task_of(label)
    name, graphs = ("flops", programs()) if isinstance(task, Rewriting) else ("tile_time", workloads())
    cost: CostModel = construct(registry.option("cost", name), "cost", {"machine": machine(), "task": task})
    used: Any = make(algo, label)
    for graph in graphs:
        for evals in (0, 7):
            problem, _ = solve(used, graph, task, cost, evals=evals, seed=3)
            assert problem.distinct <= problem.evals <= evals
            assert problem.solution().violations() == []
            assert problem.best_cost == pytest.approx(cost.price(problem.solution().plans).cost[0], rel=1e-9)
            assert problem.bound <= problem.best_cost <= problem.initial_cost
            steps = improving(problem)
            fresh: Any = make(algo, label)
            again, _ = solve(fresh, graph, task, cost, evals=evals, seed=3)
            assert steps == improving(again)
            arrays, same = (solved.solution().decided.arrays() for solved in (problem, again))
            assert all(np.array_equal(arrays[key], same[key]) for key in arrays | same)


def test_the_matrix_is_not_empty() -> None:
    assert {label for _, label in FITTING} == set(task_nodes())
    assert {algo for algo, _ in FITTING} == set(ALGOS) - {"segments"}  # which solves training steps alone


@pytest.mark.parametrize("label", task_nodes())
def test_tasks_say_beforehand_what_they_decide(label: str) -> None:
    task = task_of(label)
    if isinstance(task, AssignTask):
        assert type(task).roles_of(task_nodes()[label]) == {head.name: head.role for head in task.heads}
