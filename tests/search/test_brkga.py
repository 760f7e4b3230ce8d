"""BRKGA: its operators, its populations, and other implementations of it."""

import itertools
from collections import Counter

import numpy as np
import pytest
from cells import joint, opened, option, simulator, story
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import Generator
from numpy.typing import NDArray
from toy import ToyCost, ToyTask, toy_graph, toy_problem

from graphopt.core.errors import ConfigError
from graphopt.core.machine import Device, Machine
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.regal import Regal
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole, devices, digests
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import OutOfBudget
from graphopt.search.genetic import brkga, evolution
from graphopt.search.genetic.brkga import Proposal, around
from graphopt.search.genetic.evolution import Evolution, evolve, priced_by, uniform_keys
from graphopt.search.heuristics.rules import SchedulingInstance, order_bottom_level, place_spectral
from graphopt.search.heuristics.schedules import PartitionDepthFirst
from graphopt.search.heuristics.starts import heuristic_keys

# --- BRKGA: every parent can be named, because every first chromosome and mutant carries its number in all its genes.

F32 = NDArray[np.float32]
REGAL = {key: value for key, value in registry.option("dataset", "regal").items() if key not in ("_target_", "room")}
SMALL = Evolution(population=20, elites=0.25, mutants=0.2, elite_bias=0.7)
ELITES, MUTANTS, CHILDREN = 5, 4, 11


class Numbers:
    """A sampler: all genes of the n-th chromosome that it draws are n."""

    def __init__(self, genes: int) -> None:
        self.genes, self.count = genes, 0

    def __call__(self, rng: Generator, count: int) -> F32:
        numbers = np.arange(self.count, self.count + count, dtype=np.float32)
        self.count += count
        return np.repeat(numbers[:, None], self.genes, 1)


class Recorder:
    """A price that keeps what it is asked: generations of chromosomes and scores; out of budget after the last."""

    def __init__(self, generations: int, score=lambda keys, rng: rng.random(len(keys))) -> None:
        self.left, self.score, self.rng = generations, score, np.random.default_rng(99)
        self.keys: list[F32] = []
        self.scores: list[NDArray[np.float64]] = []

    def __call__(self, keys: F32) -> NDArray[np.float64]:
        if self.left == 0:
            raise OutOfBudget
        self.left -= 1
        self.keys.append(keys.copy())
        self.scores.append(self.score(keys, self.rng))
        return self.scores[-1]

    def best(self, generation: int, count: int) -> F32:
        """The best chromosomes priced before a generation; of equal scores the earlier."""
        scores, keys = np.concatenate(self.scores[:generation]), np.concatenate(self.keys[:generation])
        return keys[np.argsort(scores, kind="stable")[:count]]


def record(generations: int, sampler, evolution: Evolution = SMALL, seed: int = 0, score=None, **options) -> Recorder:
    seen = Recorder(generations) if score is None else Recorder(generations, score)
    with pytest.raises(OutOfBudget):
        evolve(seen, sampler, np.random.default_rng(seed), evolution, **options)
    return seen


def rows(keys: F32) -> set[bytes]:
    return {row.tobytes() for row in keys}


def test_the_first_generation_is_sampled_and_later_ones_are_children_then_mutants() -> None:
    seen = record(4, Numbers(6))
    assert [len(keys) for keys in seen.keys] == [20, 15, 15, 15]
    assert seen.keys[0][:, 0].tolist() == list(range(20))
    for generation in (1, 2, 3):
        first = 20 + MUTANTS * (generation - 1)
        mutants = seen.keys[generation][CHILDREN:]
        assert (mutants == np.arange(first, first + MUTANTS)[:, None]).all()


def test_a_child_mixes_one_elite_and_one_other() -> None:
    seen = record(2, Numbers(400), Evolution(population=200, elites=0.25, mutants=0.2, elite_bias=0.7))
    elites = set(seen.best(1, 50)[:, 0].tolist())
    pairs = set()
    for child in seen.keys[1][:110]:
        (mother, share), (father, _) = Counter(child.tolist()).most_common()
        assert mother in elites and father not in elites
        assert 230 < share < 330  # 280 of 400 genes, within 5 standard deviations
        pairs.add((mother, father))
    assert len(pairs) > 100  # of 7500
    assert len({mother for mother, _ in pairs}) > 35 and len({father for _, father in pairs}) > 60


def test_elites_survive() -> None:
    """With bias 1 children are copies of their mothers: of the best of all seen so far."""
    evolution = Evolution(population=20, elites=0.25, mutants=0.2, elite_bias=1.0)
    seen = record(12, Numbers(3), evolution)
    for generation in range(1, 12):
        assert rows(seen.keys[generation][:CHILDREN]) <= rows(seen.best(generation, ELITES))


