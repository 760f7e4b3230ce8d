"""Heuristics' plans and orders, and lifetimes of results."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from cells import identical, joint, opened, placement, scheduling, simulator
from check_data import check_data
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.readers.formats.task_graphs import read_lifetimes
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import solve
from graphopt.search.heuristics import partition, rules, starts
from graphopt.search.heuristics.expert import Expert, by_layers, cut, layers
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import encode, heuristic_decisions
from graphopt.search.solvers import cpsat
from graphopt.search.solvers.cpsat import CpSat
from graphopt.search.solvers.least_memory import Lifetime, optimal_order, peak_of
from graphopt.search.walks.local import Annealing, LocalSearch

# --- Heuristics: orders against plain versions, partitions on graphs whose best cut is known, plans in keys.


def machine(devices: int, speed: float = 1.0) -> Machine:
    fast = Device(vector_flops=speed, contraction_flops=speed)
    return Machine(name="m", devices=(Device(), *(fast,) * (devices - 1)), link_bandwidth=10.0)


def work_on(graph: Graph, on: Machine) -> rules.SchedulingInstance:
    return rules.SchedulingInstance(graph, joint(on))


def random_graph(seed: int, ops: int) -> Graph:
    """Ops with one or two results of different sizes, some of them graph outputs."""
    rng, b = np.random.default_rng(seed), GraphBuilder("random")
    made = [b.tensor((1,), num_bytes=7)]
    for n in range(ops):
        count = int(rng.integers(1, 3))
        results = [b.tensor((1,), num_bytes=int(rng.integers(1, 50))) for _ in range(count)]
        reads = rng.choice(len(made), min(len(made), int(rng.integers(1, 4))), replace=False)
        b.op("opaque", [made[i] for i in reads], results, flops=float(rng.integers(1, 9)), name=f"op{n}")
        made += results
    b.output(made[-1])
    return b.build()


def plain_memory_greedy(graph: Graph) -> list[int]:
    """The rule read aloud: at every step look at every ready op."""
    ops = range(graph.num_ops)
    left = {t: {n for n in ops if t in graph.operands(n)} for t in range(graph.num_tensors)}
    done: list[int] = []
    while len(done) < graph.num_ops:
        best = None
        for n in set(ops) - set(done):
            if all(graph.producer[t] < 0 or graph.producer[t] in done for t in graph.operands(n)):
                freed = sum(int(graph.tensor_bytes[t]) for t in set(graph.operands(n).tolist())
                            if left[t] == {n} and not graph.is_output[t])  # fmt: skip
                best = min(best or (np.inf, 0), (int(graph.result_bytes[n]) - freed, n))
        done.append(best[1])
        for readers in left.values():
            readers.discard(best[1])
    return done


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 25))
def test_memory_greedy_is_the_plain_version(seed, ops):
    graph = random_graph(seed, ops)
    urgency = rules.order_memory_greedy(work_on(graph, machine(2)), np.zeros(ops, np.int16))
    assert np.argsort(-urgency, kind="stable").tolist() == plain_memory_greedy(graph)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 40))
def test_depth_first_is_a_topological_order_in_which_chains_stay_together(seed, ops):
    graph = random_graph(seed, ops)
    urgency = rules.order_depth_first(work_on(graph, machine(2)), np.zeros(ops, np.int16))
    source, target, _ = graph.edges
    assert len(set(urgency.tolist())) == ops
    assert (urgency[source] > urgency[target]).all()


def cliques(count: int, size: int, seed: int) -> tuple[Graph, list[int]]:
    """Groups of ops that send each other much, in random op order, joined by a little; and the group of every op."""
    rng, b = np.random.default_rng(seed), GraphBuilder("cliques")
    group = rng.permutation(np.repeat(np.arange(count), size)).tolist()
    last: list[list[int]] = [[] for _ in range(count)]
    light = []
    for n, g in enumerate(group):
        heavy, thin = b.tensor((1,), num_bytes=1000), b.tensor((1,), num_bytes=1)
        b.op("opaque", [*last[g], *light[-1:]], [heavy, thin], flops=1.0, name=f"op{n}")
        last[g].append(heavy)
        light.append(thin)
    b.output(light[-1])
    return b.build(), group


@pytest.mark.parametrize("count", [2, 3, 4, 8])
@pytest.mark.parametrize("method", ["spectral", "metis"])
def test_partitions_find_the_groups(count: int, method: str):
    if method == "metis":
        pytest.importorskip("pymetis", reason="the solvers extra is not installed")
    graph, group = cliques(count, 9, seed=count)
    work = work_on(graph, machine(count))
    for kind in ("time", "bytes"):
        device = rules.place_spectral(work, kind) if method == "spectral" else rules.place_metis(work, kind, 0.03)
        assert len(set(zip(group, device.tolist(), strict=True))) == count  # one device for each group
        assert len(set(device.tolist())) == count


@pytest.mark.parametrize("place", [rules.place_blocks, rules.place_spectral])
def test_shares_follow_what_devices_can_do(place):
    """A device that is three times as fast gets three quarters of the time, a larger one more of the bytes."""
    graph, _ = cliques(25, 8, seed=0)
    work = work_on(graph, machine(2, speed=3.0))
    time = work.weight("time")
    assert time[place(work, "time") == 1].sum() / time.sum() == pytest.approx(0.75, abs=0.06)
    roomy = Machine(name="m", devices=(Device(capacity=4e9), Device(capacity=1e9)), link_bandwidth=10.0)
    work = work_on(graph, roomy)
    held = work.weight("bytes")
    assert held[place(work, "bytes") == 0].sum() / held.sum() == pytest.approx(0.8, abs=0.06)


def test_a_large_graph_is_cut_along_its_order_with_few_bytes():
    """Beyond `EXACT` ops the smoothed order cuts no more bytes than equal blocks do."""
    graph = layered_graph(partition.EXACT + 1000, np.random.default_rng(5), "large")
    work = work_on(graph, machine(4))
    upper = work.edges.tocoo()
    cut = [
        upper.data[device[upper.row] != device[upper.col]].sum()
        for device in (rules.place_spectral(work, "time"), rules.place_blocks(work, "time"))
    ]
    assert cut[0] <= cut[1]


def test_every_heuristic_says_a_sound_plan_and_says_it_again():
    graph = layered_graph(80, np.random.default_rng(1), "g")
    for name, heuristic in rules.HEURISTICS.items():
        first, again = (heuristic(work_on(graph, machine(3))) for _ in range(2))
        assert np.array_equal(first.device, again.device) and np.array_equal(first.urgency, again.urgency), name
        assert first.device.min() >= 0 and first.device.max() < 3 and np.isfinite(first.urgency).all(), name
        given_ = opened(graph, joint(machine(3)))
        plan = given_.task.realise_keys(graph, encode(given_, *first)[None])
        runs = ~plan.inline[0]
        assert np.array_equal(plan.device[0][runs], first.device[runs]), name


def test_a_task_is_offered_what_differs_under_it():
    """Orders where devices are fixed, placements where orders are."""
    graph, on = layered_graph(60, np.random.default_rng(2), "g"), machine(2)
    both = len(starts.heuristic_keys(opened(graph, joint(on))))
    for task in (scheduling(on, "blocks"), placement(on)):
        keys = starts.heuristic_keys(opened(graph, task))
        assert 1 < len(np.unique(keys, axis=0)) == len(keys) < both


# --- The order of least memory against brute force, against published optima, and as the simulator prices it.

FILES = ("light_squeezenet", "light_shufflenet", "dnnp_LayerGraphs_bert24_training")
TINY = {  # published optima; the last is ours: its pairs are independent, so the largest tensor alone is needed
    "simple_graph": 70, "diamond_graph": 130, "control_dep_graph": 150, "multi_fanin_output_graph": 110,
    "shared_multi_fanin_output_graph": 60, "pathological_graph": 9,
}  # fmt: skip


def problem_of_memory(name: str, evals: int) -> AssignProblem:
    """A published graph's orders on one device, priced by the simulator's peak."""
    graph = read_lifetimes(check_data(f"peak_memory/{name}.json"))
    return opened(graph, scheduling(identical(1)), "peak_memory", evals)


def optimum_of(name: str) -> int:
    optimum: int = json.loads(check_data("peak_memory/known.json").read_text())[name]["optimal_peak"]
    return optimum


def solver() -> CpSat:
    return CpSat(name="cpsat", seconds=15.0, effort=None, workers=1, lanes=True, max_intervals=9999)


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
    assert found is not None and found.peak == min(peaks) == peak_step_by_step(found.ops, tensors)
    assert sorted(found.ops) == list(range(ops))


def test_too_many_sets_of_ops_are_given_up() -> None:
    rng = np.random.default_rng(0)
    tensors = [Lifetime(int(rng.integers(5, 50)), op, (20,)) for op in range(20)]
    tensors += [Lifetime(int(rng.integers(90, 99)), op, ()) for op in range(20)]
    assert optimal_order(21, tensors, max_states=20) is None


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
    solved = opened(tiny(name, tmp_path), scheduling(identical(1)), "peak_memory", 1)
    solver().solve(solved)
    assert solved.best_cost == solved.bound == TINY[name]


@pytest.mark.parametrize("name", FILES)
def test_published_graphs(name: str) -> None:
    """As above; `keep` tensors are graph outputs, which stay in the simulator as well."""
    solved = problem_of_memory(name, evals=1)
    solver().solve(solved)
    assert solved.best_cost == solved.bound == optimum_of(name)


@pytest.mark.parametrize("name", FILES)
def test_published_orders_have_their_published_peaks(name: str) -> None:
    folder = check_data("peak_memory")
    data, known = json.loads((folder / f"{name}.json").read_text()), json.loads((folder / "known.json").read_text())
    tensors = [Lifetime(t["size"], t["producer"], tuple(t["consumers"]), t["keep"]) for t in data["tensors"]]
    published = known[name]["random_orders_peak"][: len(data["random_orders"])]
    assert len(published) > 3 and [peak_of(order, tensors) for order in data["random_orders"]] == published
    assert peak_of(data["optimal_order"], tensors) == known[name]["optimal_peak"]


@pytest.mark.parametrize("name", ["light_shufflenet", "light_squeezenet"])
def test_the_solver_proves_published_graphs_without_that_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ortools", reason="the solvers extra is not installed")
    monkeypatch.setattr(cpsat, "optimal_order", lambda *_, **__: None)
    solved = problem_of_memory(name, evals=40)
    solver().solve(solved)
    assert solved.best_cost == solved.bound == optimum_of(name)


def test_under_a_plan_of_the_same_kernels_partitions_are_not_made_again() -> None:
    """And what is suggested there is what is suggested by someone who knows nothing yet."""
    graph, task = random_graph(3, 30), joint(machine(2), fuse=True)
    known = rules.SchedulingInstance(graph, task)
    made = rules.HEURISTICS["spectral"](known)
    keys = np.random.default_rng(0).random((1, task.key_count(graph)), np.float32)
    for plan in (task.realise_keys(graph, keys), known.initial):
        under, anew = known.under(plan), rules.SchedulingInstance(graph, task, plan)
        assert (under.kernels is known.kernels) == np.array_equal(plan.inline, known.initial.inline)
        assert np.array_equal(under.initial.device, plan.device)
        for name, heuristic in rules.HEURISTICS.items():
            one, other = heuristic(under), heuristic(anew)
            assert np.array_equal(one.device, other.device) and np.array_equal(one.urgency, other.urgency), name
    assert np.array_equal(rules.HEURISTICS["spectral"](known).device, made.device)


# --- `expert`: layers by their weights, in runs of alike work; and searches that start from the best heuristic.


GPU = Device(name="gpu", vector_flops=1e13, contraction_flops=6e13, bandwidth=1.5e12, launch=3e-6)
FOUR = Machine(name="four", devices=(GPU,) * 4, link_bandwidth=20e9, link_latency=1e-5)
TASK, COST = placement(FOUR), simulator(FOUR)


def recurrent(depth: int, steps: int, *, backward: bool = False) -> tuple[Graph, dict[str, int]]:
    """An unrolled recurrent network: layer l at step t reads layer l - 1 at t and itself at t - 1. With `backward`, ops
    that go back through layers and steps. Also the layer of every op that is no lookup."""
    b, of = GraphBuilder("recurrent", "recurrent"), {}
    table, weights = b.tensor((1000, 64), weight=True), [b.tensor((64, 64), weight=True) for _ in range(depth)]
    state, shown = [b.tensor((8, 64)) for _ in range(depth)], {}
    for t in range(steps):
        index = b.tensor((8,), dtype="int64")
        x = b.tensor((8, 64))
        b.op("gather", [table, index], [x], name=f"lookup{t}")
        for layer in range(depth):
            added, product, x_next = (b.tensor((8, 64)) for _ in range(3))
            b.op("add", [x, state[layer]], [added], name=f"add{layer}_{t}")
            b.op("matmul", [added, weights[layer]], [product], flops=1e9, name=f"product{layer}_{t}")
            b.op("tanh", [product], [x_next], name=f"tanh{layer}_{t}")
            of[f"product{layer}_{t}"] = of[f"tanh{layer}_{t}"] = layer
            state[layer] = x = shown[layer, t] = x_next
    if backward:
        for t in reversed(range(steps)):
            for layer in reversed(range(depth)):
                through, grad = b.tensor((8, 64)), b.tensor((8, 64))
                b.op("mul", [x, shown[layer, t]], [through], name=f"through{layer}_{t}")
                b.op("matmul", [through, weights[layer]], [grad], flops=1e9, name=f"grad{layer}_{t}")
                of[f"grad{layer}_{t}"] = layer
                x = grad
    b.output(x)
    return b.build(), of


@pytest.mark.parametrize("backward", [False, True])
def test_every_step_of_a_layer_is_of_that_layer_and_its_gradients_too(backward: bool) -> None:
    graph, of = recurrent(4, 5, backward=backward)
    found = dict(zip(graph.op_names, layers(graph).tolist(), strict=True))
    assert {name: found[name] for name in of} == of
    assert all(layer == -1 for name, layer in found.items() if name.startswith("lookup"))


def test_alike_layers_get_a_device_each() -> None:
    graph, of = recurrent(4, 5, backward=True)
    device = dict(zip(graph.op_names, by_layers(SchedulingInstance(graph, TASK)).tolist(), strict=True))
    assert {name: device[name] for name in of} == of
    assert {device[f"lookup{t}"] for t in range(5)} == {0}


def test_it_answers_without_a_price_and_with_one_evaluation() -> None:
    graph, _ = recurrent(4, 5)
    unpriced, _ = solve(Expert(name="expert"), graph, TASK, COST, evals=0)
    priced, _ = solve(Expert(name="expert"), graph, TASK, COST, evals=5)
    assert unpriced.evals == 0 and priced.evals == 1
    assert np.array_equal(unpriced.best[:, 0], by_layers(SchedulingInstance(graph, TASK)))
    assert priced.best_cost == min(priced.initial_cost, unpriced.best_cost) < priced.initial_cost


@settings(max_examples=60, deadline=None)
@given(time=st.lists(st.integers(0, 9), max_size=7), parts=st.integers(1, 4))
def test_the_cut_into_runs_is_the_best(time: list[int], parts: int) -> None:
    device = cut(np.array(time, float), parts)
    assert (np.diff(device) >= 0).all() and len(device) == len(time)
    best = min(
        max(sum(time[a:b]) for a, b in itertools.pairwise((0, *ends, len(time))))
        for ends in itertools.combinations_with_replacement(range(len(time) + 1), parts - 1)
    )
    assert max([sum(np.array(time)[device == d]) for d in range(parts)], default=0) == best


@pytest.mark.parametrize("search", [
    LocalSearch(name="hill", start="heuristic", hops=0),
    Annealing(name="annealing", start="heuristic", hot=0.05, cold=0.03),
])  # fmt: skip
def test_a_search_from_the_best_heuristic_bills_them_and_goes_on(search: LocalSearch | Annealing) -> None:
    graph, _ = recurrent(4, 6, backward=True)
    problem = TASK.open(graph, COST, evals=10**6)
    starts = heuristic_decisions(problem)
    best = float(COST.price(TASK.realise(graph, starts)).cost.min())
    assert best < problem.initial_cost and len({row.tobytes() for row in starts}) == len(starts)
    begun, _ = solve(search, graph, TASK, COST, evals=len(starts))
    gone_on, _ = solve(search, graph, TASK, COST, evals=len(starts) + 400)
    assert begun.best_cost == best and gone_on.best_cost <= best
    assert begun.evals == len(starts) and gone_on.evals == len(starts) + 400
