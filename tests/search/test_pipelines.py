"""Splits into stages: optima, known splits, and load balance."""

import json
import sys
from itertools import permutations, product

import numpy as np
import pytest
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csgraph

from graphopt.config.construct import construct
from graphopt.core.graph import F64, Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.core.oracles import check
from graphopt.costs.simulator import Simulator
from graphopt.errors import ConfigError, Unsolved
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel
from graphopt.problems.optimizer import solve
from graphopt.problems.task import AssignTask
from graphopt.readers.formats.task_graphs import read_layer_graph
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.search.pipelines.blocks import blocks
from graphopt.search.pipelines.contiguous import USUAL, Contiguous, Effort, best_split
from graphopt.search.pipelines.ideal_split import ideals
from graphopt.search.pipelines.linear_split import add, judge, remove, split_order, topological, window
from graphopt.search.pipelines.load_balance import LoadBalance, loads, readers_of, repaired
from graphopt.search.pipelines.pipeline import Pipeline, pipeline_of
from graphopt.search.walks.moves import slots_of, start_walk
from graphopt.tasks.placement import Placement
from graphopt.utils import registry

# --- Contiguous splits: against all splits of small graphs, and against published optima.

SMALL = Effort(orders=3, max_ideals=10_000, max_steps=10**7)
ORDERS = Effort(orders=40, max_ideals=0, max_steps=0)


def machine(capacity: float = float("inf")) -> Machine:
    """Two devices that pay for transfers and a host that does not, and is slower."""
    fast = Device(capacity=capacity)
    slow = Device(vector_flops=0.4, contraction_flops=0.4, pays_transfers=False)
    return Machine(name="m", devices=(fast, fast, slow), link_bandwidth=10.0, link_latency=0.5)


