"""Random graphs: synthetic families, copies with other sizes, REGAL's sets."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.operators import OPERATORS, Category
from graphopt.core.utils import registry
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.mixed import Mixed, Perturb
from graphopt.graphs.regal import (
    SHIPPED,
    Draws,
    HeadroomFilter,
    Reached,
    Regal,
    load_headroom,
)
from graphopt.graphs.synthetic import FAMILIES, SPLITS, Synthetic, _decode_triangle, random_graph, topology_digest
from graphopt.run.config.construct import construct

# --- Synthetic families: the statistics that their parameters imply, and splits that share nothing.


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


# --- Copies of graphs with other sizes.

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


# --- REGAL's random sets: units, filters by hand, shares, and prices that can be made again.

DRAWN = {
    "barabasi_albert": "0c091824d2a2022d", "watts_strogatz": "e73fcd0c92cf485e", "stochastic_block": "7c9a74c95fc35d30",
    "erdos_renyi": "79d9b8fd2b60331a",
}  # fmt: skip
ROOM, TIGHT = Reached(100.0, 70.0, 80.0, 60.0), Reached(100.0, 90.0, 91.0, 90.0)


def regal(room: HeadroomFilter, **changes: Any) -> Regal:
    node = registry.option("dataset", "regal") | {"room": room, "sizes": [50], "train": [2], "val": [2], "test": [4]}
    arguments = {key: value for key, value in (node | changes).items() if key != "_target_"}
    return Regal(**arguments)


def prices(folder: Path, **reached: list[Reached]) -> HeadroomFilter:
    """A file that holds prices of 50-op test graphs by family."""
    stored = {str(Draws("runtime", family, 50, "test")): rows for family, rows in reached.items()}
    text = {key: [[r.low, r.high, r.usual, r.best] for r in rows] for key, rows in stored.items()}
    (folder / "prices.json").write_text(json.dumps({"recipe": {"graph_seed": 0}, "reached": text}))
    return HeadroomFilter(filter="gap", objective="runtime", file=str(folder / "prices.json"))


@pytest.mark.parametrize("found, regal_keeps, gap_keeps", [
    (Reached(100, 80, 90, 85), True, True),
    (Reached(100, 81, 90, 86), False, False),
    (Reached(np.inf, 99, 90, 90), True, False),
    (Reached(np.inf, np.inf, np.inf, np.inf), False, False),
    (Reached(np.inf, np.inf, np.inf, 90), False, True),
])  # fmt: skip
def test_filters_by_hand(found: Reached, regal_keeps: bool, gap_keeps: bool) -> None:
    assert (found.passes("regal"), found.passes("gap"), found.passes("none")) == (regal_keeps, gap_keeps, True)


def test_a_family_without_room_is_replaced_by_the_others(tmp_path: Path) -> None:
    room = prices(tmp_path, erdos_renyi=[TIGHT] * 3, watts_strogatz=[TIGHT, ROOM, ROOM, TIGHT, ROOM],
                  barabasi_albert=[ROOM])  # fmt: skip
    data = regal(room, families=["barabasi_albert", "watts_strogatz", "erdos_renyi"])
    assert [g.name for g in data.graphs("test")] == [
        *("barabasi_albert_50_test_0", "watts_strogatz_50_test_1", "watts_strogatz_50_test_2"),
        "watts_strogatz_50_test_4",
    ]


def test_too_few_graphs_are_taken_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = regal(prices(tmp_path, watts_strogatz=[ROOM, TIGHT]), families=["watts_strogatz"])
    assert len(data.graphs("test")) == 1
    assert "1 of 4 test graphs of 50 ops" in caplog.text


def test_missing_and_foreign_prices_are_one_sentence(tmp_path: Path) -> None:
    room = prices(tmp_path, watts_strogatz=[ROOM])
    with pytest.raises(GraphError, match=r"barabasi_albert graphs of 50 ops .* set dataset.room.filter=none"):
        regal(room).graphs("test")
    with pytest.raises(GraphError, match="graph_seed=0, not 7"):
        regal(room, graph_seed=7).graphs("test")
    Path(str(room.file)).write_text("{}")
    with pytest.raises(GraphError, match="no file of room prices"):
        regal(room).graphs("test")


@pytest.mark.parametrize("price", ["NaN", "-Infinity", "-1", '"3"', "[1]"])
def test_a_price_that_is_none_is_a_sentence(tmp_path: Path, price: str) -> None:
    file = tmp_path / "room.json"
    file.write_text(f'{{"recipe": {{}}, "reached": {{"a": [[1, 2, {price}, 4]]}}}}')
    with pytest.raises(GraphError, match="is no file of room prices"):
        load_headroom(file)


def test_units_are_bytes_and_flop_of_real_graphs() -> None:
    data = regal(HeadroomFilter(filter="none", objective="runtime", file=None), sizes=[400], test=[4])
    for graph in data.graphs("test"):
        made = graph.tensor_bytes[graph.tensor_bytes > 0]
        assert np.array_equal(graph.shape, graph.tensor_bytes)  # vectors of bytes
        assert made.mean() == pytest.approx(50 * 20e3, rel=0.05) and (made % 20_000 == 0).all()
        assert graph.flops[graph.flops > 0].mean() == pytest.approx(50 * 1.2e7, rel=0.05)


def test_regal_splits_share_no_topology_and_families_have_equal_shares() -> None:
    data = regal(HeadroomFilter(filter="none", objective="runtime", file=None), sizes=[20, 50], train=[8, 4],
                 val=[4, 4], test=[8, 8])  # fmt: skip
    graphs = {split: data.graphs(split) for split in SPLITS}
    digests = [topology_digest(g) for split in SPLITS for g in graphs[split]]
    assert len(set(digests)) == len(digests) == 36
    assert [g.family for g in graphs["test"]] == [family for family in data.families for _ in range(2)] * 2
    assert {len({g.num_ops % 3 for g in graphs[split]}) for split in SPLITS} == {1}


def test_wrong_settings_are_one_sentence() -> None:
    room = HeadroomFilter(filter="none", objective="runtime", file=None)
    with pytest.raises(GraphError, match=r"dataset.val=.1, 2. must hold a number for each of dataset.sizes=.50."):
        regal(room, val=[1, 2])
    with pytest.raises(GraphError, match="no synthetic family tree"):
        regal(room, families=["tree"])


@pytest.mark.parametrize("family", DRAWN)
def test_shipped_prices_are_those_of_the_draws(family: str) -> None:
    """Whoever changes what is drawn makes the prices again."""
    data = regal(HeadroomFilter(filter="none", objective="runtime", file=None))
    assert data.draw(family, 50, "test", 0).hash == DRAWN[family]


@pytest.mark.parametrize("objective", [path.stem for path in SHIPPED.glob("*.json")])
def test_shipped_prices_are_in_order(objective: str) -> None:
    room = load_headroom(SHIPPED / f"{objective}.json")
    assert (room.recipe["machine"], room.recipe["task"]) == ("gpu2", "placement_scheduling")
    for found in (r for rows in room.reached.values() for r in rows):
        assert found.low >= found.high >= found.best > 0 and found.usual > 0


def test_mixed_data_trains_on_both_and_tests_on_what_is_asked_for() -> None:
    small: dict[str, Any] = {"sizes": [20], "train": [2], "val": [1], "test": [3]}
    node = registry.option("dataset", "regal")
    node |= {**small, "room": node["room"] | {"filter": "none"}}
    for test, count in ((["synthetic"], 3), (["real"], 1), (["synthetic", "real"], 4)):
        real = node | {"name": "other", "graph_seed": 1, "train": [1], "val": [2], "test": [1]}
        parts = {"synthetic": node, "real": real}
        mixed: Mixed = construct(registry.option("dataset", "regal_mixed") | parts | {"test": test}, "dataset")
        assert [len(mixed.graphs(split)) for split in ("train", "val", "test")] == [5, 3, count]
        assert sum(g.name.endswith(("_perturbed0", "_perturbed1")) for g in mixed.graphs("train")) == 2
        origins = [mixed.origin(graph) for graph in mixed.graphs("test")]
        assert origins == ["regal"] * 3 * ("synthetic" in test) + ["other"] * ("real" in test)