def test_each_gene_has_its_own_bias() -> None:
    bias = np.array([0.0, 0.1, 0.5, 0.5, 0.7, 0.99, 1.0], np.float32)
    evolution = Evolution(population=8000, elites=0.25, mutants=0.0, elite_bias=0.7)
    seen = record(2, Numbers(len(bias)), evolution, bias=bias)
    elites = seen.best(1, 2000)[:, 0]
    from_elite = np.isin(seen.keys[1], elites)
    assert (np.abs(from_elite.mean(0) - bias) <= 5 * np.sqrt(bias * (1 - bias) / 6000)).all()
    together = from_elite[:, 2] & from_elite[:, 3]  # two genes with bias 1/2 are inherited independently
    assert abs(together.mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 6000)


def test_seeds_take_the_place_of_first_draws() -> None:
    seeds = np.full((3, 6), -1.0, np.float32)
    seen = record(1, Numbers(6), seeds=seeds)
    assert (seen.keys[0][:3] == -1).all() and seen.keys[0][3:, 0].tolist() == list(range(3, 20))
    many = record(1, Numbers(6), seeds=np.full((50, 6), -1.0, np.float32))
    assert (many.keys[0] == -1).all() and len(many.keys[0]) == 20


def test_other_samplers_meet_the_same_numbers_and_the_same_mates() -> None:
    """Squaring commutes with crossover, so all that a squaring sampler leads to is the square of the plain run's."""

    def squared(rng: Generator, count: int) -> F32:
        return rng.random((count, 9), np.float32) ** 2

    plain, other = record(5, uniform_keys(9), seed=4), record(5, squared, seed=4)  # scores do not look at keys
    for mine, its in zip(plain.keys, other.keys):
        assert np.array_equal(mine**2, its)


def test_the_stream_of_random_words_is_splitmix64() -> None:
    """The generator's published first outputs for seed 1234567: it adds the constant before each word."""
    words = np.empty(3, np.uint64)
    evolution._splitmix(np.uint64(1234567 + 0x9E3779B97F4A7C15), words)
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize(("ops", "choices"), [(4, 4), (6, 3)])
def test_finds_the_optimum_of_small_problems(ops: int, choices: int) -> None:
    problem, cost = toy_problem(ops, {"device": choices}, 3000)
    evolved(problem, SMALL)
    assert problem.best_cost == cost.optimum()


def evolved(problem: AssignProblem, evolution: Evolution) -> AssignProblem:
    solver = option("algo", "brkga")
    solver.evolution = evolution
    with pytest.raises(OutOfBudget):
        solver.solve(problem)
    return problem


def test_an_infeasible_chromosome_ranks_behind_every_feasible_one_by_its_excess() -> None:
    graph = toy_graph(6)
    cost = ToyCost(graph, 3, bound=2.0)
    problem = AssignProblem(graph, ToyTask({"device": 3}), cost, evals=10_000)
    every = np.array(list(itertools.product(range(3), repeat=6)), np.int16)
    score = priced_by(problem)((every + 0.5).astype(np.float32) / 3)
    own, total = cost.unary[np.arange(6), every].sum(1), cost.totals(every)
    feasible = own <= 2.0
    assert 0 < feasible.sum() < len(every)
    assert np.array_equal(score[feasible], total[feasible])
    assert score[feasible].max() < score[~feasible].min()
    assert np.array_equal(np.argsort(score[~feasible], kind="stable"), np.argsort(own[~feasible], kind="stable"))


THREE = Machine(name="m", devices=(Device(vector_flops=1e9, bandwidth=1e9),) * 3, link_bandwidth=1e8)


def layered_problem(objective: str, threads: int, evals: int = 300, seconds: float = np.inf) -> AssignProblem:
    cost, graph = simulator(THREE, objective, threads), layered_graph(60, np.random.default_rng(5), "layered")
    return AssignProblem(graph, joint(THREE, levels=4), cost, evals=evals, seconds=seconds, seed=7)


@pytest.mark.parametrize("objective", ["runtime", "peak_memory"])
def test_results_depend_on_the_seed_alone(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on threads, nor on how many chromosomes are priced at a time."""
    one = evolved(layered_problem(objective, 1), SMALL)
    assert story(evolved(layered_problem(objective, 2), SMALL)) == story(one)
    monkeypatch.setattr(evolution, "KEYS_PER_CALL", 1)
    again = evolved(layered_problem(objective, 1), SMALL)
    assert story(again) == story(one) and again.distinct == one.distinct
    costs = [cost for _, cost in story(one)]
    assert all(later < earlier for earlier, later in itertools.pairwise(costs)) and len(costs) > 1


def test_the_clock_is_looked_at_within_a_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock is a tenth of a second later: the budget of a second ends inside the first generation."""
    now = itertools.count()
    problem = layered_problem("runtime", 1, evals=10_000, seconds=1.0)
    monkeypatch.setattr(evolution, "KEYS_PER_CALL", 1)
    monkeypatch.setattr("graphopt.problems.problem._clock", lambda: problem._start + 0.1 * next(now))
    evolved(problem, SMALL)
    assert 0 < problem.evals < SMALL.population


def test_shares_that_leave_no_room_are_refused() -> None:
    for population, elites, mutants in ((100, 0.5, 0.5), (10, 0.95, 0.1)):
        with pytest.raises(ConfigError, match="leaves no room for children"):
            Evolution(population=population, elites=elites, mutants=mutants, elite_bias=0.7)


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**31), st.sampled_from([np.float32, np.float64]))
def test_the_largest_affinity_wins_and_the_first_of_equals(count: int, ops: int, seed: int, kind: type) -> None:
    rng = np.random.default_rng(seed)
    affinity = (rng.integers(0, 4, (3, ops * count + 5)) / 4).astype(kind)[:, 2 : 2 + ops * count]
    expected = affinity.reshape(3, ops, count).argmax(2)
    assert np.array_equal(devices(affinity, count), expected)


