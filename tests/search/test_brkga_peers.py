"""BRKGA that starts from heuristics: seeds come first, proposals lean as they say, neutral ones are uniform."""

from dataclasses import replace

import numpy as np
import pytest

from graphopt.config.construct import construct
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.datasets.layered import layered_graph
from graphopt.errors import ConfigError
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import Problem
from graphopt.search.genetic.brkga_informed import BrkgaInformed, Proposal, parameters
from graphopt.search.heuristics.gp_dfs import PartitionDepthFirst
from graphopt.search.heuristics.rules import SchedulingInstance, place_spectral
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.tasks.joint import Joint
from graphopt.tasks.keys import KeyRole
from graphopt.utils import registry

MACHINE = Machine(name="m", devices=(Device(), Device(), Device()), link_bandwidth=1e3)
TASK = Joint(name="t", machine=MACHINE, levels=16, fuse=False, max_ops=64, max_inputs=16, max_duplicates=8)
GRAPH = layered_graph(120, np.random.default_rng(4), "g")
NEUTRAL = Proposal(
    placement=0.5, placement_concentration=2.0, order="bottom_level", priorities=0.0, priority_concentration=2.0
)


def simulator(objective="runtime") -> Simulator:
    return Simulator(name="s", machine=MACHINE, objective=objective, threads=1)


def algo(name: str, **changes: object):
    return construct(registry.option("algo", name) | changes, "algo", {})


def test_the_first_population_holds_every_heuristic() -> None:
    problem = Problem(GRAPH, TASK, simulator(), evals=100)
    keys = heuristic_keys(problem)
    best = problem.cost_keys(keys).min()
    solved, _ = solve(algo("brkga_seeded"), GRAPH, TASK, simulator(), evals=len(keys))
    assert solved.best_cost == min(best, problem.initial_cost)


def test_a_neutral_proposal_is_plain_brkga_number_by_number() -> None:
    neutral = BrkgaInformed(name="i", evolution=algo("brkga").evolution, runtime=NEUTRAL, peak_memory=NEUTRAL)
    ours, plain = (solve(a, GRAPH, TASK, simulator(), evals=700, seed=3)[0] for a in (neutral, algo("brkga")))
    assert [(s.evals, s.cost) for s in ours.trace] == [(s.evals, s.cost) for s in plain.trace]


def test_proposals_lean_to_the_partition_and_to_the_order() -> None:
    problem = Problem(GRAPH, TASK, simulator(), evals=100)
    layout, device = TASK.layout(GRAPH), place_spectral(SchedulingInstance(problem.graph, problem.task), "time")
    proposal = replace(NEUTRAL, placement=0.75, placement_concentration=4.0, priorities=0.5, priority_concentration=8.0)
    alpha, beta = parameters(problem, proposal)
    mean, concentration = alpha / (alpha + beta), alpha + beta
    affinity = layout.role == KeyRole.AFFINITY
    own = layout.device == device[layout.op]
    assert (mean[affinity & own] == 0.75).all() and (mean[affinity & ~own] == 0.25).all()
    assert np.allclose(concentration[affinity], 4.0) and np.allclose(concentration[~affinity], 8.0)
    source, target, _ = GRAPH.edges
    priority = mean[layout.role == KeyRole.PRIORITY]
    assert (priority[source] >= priority[target]).all()  # bottom levels fall along edges
    assert priority.min() == pytest.approx(0.25, abs=0.02) and priority.max() == pytest.approx(0.75, abs=0.02)
    sends = layout.role == KeyRole.TRANSFER
    assert np.array_equal(mean[sends], priority[layout.op[sends]])


def test_each_objective_has_its_own_proposal() -> None:
    sharp = replace(NEUTRAL, placement=0.9, placement_concentration=16.0)
    both = BrkgaInformed(name="i", evolution=algo("brkga").evolution, runtime=sharp, peak_memory=NEUTRAL)
    plain = algo("brkga")
    for objective, same in (("runtime", False), ("peak_memory", True)):
        ours, theirs = (solve(a, GRAPH, TASK, simulator(objective), evals=200)[0] for a in (both, plain))
        assert (ours.trace[-1].cost == theirs.trace[-1].cost) == same


def test_a_partition_is_one_evaluation_per_setting() -> None:
    pytest.importorskip("pymetis", reason="the solvers extra is not installed")
    tries = PartitionDepthFirst(name="p", balance=["auto", "time", "bytes"], imbalance=[0.03, 0.2])
    for budget, spent in ((1, 1), (50, 4)):  # auto is time here
        assert solve(tries, GRAPH, TASK, simulator(), evals=budget)[0].evals == spent


def test_without_metis_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"pip install -e .\[solvers\]"):
        solve(algo("gp_dfs"), GRAPH, TASK, simulator(), evals=1)


def test_unknown_balances_are_refused() -> None:
    with pytest.raises(ConfigError, match="balance"):
        PartitionDepthFirst(name="p", balance=["colour"], imbalance=[0.1])
