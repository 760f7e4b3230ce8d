"""Collections on disk: what stands there, going on after a kill, and damaged files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import ToyCost, ToyTask, toy_graph

from graphopt.advantages import collecting as collecting
from graphopt.advantages.collecting import Collection, collect, names
from graphopt.advantages.gibbs import Samples
from graphopt.advantages.store import Store
from graphopt.errors import UserError

GRAPHS = [toy_graph(6, 0), toy_graph(9, 1)]
TASK = ToyTask({"inline": 2})


class Unary(ToyCost):
    """A cost for graphs of any size: 1 + the share of ops whose choice is 0, counted."""

    def totals(self, codes: np.ndarray) -> np.ndarray:
        return 1.0 + (codes == 0).mean(1)

    def price(self, plans: Any) -> Any:
        self.unary = np.zeros((64, 2))  # of any graph: threads share it
        return super().price(plans)


def cost() -> Unary:
    return Unary(GRAPHS[1], 2)


def settings(folder: Path, **changes: Any) -> Collection:
    usual: dict[str, Any] = {"folder": str(folder), "chains": ["initial", "random"], "sweeps": 2, "temperature": 1.0,
                             "slots": 100, "surveys": True, "workers": 1}  # fmt: skip
    return Collection(**(usual | changes))


def contents(stores: list[Store], collection: Collection) -> list[dict[str, np.ndarray]]:
    shards = [store.read(name) for store in stores for name in names(collection)]
    return [{key: np.array(value) for key, value in vars(shard).items()} for shard in shards]


def assert_equal(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_a_store_says_what_it_is_of_and_maps_its_arrays(tmp_path: Path) -> None:
    stores = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    header = stores[0].header()
    assert header["graph"] == {"name": GRAPHS[0].name, "family": "toy", "hash": GRAPHS[0].hash}
    assert header["task"] == {"name": "toy", "heads": {"inline": 2}} and header["cost"]["objective"] == "runtime"
    assert header["seed"] == 3 and header["temperature"] == 1.0 and "commit" in header
    shard: Samples = stores[0].read("0-initial-0001")
    assert isinstance(shard.price, np.memmap) and shard.price.dtype == np.float64 and shard.row.dtype == np.int32
    about = json.loads((stores[0].folder / "0-initial-0001" / "shard.json").read_text())
    assert about["evals"] == shard.evals == 12 and about["digests"].keys() == vars(shard).keys() - {"evals"}


def test_what_is_on_disk_is_not_priced_again(tmp_path: Path) -> None:
    collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    again = cost()
    collect(GRAPHS, TASK, again, settings(tmp_path), 3)
    assert again.calls == 2 * 4  # the few decisions that tell cost models apart
    collect(GRAPHS, TASK, again, settings(tmp_path, sweeps=3), 3)
    slots = sum(graph.num_ops for graph in GRAPHS)
    assert again.calls == 4 * 4 + 2 * 2 * slots + 2 * 2  # a sweep more of each chain, and its first price


@pytest.mark.parametrize("change", [{"temperature": 2.0}, {"slots": 3}, {"surveys": False}])
def test_other_settings_are_other_samples(tmp_path: Path, change: dict[str, Any]) -> None:
    first = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    second = collect(GRAPHS, TASK, cost(), settings(tmp_path, **change), 3)
    assert not {s.folder for s in first} & {s.folder for s in second}


def test_other_prices_are_other_samples(tmp_path: Path) -> None:
    graph = GRAPHS[1]
    folders = {collect([graph], TASK, ToyCost(graph, 2, seed=s), settings(tmp_path), 3)[0].folder for s in (0, 1)}
    assert len(folders) == 2


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("after", [0, 1, 4])
def test_a_killed_collection_goes_on_to_the_same_samples(
    tmp_path: Path, after: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = settings(tmp_path / "whole")
    expected = contents(collect(GRAPHS, TASK, cost(), whole, 3), whole)
    killed, write, left = settings(tmp_path / "killed", workers=workers), Store.write, [after]

    def dying(store: Store, name: str, samples: Samples, seconds: float) -> None:
        left[0] -= 1
        if left[0] < 0:
            (store.folder / f".{name}half").mkdir()  # what a kill in the middle of writing leaves
            raise KeyboardInterrupt
        write(store, name, samples, seconds)

    monkeypatch.setattr(Store, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        collect(GRAPHS, TASK, cost(), killed, 3)
    monkeypatch.setattr(Store, "write", write)
    assert_equal(contents(collect(GRAPHS, TASK, cost(), killed, 3), killed), expected)


def test_a_missing_shard_is_made_again_alone(tmp_path: Path) -> None:
    import shutil

    stores = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    expected = contents(stores, settings(tmp_path))
    for name in ("0-initial-0001", "1-random-0002"):
        shutil.rmtree(stores[1].folder / name)
    assert_equal(contents(collect(GRAPHS, TASK, cost(), settings(tmp_path), 3), settings(tmp_path)), expected)


@pytest.mark.parametrize("harm", ["flip", "cut", "gone", "json", "format"])
def test_a_damaged_shard_is_never_believed_and_made_anew(tmp_path: Path, harm: str) -> None:
    stores = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    store, before = stores[0], contents(stores, settings(tmp_path))
    whole = [{key: value.copy() for key, value in shard.items()} for shard in before]
    place = store.folder / "1-random-0001"
    price, about = place / "price.npy", place / "shard.json"
    if harm == "flip":
        data = bytearray(price.read_bytes())
        data[-3] ^= 1
        price.write_bytes(bytes(data))
    elif harm == "cut":
        price.write_bytes(price.read_bytes()[:-8])
    elif harm == "gone":
        price.unlink()
    elif harm == "json":
        about.write_text("{")
    else:
        about.write_text(json.dumps(json.loads(about.read_text()) | {"format": 99}))
    with pytest.raises(UserError, match=r"^samples in .*1-random-0001 are damaged \(.*\); the same command"):
        store.read("1-random-0001")
    (stores[1].folder / "header.json").write_text("[]")
    with pytest.warns(UserWarning, match="1-random-0001 are damaged"):
        again = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)
    assert_equal(contents(again, settings(tmp_path)), whole)
    assert again[1].header()["graph"]["hash"] == GRAPHS[1].hash


def test_two_processes_may_collect_the_same(tmp_path: Path) -> None:
    store = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)[0]
    before = store.read("0-initial-0001")
    store.write("0-initial-0001", store.read("0-initial-0002"), 0.0)
    np.testing.assert_array_equal(store.read("0-initial-0001").price, before.price)
    assert not [*store.folder.glob(".0-initial*")]


def test_a_disk_that_takes_no_folder_is_a_sentence(tmp_path: Path) -> None:
    samples = collect(GRAPHS, TASK, cost(), settings(tmp_path), 3)[0].read("0-initial-0001")
    with pytest.raises(UserError, match=r"cannot write .*nowhere.*make room"):
        Store(tmp_path / "nowhere").write("0-initial-0001", samples, 0.0)


def test_large_graphs_are_visited_in_parts(tmp_path: Path) -> None:
    collection = settings(tmp_path, slots=4)
    store = collect([GRAPHS[1]], TASK, cost(), collection, 3)[0]
    rows = [np.unique(store.read(name).row).tolist() for name in names(collection)]
    assert all(len(visited) == 4 for visited in rows) and len({tuple(visited) for visited in rows}) > 1


def test_graphs_without_a_choice_are_left_out(tmp_path: Path) -> None:
    nothing = ToyTask({"inline": 2}, np.zeros(6, bool))
    assert collect([GRAPHS[0]], nothing, cost(), settings(tmp_path), 3) == []
    assert not [*tmp_path.iterdir()]
    assert collecting.shard_name(1, "random", 2) == "1-random-0002"
