"""Every simulated run keeps the rules, by an independent oracle, on random graphs, machines and plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_graph, random_machine, random_plans

from graphopt.core.oracles import check, check_trace
from graphopt.costs.simulator import Simulator


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**31), ops=st.integers(1, 30))
def test_a_run_keeps_the_rules(seed, ops):
    rng = np.random.default_rng(seed)
    graph, machine = random_graph(rng, ops), random_machine(rng)
    plan = random_plans(rng, graph, machine, 1)
    assert check(plan, machine) == []
    trace = Simulator(name="s", machine=machine, objective="peak_memory", threads=1).simulate(plan)
    assert check_trace(trace, plan, machine) == []


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_prices_are_those_of_the_traces_and_do_not_depend_on_threads_or_batches(seed):
    rng = np.random.default_rng(seed)
    graph, machine = random_graph(rng, 40), random_machine(rng)
    plans = random_plans(rng, graph, machine, 12)
    plans.inline[4:] = plans.inline[4]
    for objective in ("runtime", "peak_memory"):
        one = Simulator(name="s", machine=machine, objective=objective, threads=1)
        two = Simulator(name="s", machine=machine, objective=objective, threads=2)
        two._chunks = lambda plans: [np.arange(i, i + 1) for i in range(12)]
        prices = one.price(plans).cost
        assert np.array_equal(prices, two.price(plans).cost)
        assert np.array_equal(prices, [float(one.price(plans[b]).cost[0]) for b in range(12)])
        traces = [one.simulate(plans[b]) for b in range(12)]
        expected = [t.makespan if objective == "runtime" else t.peak_bytes.max() for t in traces]
        assert np.array_equal(prices, expected)


@pytest.mark.parametrize("seed", range(3))
def test_more_ops_than_one_level_of_the_rank_sets(seed):
    rng = np.random.default_rng(seed)
    graph, machine = random_graph(rng, 300), random_machine(rng)
    plan = random_plans(rng, graph, machine, 1)
    trace = Simulator(name="s", machine=machine, objective="runtime", threads=1).simulate(plan)
    assert check_trace(trace, plan, machine) == []
