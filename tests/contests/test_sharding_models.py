"""Reduced models, bounds, regions and walks, against brute force on small instances."""

import numpy as np
import pytest

from graphopt.contests.sharding.annealing import HeatBath
from graphopt.contests.sharding.dual import ASCENTS, MemoryDual, Passing
from graphopt.contests.sharding.memory_profile import memory_profile
from graphopt.contests.sharding.pairwise import pairwise
from graphopt.contests.sharding.reducing import reduced, without_dear
from graphopt.contests.sharding.region_walk import RegionWalk
from graphopt.contests.sharding.regions import grow, leave, links, solve_region, space
from graphopt.contests.sharding.sharding_instances import random_tables
from graphopt.contests.sharding.sharding_search import PrimalSearch
from graphopt.contests.sharding.sharding_task import cheapest
from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables, price
from graphopt.graphs.readers.formats.iopddl import made_tables

SEEDS = range(12)


def instance(seed: int, nodes: int = 8) -> StrategyTables:
    return random_tables(np.random.default_rng(seed), nodes, 3, 0.3, 0.3)


def optimum(tables: StrategyTables) -> float:
    """Of all choices that fit."""
    return min(cost for cost, over in (price(tables, np.array(row)) for row in np.ndindex(*tables.counts)) if over == 0)


def counter(steps: int):  # type: ignore[no-untyped-def]
    """A clock that runs by how often it is asked."""
    asked = [0]

    def spent() -> float:
        asked[0] += 1
        return asked[0] / steps

    return spent


