"""The order of least memory against brute force, against published optima, and as the simulator prices it."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph
from graphopt.core.machine import Device, Machine
from graphopt.costs.simulator import Simulator
from graphopt.errors import Unsolved
from graphopt.problems.optimizer import solve
from graphopt.problems.problem import Problem
from graphopt.readers.formats.lifetimes import read_lifetimes
from graphopt.search.genetic.brkga import Brkga, Evolution
from graphopt.search.solvers.cpsat import CpSat
from graphopt.search.solvers.exact import Exact
from graphopt.search.solvers.least_memory import Lifetime, optimal_order, peak_of
from graphopt.tasks.scheduling import Scheduling

FILES = ("light_squeezenet", "light_shufflenet", "dnnp_LayerGraphs_bert24_training")
TINY = {  # published optima; the last is ours: its pairs are independent, so the largest tensor alone is needed
    "simple_graph": 70, "diamond_graph": 130, "control_dep_graph": 150, "multi_fanin_output_graph": 110,
    "shared_multi_fanin_output_graph": 60, "pathological_graph": 9,
}  # fmt: skip
ONE = Machine(name="one", devices=(Device(),))


def problem(graph: Graph, evals: int) -> Problem:
    """Orders on one device, priced by the simulator's peak."""
    task = Scheduling(name="s", machine=ONE, levels=16, placement="single", fuse=False, max_ops=64, max_inputs=16,
                      max_duplicates=8)  # fmt: skip
    return Problem(graph, task, Simulator(name="s", machine=ONE, objective="peak_memory", threads=1), evals=evals)


def exact() -> Exact:
    return Exact(name="exact", max_states=100_000, seconds=10.0, workers=1)


def random_lifetimes(rng: np.random.Generator, ops: int) -> list[Lifetime]:
    """Tensors of random sizes, some with many readers, unread, kept or there from the start."""
    found = [Lifetime(int(rng.integers(0, 9)), -1, tuple(sorted(rng.choice(ops, 2, replace=False).tolist())))]
    for op in range(ops):
        for _ in range(int(rng.integers(1, 3))):
            later = np.arange(op + 1, ops)
            readers = rng.choice(later, min(len(later), int(rng.integers(0, 3))), replace=False)
            keep = bool(rng.random() < 0.15)
            found.append(Lifetime(int(rng.integers(0, 9)), op, tuple(sorted(readers.tolist())), keep))
    return found


def peak_step_by_step(order: tuple[int, ...], tensors: list[Lifetime]) -> int:
    """From the definition: at each op, all tensors whose life includes it."""
    at = {op: i for i, op in enumerate(order)}
    lives = []
    for t in tensors:
        first = 0 if t.maker < 0 else at[t.maker]
        last = len(order) if t.keep else max([first, *(at[op] for op in t.readers)])
        lives.append((first, last, t.size))
    return max(sum(size for first, last, size in lives if first <= i <= last) for i in range(len(order)))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(2, 7))
def test_all_orders(seed: int, ops: int) -> None:
    tensors = random_lifetimes(np.random.default_rng(seed), ops)
    before = [{t.maker for t in tensors if op in t.readers} for op in range(ops)]
    peaks = []
    for order in itertools.permutations(range(ops)):
        if all(before[op] <= {-1, *order[:i]} for i, op in enumerate(order)):
            peaks.append(peak_step_by_step(order, tensors))
            assert peak_of(order, tensors) == peaks[-1]
    found = optimal_order(ops, tensors, max_states=10_000)
    assert found.peak == min(peaks) == peak_step_by_step(found.ops, tensors)
    assert sorted(found.ops) == list(range(ops))


def test_too_many_states_is_one_sentence() -> None:
    rng = np.random.default_rng(0)
    tensors = [Lifetime(int(rng.integers(5, 50)), op, (20,)) for op in range(20)]
    tensors += [Lifetime(int(rng.integers(90, 99)), op, ()) for op in range(20)]
    with pytest.raises(Unsolved, match=r"raise algo\.max_states"):
        optimal_order(21, tensors, max_states=20)


def tiny(name: str, folder: Path) -> Graph:
    """An edge with several sinks is one tensor; nothing stays to the end."""
    data = json.loads(check_data("peak_memory/model_opt_native_graphs.json").read_text())[name]
    number = {node: i for i, node in enumerate(data["nodes"])}
    tensors = [
        {"size": e["size"], "producer": number[e["sources"][0]], "consumers": [number[s] for s in e["sinks"]],
         "keep": False} for e in data["edges"]
    ]  # fmt: skip
    path = folder / f"{name}.memory.json"
    path.write_text(json.dumps({"ops": data["nodes"], "tensors": tensors}))
    return read_lifetimes(path)


@pytest.mark.parametrize("name", TINY)
def test_published_tiny_graphs(name: str, tmp_path: Path) -> None:
    """Their rule is ours: a tensor is there from its producer to its last consumer, both included. In the simulator a
    result is allocated when its kernel starts and freed when its last reader has ended; on one device, where one
    kernel runs at a time and what ends goes before what starts, that is the same."""
    solved = problem(tiny(name, tmp_path), evals=1)
    exact().solve(solved)
    assert solved.best_cost == solved.bound == TINY[name]


@pytest.mark.parametrize("name", FILES)
def test_published_graphs(name: str) -> None:
    """As above; `keep` tensors are graph outputs, which stay in the simulator as well."""
    optimum = json.loads(check_data("peak_memory/known.json").read_text())[name]["optimal_peak"]
    graph = read_lifetimes(check_data(f"peak_memory/{name}.json"))
    solved = problem(graph, evals=1)
    exact().solve(solved)
    assert solved.best_cost == solved.bound == optimum


@pytest.mark.parametrize("name", FILES)
def test_published_orders_have_their_published_peaks(name: str) -> None:
    folder = check_data("peak_memory")
    data, known = json.loads((folder / f"{name}.json").read_text()), json.loads((folder / "known.json").read_text())
    tensors = [Lifetime(t["size"], t["producer"], tuple(t["consumers"]), t["keep"]) for t in data["tensors"]]
    published = known[name]["random_orders_peak"][: len(data["random_orders"])]
    assert len(published) > 3 and [peak_of(order, tensors) for order in data["random_orders"]] == published
    assert peak_of(data["optimal_order"], tensors) == known[name]["optimal_peak"]


@pytest.mark.parametrize("name", FILES)
def test_a_search_comes_close_and_never_below(name: str) -> None:
    optimum = json.loads(check_data("peak_memory/known.json").read_text())[name]["optimal_peak"]
    evolution = Evolution(population=50, elites=0.2, mutants=0.1, elite_bias=0.7)
    given_ = problem(read_lifetimes(check_data(f"peak_memory/{name}.json")), 5000)
    found, _ = solve(Brkga(name="brkga", evolution=evolution), given_.graph, given_.task, given_._cost, evals=5000)
    assert optimum <= found.best_cost <= 1.02 * optimum


@pytest.mark.parametrize("name", ["dnnp_LayerGraphs_bert24_training", "light_squeezenet"])
def test_cpsat_proves_published_graphs(name: str) -> None:
    pytest.importorskip("ortools", reason="the solvers extra is not installed")
    optimum = json.loads(check_data("peak_memory/known.json").read_text())[name]["optimal_peak"]
    solved = problem(read_lifetimes(check_data(f"peak_memory/{name}.json")), evals=40)
    CpSat(name="cpsat", seconds=15.0, effort=None, workers=1, lanes=True, max_intervals=9999).solve(solved)
    assert solved.best_cost == solved.bound == optimum