def random_graph(seed: int, ops: int) -> Graph:
    """Ops of 0 to 8 s with weights, some of them shared; some groups; results of 0 to 60 bytes."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made, shared = [b.tensor((1,), num_bytes=7)], b.tensor((1,), weight=True, num_bytes=5)
    for n in range(ops):
        reads = [made[i] for i in rng.choice(len(made), min(len(made), int(rng.integers(1, 3))), replace=False)]
        own = b.tensor((1,), weight=True, num_bytes=int(rng.integers(1, 20)))
        result = b.tensor((1,), num_bytes=int(rng.choice([0, 10, 60])))
        group = f"group{rng.integers(3)}" if rng.random() < 0.3 else None
        reads += [own] if rng.random() < 0.7 else [shared]
        b.op("opaque", reads, [result], flops=float(rng.choice([0, 0, 2, 5, 8])), name=f"op{n}", together=group)
        made.append(result)
    return b.build()


def place(machine: Machine) -> Placement:
    return Placement(name="p", machine=machine, fuse=False, max_ops=64, max_inputs=16, max_duplicates=8)


def setting(graph: Graph, on: Machine) -> tuple[Pipeline, AssignTask, CostModel]:
    task = place(on)
    return (
        pipeline_of(SchedulingInstance(graph, task)),
        task,
        Simulator(name="s", machine=on, objective="max_load", threads=1),
    )


def price(graph: Graph, task: AssignTask, cost: CostModel, device: np.ndarray) -> F64:
    return cost.price(task.realise(graph, device[..., None].astype(np.int16))).cost


def is_contiguous(graph: Graph, device: np.ndarray) -> bool:
    """Devices can be put in an order in which results go forward only: the definition by chains of ideals."""
    source, target, _ = graph.edges
    pairs = coo_array((np.ones(len(source)), (device[source], device[target])), shape=(3, 3)).toarray()
    np.fill_diagonal(pairs, 0)
    return csgraph.connected_components(pairs, connection="strong")[0] == 3


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 7), tight=st.booleans())
def test_the_best_of_all_contiguous_splits_is_found_and_proved(seed: int, ops: int, tight: bool) -> None:
    graph = random_graph(seed, ops)
    line, task, cost = setting(graph, machine(25.0 if tight else float("inf")))
    every = np.array(list(product(range(3), repeat=ops)))
    leaders = graph.together if len(graph.together) else np.arange(ops)
    every = np.array([row for row in every if (row[leaders] == row).all() and is_contiguous(graph, row)])
    least = float(price(graph, task, cost, every).min())
    split = best_split(line, SMALL, np.random.default_rng(seed))
    assert split.proved
    assert split.load == least
    assert price(graph, task, cost, line.devices(split.device)[None])[0] == split.load
    by_orders = best_split(line, ORDERS, np.random.default_rng(seed))
    assert not by_orders.proved
    assert by_orders.load >= least
    assert price(graph, task, cost, line.devices(by_orders.device)[None])[0] == by_orders.load


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_best_cuts_of_an_order(seed: int) -> None:
    """Any permutation of items, against all cuts and all devices of the runs."""
    graph = random_graph(seed, 6)
    line, task, cost = setting(graph, machine(40.0))
    order = np.random.default_rng(seed).permutation(line.num_items)
    cuts = [(0, i, j, len(order)) for i in range(len(order) + 1) for j in range(i, len(order) + 1)]
    runs = [np.repeat(devices, np.diff(cut)) for devices in permutations(range(3)) for cut in cuts]
    rows = np.empty((len(runs), len(order)), np.int64)
    rows[:, order] = np.array(runs)
    least = float(price(graph, task, cost, np.stack([line.devices(row) for row in rows])).min())
    assert split_order(line.stream, line.kinds, order, np.inf).cost == least
    assert split_order(line.stream, line.kinds, order, least).cost == np.inf  # only what is below the limit


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_a_window_is_what_its_items_cost(seed: int) -> None:
    """Whatever came and went before: the load of the one device that has them; and nothing once it is empty."""
    graph, rng = random_graph(seed, 8), np.random.default_rng(seed)
    idle = Device(vector_flops=1e30, contraction_flops=1e30, pays_transfers=False)  # has the others, at no cost
    on = Machine(name="m", devices=(Device(), idle), link_bandwidth=10.0, link_latency=0.5)
    line, task, cost = setting(graph, on)
    view, inside, load = window(line.stream), set[int](), np.empty(2)
    for item in rng.integers(0, line.num_items, 30).tolist():
        (remove if item in inside else add)(line.stream, view, item)
        inside ^= {item}
        judge(line.kinds, view, load)
        device = np.where(np.isin(np.arange(line.num_items), list(inside)), 0, 1)
        assert load[line.kind[0]] == price(graph, task, cost, line.devices(device)[None])[0]
    for item in inside:
        remove(line.stream, view, item)
    assert not any(np.any(part) for part in view)


def test_ideals_of_a_small_order() -> None:
    """A diamond has six: none, the top, with either side, with both, all."""
    first = coo_array((np.ones(4), ([0, 0, 1, 2], [1, 2, 3, 3])), shape=(4, 4)).tocsr()
    found = ideals(first, 100)
    assert found is not None
    assert found.size.tolist() == [0, 1, 2, 2, 3, 4]
    assert ideals(first, 5) is None
    assert topological(first, np.array([0.0, 2.0, 1.0, 0.0])).tolist() == [0, 2, 1, 3]


def published(name: str) -> tuple[Graph, AssignTask, CostModel, float]:
    on = construct(registry.option("machine", "accelerators6"), "machine")
    graph = read_layer_graph(check_data(f"placement/LayerGraphs_{name}.json"))
    known = json.loads(check_data("placement/known.json").read_text())["max_load_ms"]
    return graph, *setting(graph, on)[1:], known[f"LayerGraphs_{name}"]["dp"]


@pytest.mark.parametrize("name", ["bert24_inference", "bert24_training", "gnmt_inference"])
def test_published_optima_come_out(name: str) -> None:
    graph, task, cost, known = published(name)
    algo = construct(registry.option("algo", "contiguous"), "algo", {})
    problem, _ = solve(algo, graph, task, cost, evals=1)
    assert 1e3 * problem.best_cost == pytest.approx(known, rel=1e-5)
    line = pipeline_of(SchedulingInstance(graph, task))
    assert best_split(line, algo.effort, np.random.default_rng(0)).proved
    orders = best_split(line, ORDERS, np.random.default_rng(0))  # as if there were too many ideals
    assert 1e3 * orders.load <= 1.02 * known


@pytest.mark.parametrize("name", ["bert24_inference", "bert24_training", "gnmt_inference"])
def test_searches_start_from_the_best_split(name: str) -> None:
    graph, task, cost, known = published(name)
    problem = AssignProblem(graph, task, cost, evals=1)
    assert 1e3 * problem.cost_keys(heuristic_keys(problem)[:1])[0] == pytest.approx(known, rel=1e-5)


@pytest.mark.parametrize("algo", ["local", "annealing", "scan", "laf_unguided"])
def test_searches_by_single_moves_start_from_it_too(algo: str) -> None:
    """One evaluation: the split's."""
    graph, task, cost, known = published("gnmt_inference")
    problem, _ = solve(construct(registry.option("algo", algo), "algo", {}), graph, task, cost, evals=1)
    assert 1e3 * problem.best_cost == pytest.approx(known, rel=1e-5)
    assert problem.evals == 1


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), room=st.sampled_from([0.0, 40.0, float("inf")]))
def test_a_walk_starts_from_the_better_of_split_and_default(seed: int, room: float) -> None:
    graph = random_graph(seed, 7)
    line, task, cost = setting(graph, machine(room))
    problem = AssignProblem(graph, task, cost, evals=9)
    walk = start_walk(problem, slots_of(problem), "initial", deltas=False)
    split = best_split(line, USUAL, np.random.default_rng(0))
    assert walk.score == min(problem.initial_cost, split.load)
    assert price(graph, task, cost, walk.decision[None, :, 0])[0] == walk.score
    assert problem.evals == (len(split.device) > 0)
    runtime = AssignProblem(
        graph, task, Simulator(name="s", machine=machine(room), objective="runtime", threads=1), evals=9
    )
    walk = start_walk(runtime, slots_of(runtime), "initial", deltas=False)
    assert np.array_equal(walk.decision, runtime.initial)
    assert runtime.evals == 0