@pytest.mark.parametrize("seed", SEEDS)
def test_models_cost_what_instances_do(seed: int) -> None:
    tables, rng = instance(seed, 20), np.random.default_rng(seed)
    for model in (pairwise(tables, None), reduced(tables)):
        memory = memory_profile(model, tables)
        for _ in range(10):
            labels = rng.integers(0, model.counts)
            choice = model.choice(labels)
            cost, over = price(tables, choice)
            energy = model.energy(labels)
            assert np.isinf(energy) or energy == pytest.approx(cost, rel=1e-9)  # states of hyperedges may disagree
            worst = float((memory.used(labels) - memory.room).max(initial=-1.0))
            assert (worst > 0) == (over > 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reduced_model_keeps_an_optimum(seed: int) -> None:
    tables = instance(seed)
    model = reduced(tables)
    memory = memory_profile(model, tables)
    energies = [
        model.energy(np.array(labels))
        for labels in np.ndindex(*model.counts)
        if (memory.used(np.array(labels)) <= memory.room).all()
    ]
    assert min(energies) == optimum(tables) < IMPOSSIBLE


@pytest.mark.parametrize("seed", SEEDS)
def test_bounds_hold_and_equal_models_are_equal(seed: int) -> None:
    tables = instance(seed)
    model = reduced(tables)
    dual = MemoryDual(model, memory_profile(model, tables), float(tables.limit), ASCENTS[seed % 2])
    for _ in range(60):
        dual.step()
    best = optimum(tables)
    assert dual.bound <= best * (1 + 1e-9)
    unary, table, paid = dual.equal_model()
    rng = np.random.default_rng(seed)
    for _ in range(10):
        labels = rng.integers(0, model.counts)
        plain = model.energy(labels) + paid[model.ptr[:-1] + labels].sum()
        entries = model.table_ptr[:-1] + labels[model.first] * model.counts[model.second] + labels[model.second]
        assert np.isinf(plain) or plain == pytest.approx(unary[model.ptr[:-1] + labels].sum() + table[entries].sum())
    assert dual.bound > 0.5 * best


def test_message_passing_solves_trees() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        nodes = 7
        ends = [[int(rng.integers(n)), n] for n in range(1, nodes)]
        tables = made_tables("tree", np.zeros((nodes, 2), np.int64), [rng.integers(0, 9, 3) for _ in range(nodes)],
                             [np.zeros(3, np.int64)] * nodes, ends, [rng.integers(0, 9, 9) for _ in ends],
                             None)  # fmt: skip
        model = pairwise(tables, np.inf)
        passing = Passing(model)
        for _ in range(10):
            passing.sweep(model.unary, forward=False)
            bound = passing.sweep(model.unary, forward=True)
        assert bound == pytest.approx(optimum(tables)) and model.energy(passing.labels) == optimum(tables)


@pytest.mark.parametrize("entries", [2, 16, 4096])
@pytest.mark.parametrize("seed", range(6))
def test_regions_are_solved_exactly(seed: int, entries: int) -> None:
    """Beside their neighbours; with too little room they are no worse than they were."""
    tables = random_tables(np.random.default_rng(seed), 14, 3, 0.0, 0.1)
    model, rng = pairwise(tables, np.inf), np.random.default_rng(seed)
    link, work = links(model), space(len(model.counts), 3, max(entries, 4096))
    free, nothing = model.counts > 1, np.zeros(len(model.unary))
    for _ in range(10):
        labels = rng.integers(0, model.counts)
        n = grow(int(rng.integers(len(labels))), 5, work, free, link, 0.5, np.array([seed], np.uint64))
        region = work.region[:n].copy()
        now, value = solve_region(n, work, model.ptr, model.unary, nothing, 0.0, model.table, link, labels, entries)
        found = labels.copy()
        found[region] = work.found[:n]
        leave(n, work)
        before, after = model.energy(labels), model.energy(found)
        assert after <= before
        if np.isfinite(before):
            assert after - before == pytest.approx(value - now)
        if entries == 4096 and np.isfinite(before):
            trial = labels.copy()
            for states in np.ndindex(*model.counts[region]):
                trial[region] = states
                assert model.energy(trial) >= after


@pytest.mark.parametrize("seed", range(6))
def test_walks_stay_within_memory_and_know_their_cost(seed: int) -> None:
    tables = instance(seed, 40)
    model = reduced(tables)
    memory = memory_profile(model, tables)
    labels = model.labels(cheapest(tables))
    walk = RegionWalk(model, memory, labels, 1024)
    dual = MemoryDual(model, memory, float(tables.limit), ASCENTS[0])
    for _ in range(20):
        dual.step()
    walk.go(*dual.equal_model(), 300, seed)
    best = walk.moving.best
    assert (memory.used(best) <= memory.room).all()
    assert walk.best_cost == model.energy(best) <= model.energy(labels)
    assert walk.moving.cost[0] == model.energy(walk.moving.labels)
    assert price(tables, model.choice(best)) == (walk.best_cost, 0)
    annealing = HeatBath(model, memory)
    annealing.begin(best)
    for share in (1.0, 0.1, 0.001):
        annealing.go(share, 2000, seed)
    for labels, cost in zip((annealing.now.labels, annealing.now.best), annealing.now.cost):
        assert (memory.used(labels) <= memory.room).all() and cost == model.energy(labels)
    assert annealing.now.cost[1] <= walk.best_cost


@pytest.mark.parametrize("threads", [1, 2])
def test_the_search_finds_the_optimum_of_most_small_instances(threads: int) -> None:
    """Where memory is tight it may not: an optimum that no price of memory supports takes luck."""
    gaps = []
    for seed in SEEDS:
        tables = instance(seed)
        search = PrimalSearch(tables, 0.5, np.random.default_rng(0), counter(1000))
        search.start(cheapest(tables))
        search.run(threads, lambda: None)
        assert price(tables, search.best) == (search.best_cost, 0)
        assert search.bound <= search.best_cost * (1 + 1e-9)
        gaps.append(search.best_cost / optimum(tables) - 1)
    assert min(gaps) >= 0 and max(gaps) < 0.1 and sum(gap == 0 for gap in gaps) >= len(gaps) - 2


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_too_dear_is_in_no_better_answer(seed: int) -> None:
    tables = instance(seed)
    model = reduced(tables)
    passing = Passing(model)
    bound = passing.sweep(model.unary, forward=True)
    unary, table = passing.equal_model(model.unary)
    best = optimum(tables)
    cut = without_dear(model, unary, table, best + 1.0 - bound)
    memory = memory_profile(model, tables)
    fitting = (np.array(labels) for labels in np.ndindex(*model.counts))
    assert min(cut.energy(labels) for labels in fitting if (memory.used(labels) <= memory.room).all()) == best


@pytest.mark.parametrize("seed", SEEDS)
def test_the_default_is_possible_and_fits(seed: int) -> None:
    tables = instance(seed, 60)
    cost, over = price(tables, cheapest(tables))
    assert over == 0 and cost < IMPOSSIBLE


def test_where_nothing_is_possible_the_least_impossible_is_the_answer() -> None:
    tables = made_tables("no", np.array([[0, 1], [0, 1]]), [[1, 2], [3, 4]], [[0, 0], [0, 0]], [[0, 1]],
                         [[10**18, 2 * 10**18, 10**18 + 5, 3 * 10**18]], 10)  # fmt: skip
    search = PrimalSearch(tables, 0.5, np.random.default_rng(0), counter(300))
    search.run(1, lambda: None)
    assert price(tables, search.best)[0] == pytest.approx(10**18)


def test_where_nothing_fits_nothing_is_claimed() -> None:
    tables = made_tables("full", np.array([[0, 2], [1, 3]]), [[1, 2], [3, 4]], [[5, 6], [5, 7]], [], [], 9)
    search = PrimalSearch(tables, 0.5, np.random.default_rng(0), counter(100))
    search.run(1, lambda: None)
    assert search.best_cost == np.inf
    assert price(tables, cheapest(tables))[1] > 0
