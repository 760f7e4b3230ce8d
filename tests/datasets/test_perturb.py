"""Copies of graphs with other sizes."""

import numpy as np
import pytest

from graphopt.datasets.layered import layered_graph
from graphopt.datasets.perturb import Perturb

GRAPH = layered_graph(400, np.random.default_rng(0), "g")


def perturb(**changes: float) -> Perturb:
    return Perturb(**{"copies": 3, "weights": 1.0, "flops": 0.5, "each": 0.4} | changes)  # type: ignore[arg-type]


def test_copies_differ_in_sizes_only_and_are_the_same_again() -> None:
    first, again = perturb().copies_of(GRAPH), perturb().copies_of(GRAPH)
    assert [g.hash for g in first] == [g.hash for g in again] and len({GRAPH.hash, *(g.hash for g in first)}) == 4
    for copy in first:
        np.testing.assert_array_equal(copy.input_tensor, GRAPH.input_tensor)
        np.testing.assert_array_equal(copy.kind, GRAPH.kind)
    assert not perturb(copies=0).copies_of(GRAPH)


@pytest.mark.parametrize("each", [0.1, 0.4])
def test_factors_have_the_spread_that_was_asked_for(each: float) -> None:
    [copy] = perturb(copies=1, weights=0.0, flops=0.0, each=each).copies_of(GRAPH)
    large = GRAPH.tensor_bytes > 1000  # rounding does not matter
    factors = np.log(copy.tensor_bytes[large] / GRAPH.tensor_bytes[large])
    assert factors.std() == pytest.approx(each, rel=0.15) and abs(factors.mean()) < each / 5
    some = GRAPH.flops > 0
    assert np.log(copy.flops[some] / GRAPH.flops[some]).std() == pytest.approx(each, rel=0.15)


def test_all_weights_of_a_graph_share_a_factor() -> None:
    [copy] = perturb(copies=1, each=0.0).copies_of(GRAPH)
    weight = GRAPH.is_weight & (GRAPH.tensor_bytes > 1000)
    factors = copy.tensor_bytes[weight] / GRAPH.tensor_bytes[weight]
    assert weight.any() and factors.max() == pytest.approx(factors.min(), rel=1e-2) and factors.mean() != 1.0
    np.testing.assert_array_equal(copy.tensor_bytes[~GRAPH.is_weight], GRAPH.tensor_bytes[~GRAPH.is_weight])
