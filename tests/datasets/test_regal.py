"""REGAL's random sets: units, filters by hand, shares, and prices that can be made again."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.config.construct import construct
from graphopt.core.graph import GraphError
from graphopt.datasets.headroom import SHIPPED, Draws, HeadroomPrices, Reached, load_headroom, save_headroom
from graphopt.datasets.mixed import Mixed
from graphopt.datasets.regal import HeadroomFilter, Regal
from graphopt.datasets.synthetic import SPLITS, topology_digest
from graphopt.utils import registry

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
    save_headroom(HeadroomPrices(folder / "prices.json", {"graph_seed": 0}, stored))
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
    assert "1 of 4 test graphs of 50 ops; `python -m graphopt.filter regal`" in caplog.text


def test_missing_and_foreign_prices_are_one_sentence(tmp_path: Path) -> None:
    room = prices(tmp_path, watts_strogatz=[ROOM])
    with pytest.raises(GraphError, match=r"barabasi_albert graphs of 50 ops .* run `python -m graphopt.filter regal`"):
        regal(room).graphs("test")
    with pytest.raises(GraphError, match="graph_seed=0, not 7"):
        regal(room, graph_seed=7).graphs("test")
    Path(str(room.file)).write_text("{}")
    with pytest.raises(GraphError, match="no file of room prices"):
        regal(room).graphs("test")


def test_prices_survive_the_file(tmp_path: Path) -> None:
    before = HeadroomPrices(
        tmp_path / "p.json", {"graph_seed": 3}, {"a": [Reached(np.inf, 1.5e-3, 2.0, 123456789012.0)]}
    )
    save_headroom(before)
    assert load_headroom(before.path) == before
    assert json.loads(before.path.read_text())["reached"]["a"] == [[None, 0.0015, 2, 123456789012]]


def test_units_are_bytes_and_flop_of_real_graphs() -> None:
    data = regal(HeadroomFilter(filter="none", objective="runtime", file=None), sizes=[400], test=[4])
    for graph in data.graphs("test"):
        made = graph.tensor_bytes[graph.tensor_bytes > 0]
        assert np.array_equal(graph.shape, graph.tensor_bytes)  # vectors of bytes
        assert made.mean() == pytest.approx(50 * 20e3, rel=0.05) and (made % 20_000 == 0).all()
        assert graph.flops[graph.flops > 0].mean() == pytest.approx(50 * 1.2e7, rel=0.05)


def test_splits_share_no_topology_and_families_have_equal_shares() -> None:
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


def test_shipped_prices_come_out_again() -> None:
    """Up to the luck of a search; the last digit changes with the random numbers of BRKGA."""
    from graphopt.filter import bench, reached

    stored = load_headroom(SHIPPED / "peak_memory.json").of(Draws("peak_memory", "watts_strogatz", 50, "test"))[0]
    graph = regal(HeadroomFilter(filter="none", objective="runtime", file=None)).draw("watts_strogatz", 50, "test", 0)
    found = reached(graph, bench("gpu2", "placement_scheduling", "peak_memory"), [1003])
    for name in ("low", "high", "usual", "best"):
        assert getattr(found, name) == pytest.approx(getattr(stored, name), rel=0.15)


@pytest.mark.parametrize("objective", [path.stem for path in SHIPPED.glob("*.json")])
def test_shipped_prices_are_in_order(objective: str) -> None:
    room = load_headroom(SHIPPED / f"{objective}.json")
    assert (room.recipe["machine"], room.recipe["task"]) == ("gpu2", "placement_scheduling")
    for found in (r for rows in room.reached.values() for r in rows):
        assert found.low >= found.high >= found.best > 0 and found.usual > 0


def test_mixed_data_trains_on_both_and_tests_on_what_is_asked_for() -> None:
    nodes = {name: registry.option("dataset", name) for name in ("regal_mixed", "regal_transfer")}
    assert nodes["regal_mixed"]["synthetic"] == registry.option("dataset", "regal")
    assert nodes["regal_mixed"] | {"name": "regal_transfer", "test": ["real"]} == nodes["regal_transfer"]
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