@settings(deadline=None)  # the first call compiles
@given(st.integers(1, 40), st.integers(0, 2**31))
def test_digests_tell_rows_apart(length: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    row = rng.random(length, np.float32)
    near = np.repeat(row[None], length + 1, 0)
    near[np.arange(length), np.arange(length)] = np.nextafter(row, np.float32(2))
    found = digests(np.concatenate([near, near, near.astype(np.float32)[:, ::-1]]))
    assert len(set(found[: length + 1].tolist())) == length + 1
    assert np.array_equal(found[: length + 1], found[length + 1 : 2 * length + 2])


@pytest.mark.parametrize("seed", range(4))
def test_the_best_plan_still_costs_what_was_found_after_many_generations(seed: int) -> None:
    """Chromosomes live in buffers that later generations overwrite; the plan that is kept must not."""
    task = option("task", "placement_scheduling", {"machine": option("machine", "gpu2")})
    graph = Regal(room=None, **REGAL).draw("watts_strogatz", 50, "train", seed)
    problem = evolved(opened(graph, task, "peak_memory", evals=2000, seed=seed), SMALL)
    assert problem.best_plan is not None
    assert problem._cost.price(problem.best_plan).cost[0] == problem.best_cost


# --- BRKGA that starts from heuristics: seeds come first, proposals lean as they say, neutral ones are uniform.

MACHINE = Machine(name="m", devices=(Device(), Device(), Device()), link_bandwidth=1e3)
TASK = joint(MACHINE)
GRAPH = layered_graph(120, np.random.default_rng(4), "g")
NEUTRAL = Proposal(0.5, 2.0, order_bottom_level, 0.0, 2.0)


def solved(algo: str, evals: int, objective: str = "runtime", seed: int = 0, **changes: object) -> AssignProblem:
    made = option("algo", algo, **changes)
    return solve(made, GRAPH, TASK, simulator(MACHINE, objective), evals=evals, seed=seed)[0]


def test_the_first_population_holds_every_heuristic() -> None:
    problem = opened(GRAPH, TASK)
    keys = heuristic_keys(problem)
    best = problem.cost_keys(keys).min()
    assert solved("brkga", len(keys), start="heuristic").best_cost == min(best, problem.initial_cost)


def test_brkga_begins_with_what_the_local_search_has_found() -> None:
    first = solved("regal_local", 400, seed=2, start="heuristic")
    both = solved("brkga", 900, seed=2, local_evals=300)
    batch = option("algo", "brkga").local.batch
    switch = next(at for at in range(300, 400) if (at - len(heuristic_keys(both))) % batch == 0)
    kept = [step for step in story(first) if step[0] <= switch]
    assert story(both)[: len(kept)] == kept
    assert both.evals == 900
    assert both.best_cost <= kept[-1][1]


@pytest.mark.parametrize("objective", ["runtime", "peak_memory"])
def test_a_neutral_proposal_is_plain_brkga_number_by_number(objective: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each objective has its own proposal."""
    monkeypatch.setattr(brkga, "RUN_TIME" if objective == "runtime" else "PEAK_MEMORY", NEUTRAL)
    for asked, same in ((objective, True), ("peak_memory" if objective == "runtime" else "runtime", False)):
        ours, plain = (story(solved("brkga", 700, asked, 3, start=start)) for start in ("informed", "random"))
        assert (ours == plain) == same


def test_proposals_lean_to_the_partition_and_to_the_order() -> None:
    problem = opened(GRAPH, TASK)
    layout, device = TASK.layout(GRAPH), place_spectral(SchedulingInstance(problem.graph, problem.task), "time")
    proposal = Proposal(0.75, 4.0, order_bottom_level, 0.5, 8.0)
    alpha, beta = around(problem, proposal)
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


def test_a_partition_is_one_evaluation_per_setting() -> None:
    pytest.importorskip("pymetis", reason="the solvers extra is not installed")
    tries = PartitionDepthFirst(name="p", balance=["auto", "time", "bytes"], imbalance=[0.03, 0.2])
    for budget, spent in ((1, 1), (50, 4)):  # auto is time here
        assert solve(tries, GRAPH, TASK, simulator(MACHINE), evals=budget)[0].evals == spent


def test_partitions_that_cannot_be_made_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="balance"):
        PartitionDepthFirst(name="p", balance=["colour"], imbalance=[0.1])
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(ConfigError, match=r"pip install -e .\[solvers\]"):
        solved("gp_dfs", 1)
