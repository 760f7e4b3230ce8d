"""Synthetic families: the statistics that their parameters imply, and splits that share nothing."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.operators import OPERATORS, Category
from graphopt.datasets.layered import layered_graph
from graphopt.datasets.random_graphs import FAMILIES, _decode_triangle, random_graph
from graphopt.datasets.synthetic import SPLITS, Synthetic, topology_digest


def synthetic(**changes: object) -> Synthetic:
    settings = {"families": [*FAMILIES, "layered"], "ops": 50, "train": 25, "val": 10, "test": 15, "graph_seed": 0}
    return Synthetic(name="synthetic", **{**settings, **changes})  # type: ignore[arg-type]


def reachable(graph: Graph, start: int, forward: bool) -> set[int]:
    ptr, neighbour = graph.successors if forward else graph.predecessors
    seen, stack = {start}, [start]
    while stack:
        op = stack.pop()
        new = set(neighbour[ptr[op] : ptr[op + 1]].tolist()) - seen
        seen |= new
        stack += new
    return seen


@pytest.mark.parametrize("n", [8, 50, 400])
@pytest.mark.parametrize("family", FAMILIES)
def test_edges_are_simple_and_in_range(family: str, n: int) -> None:
    edges = FAMILIES[family](n, 50 / n, np.random.default_rng(1))
    assert edges.min() >= 0 and edges.max() < n
    assert np.all(edges[:, 0] != edges[:, 1])
    assert len(np.unique(np.sort(edges, 1), axis=0)) == len(edges)


def test_edge_counts_are_those_of_the_papers_parameters() -> None:
    """Means over 400 graphs of 50 nodes, within 4 standard errors; the last two are exact."""
    rng = np.random.default_rng(0)
    counts = {family: [len(make(50, 1.0, rng)) for _ in range(400)] for family, make in FAMILIES.items()}
    pairs = 50 * 49 // 2
    inside = 2 * (12 * 11 // 2 + 13 * 12 // 2)
    expected = {"erdos_renyi": 0.05 * pairs, "stochastic_block": 0.3 * inside + 0.01 * (pairs - inside)}
    variance = {"erdos_renyi": 0.0475 * pairs, "stochastic_block": 0.21 * inside + 0.0099 * (pairs - inside)}
    for family, mean in expected.items():
        assert np.mean(counts[family]) == pytest.approx(mean, abs=4 * (variance[family] / 400) ** 0.5)
    assert set(counts["watts_strogatz"]) == {100}  # 4 * 50 / 2
    assert set(counts["barabasi_albert"]) == {96}  # 2 per node but the first two


@pytest.mark.parametrize("family", FAMILIES)
def test_the_mean_degree_stays_when_graphs_grow(family: str) -> None:
    rng = np.random.default_rng(0)
    small = np.mean([len(FAMILIES[family](50, 1.0, rng)) / 50 for _ in range(200)])
    large = np.mean([len(FAMILIES[family](2000, 50 / 2000, rng)) / 2000 for _ in range(3)])
    assert large == pytest.approx(small, rel=0.12)


def test_preferential_attachment_has_hubs_and_rewired_rings_have_not() -> None:
    rng = np.random.default_rng(0)
    hubs = [np.bincount(FAMILIES[f](2000, 0.0, rng).ravel()).max() for f in ("barabasi_albert", "watts_strogatz")]
    assert hubs[0] > 60 and hubs[1] < 15


def test_a_third_of_the_ring_is_rewired() -> None:
    edges = FAMILIES["watts_strogatz"](3000, 1.0, np.random.default_rng(0))
    distance = np.abs(edges[:, 0] - edges[:, 1])
    far = np.minimum(distance, 3000 - distance) > 2
    assert far.mean() == pytest.approx(0.3, abs=0.03)


@given(st.integers(0, 10**12))
def test_pairs_are_numbered_without_gaps(code: int) -> None:
    (i, j), = _decode_triangle(np.array([code])).tolist()  # fmt: skip
    assert 0 <= j < i and i * (i - 1) // 2 + j == code


@pytest.mark.parametrize("family", FAMILIES)
def test_source_reaches_all_and_all_reach_the_sink(family: str) -> None:
    graph = random_graph(family, 60, 1.0, np.random.default_rng(3), "g")
    source, sink = graph.op_names.index("source"), graph.op_names.index("sink")
    assert reachable(graph, source, True) == reachable(graph, sink, False) == set(range(62))
    assert graph.flops[[source, sink]].tolist() == [0, 0]
    assert (graph.tensor_bytes[graph.producer == source] == 0).all()
    readers = np.bincount(graph.input_tensor, minlength=graph.num_tensors)
    assert (readers == 1).all()  # every edge has a tensor of its own


def test_sizes_and_costs_have_the_papers_mean_and_spread() -> None:
    graph = random_graph("watts_strogatz", 4000, 1.0, np.random.default_rng(0), "g")
    for values in (graph.flops[graph.flops > 0], graph.tensor_bytes[graph.tensor_bytes > 0]):
        assert values.mean() == pytest.approx(50, abs=0.6)
        assert values.std() == pytest.approx(10, abs=0.5)
        assert (values == np.rint(values)).all() and values.min() >= 1


def test_splits_share_no_topology_and_families_have_equal_shares() -> None:
    data = synthetic(ops=[20, 50])
    digests = {split: [topology_digest(g) for g in data.graphs(split)] for split in SPLITS}
    together = [d for split in SPLITS for d in digests[split]]
    assert len(set(together)) == len(together) == 50
    for split, count in (("train", 5), ("val", 2), ("test", 3)):
        shares = Counter(g.family for g in data.graphs(split))  # type: ignore[arg-type]
        assert shares == dict.fromkeys([*FAMILIES, "layered"], count)
    sizes = {split: {g.num_ops % 3 for g in data.graphs(split)} for split in SPLITS}
    assert all(len(sizes[split]) == 1 for split in SPLITS) and len(set.union(*sizes.values())) == 3


def test_sizes_are_normal_around_the_mean_asked_for() -> None:
    sizes = np.array([g.num_ops - 2 for g in synthetic(train=200).graphs("train")])
    assert sizes.mean() == pytest.approx(50, abs=3) and sizes.std() == pytest.approx(10, abs=2)


def test_the_seed_fixes_the_graphs_and_another_changes_them() -> None:
    first, again, other = (synthetic(graph_seed=s, test=5).graphs("test") for s in (1, 1, 2))
    assert [g.hash for g in first] == [g.hash for g in again]
    assert not {g.hash for g in first} & {g.hash for g in other}
    # drawing another split first changes nothing
    data = synthetic(graph_seed=1, test=5)
    data.graphs("train")
    assert [g.hash for g in data.graphs("test")] == [g.hash for g in first]


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(GraphError, match=r"no synthetic family.*erdos_renyi"):
        synthetic(families=["erdos"])
    with pytest.raises(GraphError, match="at least 8 ops"):
        synthetic(ops=[50, 3])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32))
def test_layered_graphs_have_exactly_the_ops_asked_for_and_no_dead_ones(ops: int, seed: int) -> None:
    graph = layered_graph(ops, np.random.default_rng(seed), "net")
    assert graph.num_ops == ops
    outputs = np.unique(graph.producer[graph.is_output])
    assert len(outputs) == 1
    assert reachable(graph, int(outputs[0]), False) == set(range(ops))


def test_layered_graphs_leave_fusion_something_to_decide() -> None:
    graph = layered_graph(2000, np.random.default_rng(0), "net")
    share = np.bincount(graph.category, minlength=6) / graph.num_ops
    assert 0.5 < share[Category.ELEMENTWISE] < 0.85
    assert share[Category.REDUCTION] > 0.03 and share[Category.CONTRACTION] > 0.1
    matmul = np.flatnonzero(graph.category == Category.CONTRACTION)
    for op in matmul[:50]:
        (rows, inner), (_, width) = (graph.tensor_shape(int(t)) for t in graph.operands(int(op)))
        assert graph.flops[op] == 2 * rows * inner * width
        assert [graph.tensor_shape(t) for t in graph.results(int(op))] == [(rows, width)]
    elementwise = np.flatnonzero(graph.category == Category.ELEMENTWISE)
    flop = np.array([OPERATORS[k].flop for k in graph.kind[elementwise]])
    assert np.array_equal(graph.flops[elementwise], flop * graph.result_bytes[elementwise] / 4)


def test_digest_ignores_names_and_order_but_sees_edges() -> None:
    def build(order: list[int], extra: bool) -> Graph:
        builder = GraphBuilder("g")
        t = [builder.tensor((1,)) for _ in range(5)]
        reads = {0: [], 1: [t[0]], 2: [t[0]], 3: [t[1], t[2]], 4: [t[3]] + ([t[0]] if extra else [])}
        for op in order:
            builder.op("opaque", reads[op], [t[op]], name=f"op{op}")
        return builder.build()

    plain, shuffled, other = build([0, 1, 2, 3, 4], False), build([4, 2, 0, 3, 1], False), build([0, 1, 2, 3, 4], True)
    assert topology_digest(plain) == topology_digest(shuffled) != topology_digest(other)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_builder_gives_the_same_graph_whatever_the_order_of_ops(data: st.DataObject) -> None:
    """Random DAGs, ops added in any order: valid, the same ops with the same operands, results and FLOP."""
    n = data.draw(st.integers(1, 12))
    reads = [data.draw(st.lists(st.integers(0, 2 * i - 1), max_size=3)) if i else [] for i in range(n)]
    order = data.draw(st.permutations(range(n)))

    def build(sequence: list[int]) -> Graph:
        builder = GraphBuilder("g")
        t = [builder.tensor((i + 1,), "uint8") for i in range(2 * n)]  # op i makes tensors 2 i and 2 i + 1
        for op in sequence:
            builder.op("opaque", [t[r] for r in reads[op]], [t[2 * op], t[2 * op + 1]], flops=op, name=f"op{op}")
        return builder.build()

    graph, reference = build(order), build(list(range(n)))
    assert reference.op_names == tuple(f"op{i}" for i in range(n))
    position = {name: i for i, name in enumerate(graph.op_names)}
    for i, name in enumerate(reference.op_names):
        j = position[name]
        assert graph.flops[j] == reference.flops[i]
        for read in (Graph.operands, Graph.results):
            sizes = [[g.tensor_shape(int(t)) for t in read(g, op)] for g, op in ((graph, j), (reference, i))]
            assert sizes[0] == sizes[1]
    assert topology_digest(graph) == topology_digest(reference)
    assert (graph.producer[graph.input_tensor] < graph.operand_op).all()
