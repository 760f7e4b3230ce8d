"""The layered layout: edges go forward, nothing overlaps, easy graphs are drawn without crossings."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from graphopt.reporting.pictures.layout import isotonic, layered, longest_path_layers


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 30))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)).filter(lambda p: p[0] < p[1])
    edges = draw(st.lists(pairs, max_size=50, unique=True)) if count > 1 else []
    return count, edges


@given(dags())
@settings(max_examples=60, deadline=None)
def test_edges_go_forward_and_ops_do_not_overlap(dag: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = dag
    layer = longest_path_layers(count, edges)
    assert all(layer[a] < layer[b] for a, b in edges)
    layout = layered(count, edges, 1.5)
    places = sorted(zip(layout.x.tolist(), layout.y.tolist()))
    for (x0, y0), (x1, y1) in pairwise(places):
        assert x0 != x1 or y1 - y0 >= 1 - 1e-6
    assert layout.y.min() >= 0 and layout.y.max() <= layout.height
    assert layout.x.max() < layout.width


@given(dags())
@settings(max_examples=40, deadline=None)
def test_routes_join_their_ops(dag: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = dag
    layout = layered(count, edges, 1.5)
    for (a, b), route in zip(edges, layout.routes):
        assert route[0][0].tolist() == [layout.x[a], layout.y[a]]
        assert route[-1][-1].tolist() == [layout.x[b], layout.y[b]]
        assert all((np.diff(line[:, 0]) > 0).all() for line in route)  # left to right within a row


def test_a_chain_is_a_straight_line() -> None:
    layout = layered(6, [(i, i + 1) for i in range(5)], 6.0)
    assert layout.x.tolist() == [0, 1, 2, 3, 4, 5]
    assert np.ptp(layout.y) < 1e-9


def test_branches_given_in_a_tangled_order_do_not_cross() -> None:
    # 0 feeds 1, 2, 3; their chains continue to 4, 5, 6 in another order; 7 joins them
    edges = [(0, 1), (0, 2), (0, 3), (1, 6), (2, 4), (3, 5), (4, 7), (5, 7), (6, 7)]
    layout = layered(8, edges, 10.0)
    first, second = np.argsort(layout.y[[1, 2, 3]]), np.argsort(layout.y[[6, 4, 5]])
    assert first.tolist() == second.tolist()
    assert layout.y[[1, 2, 3]] == pytest.approx(layout.y[[6, 4, 5]])  # and they are straight


def test_long_chains_wrap_into_rows() -> None:
    layout = layered(60, [(i, i + 1) for i in range(59)], 1.5)
    assert 4 < layout.width < 20
    assert len(np.unique(layout.y)) > 2
    assert layout.width / layout.height == pytest.approx(1.5, rel=0.5)


def test_a_source_stands_before_its_reader() -> None:
    assert longest_path_layers(5, [(0, 1), (1, 2), (2, 3), (4 - 1, 4)]) == [0, 1, 2, 3, 4]
    assert longest_path_layers(4, [(0, 2), (2, 3), (1, 3)]) == [0, 1, 1, 2]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 3)), min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_isotonic_equals_scipy(pairs: list[tuple[float, float]]) -> None:
    wanted, weight = np.array(pairs).T
    expected = isotonic_regression(wanted, weights=weight).x
    np.testing.assert_allclose(isotonic(wanted, weight), expected, atol=1e-9)
