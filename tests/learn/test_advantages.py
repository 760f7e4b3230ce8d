"""Labels of what choices cost: Gibbs sampling, exact labels, and collections of them on disk."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusion_graphs import DEVICES, GPU, random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import WithoutFlips, fusion_on
from toy import ToyCost, ToyTask, toy_graph

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.learn.advantages import (
    Collection,
    DeltaPrices,
    FullPrices,
    Samples,
    Store,
    collect,
    draw,
    surroundings,
    survey,
    sweep,
    typical,
)
from graphopt.problems.assignment import AssignTask, Pricing
from graphopt.problems.cost_model import CostModel
from graphopt.problems.tasks.fusion import Fusion
from graphopt.problems.tasks.placement import Joint
from graphopt.search.walks.moves import slots_in

# --- Gibbs sampling: its long-run frequencies, exact labels whichever way they are priced, and what is kept of a
# sweep.

CAPS = {"max_ops": 12, "max_inputs": 8, "max_duplicates": 4}


def fusion(device: Device = GPU) -> tuple[Fusion, Simulator]:
    return fusion_on(Machine(name="m", devices=(device,)), **CAPS)


def collected(graph: Graph, task: AssignTask, cost: CostModel, tau: float, sweeps: int) -> list[Samples]:
    slots = slots_in(task, graph)
    around = surroundings(Pricing(graph, task, cost), slots, task.initial(graph))
    rows, rng = np.arange(len(slots)), np.random.default_rng(0)
    return [survey(around, rows)] + [sweep(around, rows, tau, rng, surveyed=True) for _ in range(sweeps)]


# ---- the distribution


@pytest.mark.parametrize("heads", [{"inline": 2}, {"device": 3}], ids=str)
def test_long_run_frequencies_are_those_of_exact_enumeration(heads: dict[str, int]) -> None:
    """p(y) proportional to exp(-cost(y) / tau), over all decisions of five ops."""
    ops, codes, tau = 5, *heads.values(), 0.4
    graph, task = toy_graph(ops, 1), ToyTask(heads)
    cost = ToyCost(graph, codes, pair_weight=1.0, seed=2)
    every = np.array(list(itertools.product(range(codes), repeat=ops)), np.int16)
    weight = np.exp(-cost.totals(every) / tau)
    exact = np.stack([(weight[:, None] * (every == k)).sum(0) for k in range(codes)]) / weight.sum()
    around = FullPrices(Pricing(graph, task, cost), slots_in(task, graph), task.initial(graph))
    rng, rows, visits = np.random.default_rng(0), np.arange(ops), []
    for _ in range(2000):
        sweep(around, rows, tau, rng, surveyed=False)
        visits.append(around.decision[:, 0])
    found = np.stack([(np.stack(visits) == k).mean(0) for k in range(codes)])
    assert np.ptp(exact) > 0.4  # far from uniform
    np.testing.assert_allclose(found, exact, atol=0.04)


def test_impossible_choices_are_never_drawn() -> None:
    rng = np.random.default_rng(0)
    price = np.array([np.inf, 2.0, np.nan, 3.0])
    assert {draw(price, 100.0, rng) for _ in range(200)} == {1, 3}
    assert {draw(price, 1e-9, rng) for _ in range(50)} == {1}


# ---- exact labels


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(2, 60), device=st.sampled_from(DEVICES))
def test_deltas_and_full_prices_give_the_same_samples_to_the_last_digit(seed: int, steps: int, device: Device) -> None:
    graph = random_graph(seed, steps)
    task, cost = fusion(device)
    slots = slots_in(task, graph)
    if not len(slots):
        return
    kinds = [
        type(surroundings(Pricing(graph, task, c), slots, task.initial(graph))) for c in (cost, WithoutFlips(cost))
    ]
    assert kinds == [DeltaPrices, FullPrices]
    tau = typical(collected(graph, task, cost, 1.0, 0)[0].price) or 1.0
    fast, slow = (collected(graph, task, c, tau, 2) for c in (cost, WithoutFlips(cost)))
    for a, b in zip(fast, slow, strict=True):
        for name in ("start", "row", "price", "changed_at", "changed_entry", "changed_to", "evals"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)


def machine_task() -> tuple[AssignTask, CostModel]:
    machine = Machine(name="m", devices=(GPU, GPU), link_bandwidth=20e9)
    task = Joint(name="joint", machine=machine, levels=3, fuse=True, **CAPS)
    return task, Simulator(name="s", machine=machine, objective="runtime", threads=1)


@pytest.mark.parametrize("parts", [fusion, machine_task], ids=["fusion", "joint"])
def test_every_price_is_that_of_the_decision_that_it_belongs_to(parts) -> None:  # type: ignore[no-untyped-def]
    """All choices of every visit, priced again around the decision that the samples say it was."""
    graph, (task, cost) = random_graph(4, 20), parts()
    slots, counts = slots_in(task, graph), [head.count for head in task.heads]
    for samples in collected(graph, task, cost, 2e-6, 1):
        for visit, row in enumerate(samples.row.tolist()):
            decision, (op, head) = samples.decision(visit), (slots.op[row], slots.head[row])
            changed = np.repeat(decision[None], counts[head], 0)
            changed[:, op, head] = np.arange(counts[head])
            priced = cost.price(task.realise(graph, changed)).cost
            np.testing.assert_array_equal(samples.price[visit, : counts[head]], priced)
            assert np.isnan(samples.price[visit, counts[head] :]).all()


def test_samples_follow_the_walk() -> None:
    """Moments are the runs without a change, in order, and the end is where the next sweep begins."""
    graph, (task, cost) = random_graph(4, 60), fusion()
    samples = collected(graph, task, cost, 1e-6, 3)
    assert sum(len(s.changed_at) for s in samples) > 10
    for now, then in itertools.pairwise(samples):
        assert np.array_equal(now.end(), then.start)
    for s in samples:
        runs = s.moments()
        assert [first for first, _ in runs[1:]] == [last for _, last in runs[:-1]]
        assert runs[0][0] == 0 and runs[-1][1] == len(s.row)
        for first, last in runs:
            assert all(np.array_equal(s.decision(v), s.decision(first)) for v in range(first, last))
        assert all(not np.array_equal(s.decision(a), s.decision(b)) for (a, _), (b, _) in itertools.pairwise(runs))
    slots = len(slots_in(task, graph))
    assert [s.evals for s in samples] == [slots] + [2 * slots] * 3


def test_the_typical_size_leaves_out_what_changes_nothing() -> None:
    price = np.array([[5.0, 5.0, np.nan], [5.0, 4.0, 7.0], [5.0, np.inf, 1.0]])
    assert typical(price) == 2.0
    assert typical(price[:1]) == 0.0


# --- Collections on disk: what stands there, going on after a kill, and damaged files.

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


def collection_in(folder: Path, **changes: Any) -> Collection:
    usual: dict[str, Any] = {"folder": str(folder), "chains": ["initial", "random"], "sweeps": 2, "temperature": 1.0,
                             "slots": 100, "surveys": True, "workers": 1}  # fmt: skip
    return Collection(**(usual | changes))


def contents(stores: list[Store], collection: Collection) -> list[dict[str, np.ndarray]]:
    shards = [store.read(name) for store in stores for name in collection.names()]
    return [{key: np.array(value) for key, value in vars(shard).items()} for shard in shards]


def assert_equal(one: list[dict[str, np.ndarray]], other: list[dict[str, np.ndarray]]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for key in a:
            np.testing.assert_array_equal(a[key], b[key], err_msg=key)


def test_what_is_on_disk_is_not_priced_again(tmp_path: Path) -> None:
    collect(GRAPHS, TASK, cost(), collection_in(tmp_path), 3)
    again = cost()
    collect(GRAPHS, TASK, again, collection_in(tmp_path), 3)
    assert again.calls == 2 * 4  # the few decisions that tell cost models apart
    collect(GRAPHS, TASK, again, collection_in(tmp_path, sweeps=3), 3)
    slots = sum(graph.num_ops for graph in GRAPHS)
    assert again.calls == 4 * 4 + 2 * 2 * slots + 2 * 2  # a sweep more of each chain, and its first price


@pytest.mark.parametrize("change", [{"temperature": 2.0}, {"slots": 3}, {"surveys": False}, {"cost": 1}], ids=str)
def test_other_settings_and_prices_are_other_samples(tmp_path: Path, change: dict[str, Any]) -> None:
    priced = ToyCost(GRAPHS[1], 2, seed=change.pop("cost", 0))
    first = collect(GRAPHS[1:], TASK, ToyCost(GRAPHS[1], 2), collection_in(tmp_path), 3)
    second = collect(GRAPHS[1:], TASK, priced, collection_in(tmp_path, **change), 3)
    assert first[0].folder != second[0].folder


@pytest.mark.parametrize(("after", "workers"), [(0, 1), (4, 1), (1, 2)])
def test_a_killed_collection_goes_on_to_the_same_samples(
    tmp_path: Path, after: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = collection_in(tmp_path / "whole")
    expected = contents(collect(GRAPHS, TASK, cost(), whole, 3), whole)
    killed, write, left = collection_in(tmp_path / "killed", workers=workers), Store.write, [after]

    def dying(store: Store, name: str, samples: Samples) -> None:
        left[0] -= 1
        if left[0] < 0:
            (store.folder / f".{name}half").touch()  # what a kill in the middle of writing leaves
            raise KeyboardInterrupt
        write(store, name, samples)

    monkeypatch.setattr(Store, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        collect(GRAPHS, TASK, cost(), killed, 3)
    monkeypatch.setattr(Store, "write", write)
    assert_equal(contents(collect(GRAPHS, TASK, cost(), killed, 3), killed), expected)


@pytest.mark.parametrize("harm", ["flip", "cut", "arrays", "gone"])
def test_a_damaged_shard_is_never_believed_and_made_anew(tmp_path: Path, harm: str) -> None:
    stores = collect(GRAPHS, TASK, cost(), collection_in(tmp_path), 3)
    whole, place = contents(stores, collection_in(tmp_path)), stores[0].path("1-random-0001")
    data = bytearray(place.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
    elif harm == "arrays":
        np.savez(place, price=np.zeros((2, 2)))
        data = bytearray(place.read_bytes())
    place.write_bytes(bytes(data[:-8] if harm == "cut" else data))
    if harm == "gone":
        place.unlink()
    with pytest.raises(UserError, match=r"^samples in .*1-random-0001.npz are damaged \(.*\); the same command"):
        stores[0].read("1-random-0001")
    with (
        contextlib.nullcontext() if harm == "gone" else pytest.warns(UserWarning, match="1-random-0001.npz are damaged")
    ):
        again = collect(GRAPHS, TASK, cost(), collection_in(tmp_path), 3)
    assert_equal(contents(again, collection_in(tmp_path)), whole)


def test_large_graphs_are_visited_in_parts(tmp_path: Path) -> None:
    collection = collection_in(tmp_path, slots=4)
    store = collect([GRAPHS[1]], TASK, cost(), collection, 3)[0]
    rows = [np.unique(store.read(name).row).tolist() for name in collection.names()]
    assert all(len(visited) == 4 for visited in rows) and len({tuple(visited) for visited in rows}) > 1
