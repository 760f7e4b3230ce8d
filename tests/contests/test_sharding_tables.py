"""Instances: reading, pricing, deltas, memory, against the contest's example and brute force."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_data import check_data

from graphopt.contests.sharding.memory_profile import add, segment_tree
from graphopt.contests.sharding.sharding_instances import random_tables
from graphopt.core.auto_sharding.sharding_oracle import slow_cost, slow_peak
from graphopt.core.auto_sharding.strategies import NO_LIMIT, StrategyTables, memory, price
from graphopt.core.graph import GraphError
from graphopt.graphs.readers.formats.iopddl import graph_of, read_iopddl, read_tables

EXAMPLE: dict[str, Any] = {
    "problem": {
        "name": "two",
        "nodes": {"intervals": [[0, 4], [4, 9]], "costs": [[3, 1], [2, 2]], "usages": [[5, 7], [6, 8]]},
        "edges": {"nodes": [[0, 1]], "costs": [[10, 20, 30, 5]]},
        "usage_limit": 7,
    }
}


def instance(seed: int, nodes: int = 8, impossible: float = 0.3) -> StrategyTables:
    return random_tables(np.random.default_rng(seed), nodes, 3, 0.3, impossible)


def written(folder: Path, change: dict[str, Any], name: str = "two.json") -> Path:
    content = json.loads(json.dumps(EXAMPLE))
    for place, value in change.items():
        *above, last = place.split(".")
        node = content["problem"]
        for key in above:
            node = node[key]
        node[last] = value
    (folder / name).write_text(json.dumps(content))
    return folder / name


def test_the_contests_example() -> None:
    tables = read_tables(check_data("sharding/example.json"))
    assert price(tables, np.array([0, 1, 2, 0, 0])) == (495.0, 0)
    assert price(tables, np.array([0, 0, 1, 1, 0]))[0] == 415.0 and price(tables, np.array([0, 0, 1, 1, 0]))[1] > 0
    assert slow_cost(tables, [0, 0, 2, 1, 0]) == 455 or slow_cost(tables, [0, 0, 2, 1, 0]) < 495


def test_intervals_are_half_open(tmp_path: Path) -> None:
    """Both nodes never live at once, so 7 is enough."""
    tables = read_tables(written(tmp_path, {}))
    assert price(tables, np.array([1, 0])) == (33.0, 0)
    assert price(tables, np.array([1, 1])) == (8.0, 1)
    assert tables.clock.steps == 2


def test_packed_files_and_no_limit(tmp_path: Path) -> None:
    plain = written(tmp_path, {"usage_limit": None})
    (tmp_path / "three.json.gz").write_bytes(gzip.compress(plain.read_bytes()))
    tables = read_tables(tmp_path / "three.json.gz")
    assert tables.name == "three" and tables.limit == NO_LIMIT
    assert price(tables, np.array([1, 1])) == (8.0, 0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"nodes.costs": [[3, 1], [2]]}, "as many usages as costs"),
        ({"nodes.costs": [[3, 1], [2, "x"]]}, "no whole numbers"),
        ({"nodes.costs": [[3, 1], [2, 10**30]]}, "no whole numbers of 64 bits"),
        ({"nodes.costs": []}, "it has no nodes"),
        ({"nodes.usages": [[5, 7], [6, -8]]}, "must not be negative"),
        ({"edges.nodes": [[0, 2]]}, "names node 2 of 2"),
        ({"edges.costs": [[10, 20, 30]]}, "edge 0 has 3 entries, where its nodes' strategies make 4"),
        ({"edges.costs": []}, "1 edges and 0 tables"),
        ({"usage_limit": -1}, "usage_limit must be a whole number"),
        ({"nodes": {}}, "it has no 'costs'"),
        ({"nodes.intervals": [[0, 4], [4]]}, "no instance of the sharding contest"),
    ],
)
def test_bad_files_are_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(GraphError) as error:
        read_iopddl(written(tmp_path, change))
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_a_truncated_file_is_one_sentence(tmp_path: Path) -> None:
    text = written(tmp_path, {}).read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    with pytest.raises(GraphError, match="is no JSON"):
        read_iopddl(tmp_path / "cut.json")


def test_an_edge_may_name_a_node_twice(tmp_path: Path) -> None:
    """Then both are the same strategy."""
    tables = read_tables(written(tmp_path, {"edges.nodes": [[1, 1]]}))
    assert price(tables, np.array([1, 1]))[0] == 1 + 2 + 5 and price(tables, np.array([1, 0]))[0] == 1 + 2 + 10


@pytest.mark.parametrize("seed", range(4))
def test_prices_are_those_of_plain_sums(seed: int) -> None:
    tables, rng = instance(seed, 40), np.random.default_rng(seed)
    for _ in range(20):
        choice = rng.integers(0, tables.counts)
        cost, over = price(tables, choice)
        assert cost == pytest.approx(slow_cost(tables, choice.tolist()), rel=1e-12)
        assert over == max(0, slow_peak(tables, choice.tolist()) - tables.limit)
        assert memory(tables, choice).max(initial=0) == slow_peak(tables, choice.tolist())


def test_the_tree_adds_like_an_array_and_knows_its_least() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 16, 33):
        values = rng.integers(0, 50, size).astype(float)
        least, pending = segment_tree(values)
        for _ in range(200):
            low, high = sorted(rng.integers(0, size + 1, 2))
            if low < high:
                amount = float(rng.integers(-9, 10))
                add(least, pending, low, high, amount)
                values[low:high] += amount
                assert least[1] == values.min()


def test_graphs_differ_where_only_a_table_does() -> None:
    first, second = instance(1, 20), instance(1, 20)
    assert graph_of(first).hash == graph_of(second).hash
    second.table[3] += 1
    second = StrategyTables(*(getattr(second, name) for name in StrategyTables.__dataclass_fields__))
    assert graph_of(first).hash != graph_of(second).hash