def test_without_evaluations_it_answers_too() -> None:
    graph = random_graph(3, 7)
    line, task, cost = setting(graph, machine())
    problem, _ = solve(Contiguous(name="c", effort=SMALL), graph, task, cost, evals=0)
    assert (
        price(graph, task, cost, problem.best[None, :, 0])[0] == best_split(line, SMALL, np.random.default_rng(0)).load
    )
    runtime = Simulator(name="s", machine=machine(), objective="runtime", threads=1)
    with pytest.raises(Unsolved, match=r"cost\.objective=max_load"):
        solve(Contiguous(name="c", effort=SMALL), graph, task, runtime, evals=1)


def test_what_costs_nothing_beside_its_only_neighbour_stays_with_it() -> None:
    """A start read by one op and an end of another, both of no time: three chains of ideals less."""
    b = GraphBuilder("free")
    x, y, z, end = (b.tensor((1,), num_bytes=10) for _ in range(4))
    b.op("opaque", [b.tensor((1,))], [x], flops=0.0, name="start")
    b.op("opaque", [b.tensor((1,))], [y], flops=1.0, name="one")
    b.op("opaque", [x, y], [z], flops=1.0, name="two")
    b.op("opaque", [y], [end], flops=0.0, name="end")
    line = setting(b.build(), machine())[0]
    found = blocks(line)
    assert found.first.toarray().tolist() == [[0, 1], [0, 0]] or found.first.toarray().tolist() == [[0, 0], [1, 0]]
    tight = setting(b.build(), machine(0.0))[0]
    assert blocks(tight).first.shape == (2, 2)  # no weights: memory cannot run out


# --- Moves of runs: loads against the cost model, repairs, starts, and what comes out on published graphs.

GRAPHS = ("bert24_inference", "bert24_training", "gnmt_inference")
MACHINE = machine(60.0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_loads_are_those_of_the_cost_model(seed: int) -> None:
    graph, rng = random_graph(seed, 12), np.random.default_rng(seed)
    task = place(MACHINE)
    line = pipeline_of(SchedulingInstance(graph, task))
    rows = rng.integers(0, 3, (8, line.num_items))
    load, held = loads(line, readers_of(line), rows)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    plans = task.realise(graph, np.stack([line.devices(row) for row in rows])[:, :, None])
    prices = cost.price(plans)
    fits = (held <= [device.capacity for device in MACHINE.devices]).all(1)
    assert np.where(fits, load.max(1), np.inf).tolist() == prices.cost.tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_repairs_make_plans_fit(seed: int) -> None:
    """All on the first accelerator, over its capacity; the host always has room."""
    graph = random_graph(seed, 20)
    task = place(MACHINE)
    line = pipeline_of(SchedulingInstance(graph, task))
    found = repaired(line, np.zeros(line.num_items, np.int64))
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    assert np.isfinite(cost.price(task.realise(graph, line.devices(found)[None, :, None])).cost[0])


@pytest.mark.parametrize("name", GRAPHS)
def test_published_graphs_go_below_the_best_contiguous_split(name: str) -> None:
    machine = construct(registry.option("machine", "accelerators6"), "machine")
    task, cost = place(machine), Simulator(name="s", machine=machine, objective="max_load", threads=1)
    graph = read_layer_graph(check_data(f"placement/LayerGraphs_{name}.json"))
    known = json.loads(check_data("placement/known.json").read_text())["max_load_ms"][f"LayerGraphs_{name}"]
    algo = construct(registry.option("algo", "load_balance"), "algo", {})
    runs = [solve(algo, graph, task, cost, evals=3000, seed=0)[0] for _ in range(2)]
    assert 1e3 * runs[0].best_cost < known["dp"]
    assert 1e3 * runs[0].best_cost <= 1.005 * known["localSearch"]
    assert runs[0].evals == 3000
    assert check(runs[0].solution().plans, machine) == []
    assert np.array_equal(runs[0].best, runs[1].best)  # nothing depends on the clock


def test_one_evaluation_is_the_best_contiguous_split() -> None:
    graph, task = random_graph(5, 20), place(MACHINE)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    found = [solve(construct(registry.option("algo", name), "algo", {}), graph, task, cost, evals=1)[0].best_cost
             for name in ("load_balance", "contiguous")]  # fmt: skip
    assert found[0] == found[1]


def test_metis_is_asked_for_and_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, task = random_graph(5, 20), place(MACHINE)
    cost = Simulator(name="s", machine=MACHINE, objective="max_load", threads=1)
    algo: LoadBalance = construct(registry.option("algo", "load_balance") | {"starts": ["metis"]}, "algo", {})
    pytest.importorskip("pymetis")
    assert np.isfinite(solve(algo, graph, task, cost, evals=1)[0].best_cost)
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ConfigError, match="pymetis"):
        solve(algo, graph, task, cost, evals=1)
    with pytest.raises(ConfigError, match="starts are some of"):
        construct(registry.option("algo", "load_balance") | {"starts": ["luck"]}, "algo", {})
