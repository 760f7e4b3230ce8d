"""Ranks by priority are those of a stable sort: where leading bits decide, where they do not, and where all tie."""

import numpy as np
import pytest

from graphopt.costs.queues import rank_by_priority

RNG = np.random.default_rng(0)
CASES = {
    "uniform": RNG.random(3000),
    "signed": RNG.standard_normal(3000),
    "levels": RNG.integers(0, 5, 3000).astype(np.float64),
    "constant": np.full(3000, 7.0),
    "zeros of both signs": np.where(RNG.random(3000) < 0.5, 0.0, -0.0),
    "last bits of a large number": 1e9 + RNG.integers(0, 50, 3000) * 2.0**-20,
    "one outlier hides the rest": np.append(-1e300, 1.0 + RNG.integers(0, 2**20, 3000) * 2.0**-52),
    "one op": np.array([3.0]),
}


@pytest.mark.parametrize("name", CASES)
def test_ranks_are_those_of_a_stable_sort(name):
    priority = CASES[name]
    order, rank = np.empty(len(priority), np.int32), np.empty(len(priority), np.int32)
    rank_by_priority(priority, order, rank)
    assert np.array_equal(order, np.argsort(-priority, kind="stable"))
    assert np.array_equal(order[rank], np.arange(len(priority)))
