"""Plans: oracles that find what is wrong, compact plans, traces; eigenvectors that split graphs."""

import dataclasses
import json
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csgraph, csr_array

from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.oracles import check, kernels
from graphopt.core.plan import Plans, compact, expand, same, sent
from graphopt.core.spectral import DENSE, smallest_eigenvectors
from graphopt.core.trace import slots, write_trace
from graphopt.core.utils import registry
from graphopt.costs.simulator import Simulator
from graphopt.graphs.layered import layered_graph
from graphopt.graphs.regal import in_units
from graphopt.graphs.synthetic import random_graph
from graphopt.problems.assignment import AssignTask
from graphopt.run.config.construct import construct
from tests.trace_oracle import check_trace

# --- Plans: oracles that find what is wrong, compact plans, traces.

# --- The oracles find what is wrong: each rule broken by hand is named.

MACHINE = Machine(name="two", devices=(Device(), Device()), link_bandwidth=8.0)


def small_graph() -> Graph:
    """x -> exp e -> reshape v -> {sum s -> add o, add p}; w -> matmul m(v, w) -> add p; o and p are outputs."""
    b = GraphBuilder("small")
    x, w = b.tensor((4, 4)), b.tensor((4, 4), weight=True)
    e, v, s, m, o, p = (b.tensor((4, 4)) for _ in range(6))
    b.op("exp", [x], [e], flops=3, name="e")
    b.op("reshape", [e], [v], flops=0, name="v")
    b.op("sum", [v], [s], flops=2, name="s")
    b.op("matmul", [v, w], [m], flops=4, name="m")
    b.op("opaque", [s], [o], flops=1, name="o")
    b.op("add", [v, m], [p], flops=1, name="p")
    b.output(o)
    b.output(p)
    return b.build()


def plan(graph: Graph, inline: str = "v", device: str = "") -> Plans:
    flags = np.array([[name in inline for name in graph.op_names]])
    where = np.array([[int(name in device) for name in graph.op_names]], np.int16)
    return Plans(graph, where, np.zeros(flags.shape), flags)


def test_kernels_are_stored_ops_and_all_inlined_ops_they_need():
    graph = small_graph()
    flags = plan(graph, "evm").inline[0].tolist()
    found = {graph.op_names[root]: (sorted(graph.op_names[m] for m in members), len(reads))
             for root, (members, reads) in kernels(graph, flags).items()}  # fmt: skip
    assert found == {"s": (["e", "s"], 1), "o": (["o"], 1), "p": (["e", "m", "p"], 2)}


@pytest.mark.parametrize(
    "inline, complaint",
    [
        ("v", None),
        ("ve", None),
        ("vem", None),
        ("e", "view v is stored"),
        ("vp", "op p makes a graph output and is inlined"),
        ("vo", "opaque op o is inlined"),
        ("vs", "something is inlined into opaque op o"),
    ],
)
def test_illegal_fusion_is_named(inline, complaint):
    wrong = check(plan(small_graph(), inline), MACHINE)
    assert wrong == [] if complaint is None else complaint in wrong


def test_two_heavy_ops_in_one_kernel_are_named():
    b = GraphBuilder("heavy")
    x, y, z = b.tensor((4, 4)), b.tensor((4, 4)), b.tensor((4, 4))
    b.op("sum", [x], [y], name="s")
    b.op("matmul", [y, x], [z], name="m")
    b.output(z)
    assert check(plan(b.build(), "s"), MACHINE) == ["the kernel of m holds 2 reductions and contractions"]


def test_devices_and_priorities_out_of_range_are_named():
    graph = small_graph()
    good = plan(graph)
    far, undefined = good.device.copy(), good.priority.copy()
    far[0, 0], undefined[0, 5] = 2, np.nan
    assert check(Plans(graph, far, good.priority, good.inline), MACHINE) == ["op e is on device 2 of 2"]
    assert check(Plans(graph, good.device, undefined, good.inline), MACHINE) == ["op p has priority nan"]


def test_a_broken_run_is_found():
    graph = small_graph()
    placed = plan(graph, "v", device="mo")
    trace = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1).simulate(placed)
    assert check_trace(trace, placed, MACHINE) == []
    shifted = trace.kernel_start.copy()
    shifted[-1] -= 1
    memory = trace.memory_bytes.copy()
    memory[1, 0] += 4
    broken = {
        "starts too early": replace(trace, kernel_start=shifted),
        "the makespan is": replace(trace, makespan=trace.makespan + 1),
        "on another device": replace(trace, kernel_device=1 - trace.kernel_device),
        "once each": replace(trace, kernel_op=np.roll(trace.kernel_op, 1) * 0),
        "the memory curve": replace(trace, memory_bytes=memory),
        "peaks are": replace(trace, peak_bytes=trace.peak_bytes + 1),
        "is sent before": replace(trace, transfer_start=trace.transfer_start - 2, transfer_end=trace.transfer_end - 2),
        "takes": replace(trace, transfer_end=trace.transfer_end + 1),
        "what was sent": replace(
            trace, transfer_tensor=trace.transfer_tensor[:1] * np.ones_like(trace.transfer_tensor)
        ),
    }
    for complaint, wrong in broken.items():
        assert any(complaint in sentence for sentence in check_trace(wrong, placed, MACHINE)), complaint


def test_a_wrong_order_is_found():
    b = GraphBuilder("order")
    x = b.tensor((1,))
    for name in "abc":
        b.op("opaque", [x], [b.tensor((1,))], flops=1, name=name)
    graph = b.build()
    done = plan(graph, "")
    trace = Simulator(name="s", machine=MACHINE, objective="runtime", threads=1).simulate(done)
    urgent = Plans(graph, done.device, np.array([[0.0, 0.0, 5.0]]), done.inline)
    assert check_trace(trace, urgent, MACHINE) == ["a starts before c on device 0", "b starts before c on device 0"]


# --- Compact plans cost what the plans cost, to the last bit; what they leave out does not matter.

MACHINES = ("gpu2", "gpu4_pcie", "sequential_send")  # the last one sends once for all destinations
TASKS = ("placement_scheduling", "joint", "scheduling", "placement", "fusion")


@cache
def parts(machine: str, task: str) -> tuple[Any, AssignTask, list[Simulator]]:
    made = construct(registry.option("machine", machine), "machine")
    costs = [
        construct(registry.option("cost", "simulator") | {"objective": o, "threads": 1}, "cost", {"machine": made})
        for o in ("runtime", "peak_memory")
    ]
    return made, construct(registry.option("task", task), "task", {"machine": made}), costs


@cache
def graphs() -> tuple[Graph, ...]:
    random = random_graph("watts_strogatz", 40, 1.0, np.random.default_rng(0), "ws")
    return (*(layered_graph(30, np.random.default_rng(s), f"l{s}") for s in range(2)), in_units(random, 2e4, 1.2e7))


def key_made(task: AssignTask, graph: Graph, seed: int, levels: int) -> Plans:
    """A plan of random keys; few levels make many ties."""
    keys = np.random.default_rng(seed).integers(0, levels, (1, task.key_count(graph))) / levels
    return task.realise_keys(graph, keys)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MACHINES), st.sampled_from(TASKS), st.integers(0, 2), st.integers(0, 10**6),
       st.sampled_from((2, 5, 2**24)))  # fmt: skip
def test_compact_plans_cost_the_same(machine: str, task_name: str, which: int, seed: int, levels: int) -> None:
    made, task, costs = parts(machine, task_name)
    plan = key_made(task, graphs()[which], seed, levels)
    stored = compact(plan, made.num_devices)
    again = expand(plan.graph, stored)
    assert check(again, made) == []
    for cost in costs:
        assert cost.price(again).cost[0] == cost.price(plan).cost[0]
    assert same(compact(again, made.num_devices), stored)
    assert all(array.dtype.itemsize <= 2 for array in stored.values())


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("task_name", ["placement_scheduling", "joint"])
def test_what_is_sent_is_what_the_simulator_sends(machine: str, task_name: str) -> None:
    made, task, costs = parts(machine, task_name)
    for seed, graph in enumerate(graphs()):
        plan = key_made(task, graph, seed, 2**24)
        trace = costs[0].simulate(plan)
        found = np.argwhere(sent(graph, plan.device[0], plan.inline[0], made.num_devices))
        pairs = {(int(tensor), int(target)) for tensor, target in found}
        if made.transfer.multicast:
            assert {t for t, _ in pairs} == set(trace.transfer_tensor.tolist())
        else:
            assert pairs == set(zip(trace.transfer_tensor.tolist(), trace.transfer_target.tolist()))


def test_ranks_by_hand() -> None:
    b = GraphBuilder("fork")
    x, y, z, view, out, other = (b.tensor((4,)) for _ in range(6))
    b.op("relu", [x], [y], name="a")
    b.op("relu", [x], [z], name="b")
    b.op("reshape", [y], [view], name="v")
    b.op("add", [view, z], [out], name="c")
    b.op("relu", [z], [other], name="d")
    graph = b.build()
    op = {name: i for i, name in enumerate(graph.op_names)}
    device, inline = np.zeros((1, 5), np.int16), np.zeros((1, 5), bool)
    device[0, [op["c"], op["v"]]], inline[0, op["v"]] = 1, True
    priority = np.zeros((1, 5))
    priority[0, [op[name] for name in "abvcd"]] = 0.5, -3.0, 9.0, 0.5, 7.0
    transfer = np.random.default_rng(0).random((1, graph.num_tensors, 2))
    tensors = {name: int(graph.results(op[name])[0]) for name in "abvcd"}
    transfer[0, tensors["a"], 1], transfer[0, tensors["b"], 1] = 0.9, 0.2
    stored = compact(Plans(graph, device, priority, inline, transfer), 2)
    assert [int(stored["priority"][op[name]]) for name in "abvcd"] == [2, 1, 0, 2, 3]
    assert [int(stored["device"][op[name]]) for name in "abvcd"] == [0, 0, 0, 1, 0]
    ranks = {(int(t), int(d)): int(stored["transfer"][t, d]) for t, d in np.argwhere(stored["transfer"])}
    assert ranks == {(tensors["a"], 1): 2, (tensors["b"], 1): 1}  # the first through the view


def test_plans_without_own_transfers_stay_so() -> None:
    made, task, _ = parts("gpu2", "placement")
    plan = key_made(task, graphs()[0], 3, 10)
    stored = compact(plan, made.num_devices)
    assert "transfer" not in stored and expand(plan.graph, stored).transfer is None
    other = compact(dataclasses.replace(plan, device=1 - plan.device), made.num_devices)
    assert not same(stored, other)


# --- Trace files hold every kernel, transfer and change of memory, in microseconds.


def test_transfers_at_one_time_have_rows_of_their_own(tmp_path):
    """Spans of one row must not overlap, or viewers nest them."""
    b = GraphBuilder("wide")
    x = b.tensor((1,))
    for i in range(6):
        y, z = b.tensor((1,), num_bytes=6 - i), b.tensor((1,))
        b.op("exp", [x], [y], flops=1e-6, name=f"first{i}")
        b.op("opaque", [y], [z], flops=1e-6, name=f"second{i}")
    graph, rule = b.build(), TransferRule(lane="unlimited")
    machine = Machine(name="two", devices=(Device(), Device()), link_bandwidth=1e6, transfer=rule)
    device = np.array([[0, 1] * 6], np.int16)
    plan = Plans(graph, device, np.zeros((1, 12)), np.zeros((1, 12), bool))
    trace = Simulator(name="s", machine=machine, objective="runtime", threads=1).simulate(plan)
    start, end = trace.transfer_start, trace.transfer_end
    most = max(int(((start <= t) & (end > t)).sum()) for t in start)
    assert most == slots(trace).max() + 1 > 1
    write_trace(tmp_path / "run.json", trace, graph, machine)
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    spans = sorted((e["tid"], e["ts"], e["ts"] + e["dur"]) for e in events if e["ph"] == "X")
    assert all(a[0] != b[0] or b[1] >= a[2] - 1e-9 for a, b in pairwise(spans))


def test_events_of_a_two_device_run(tmp_path):
    b = GraphBuilder("two")
    x, y, z = b.tensor((1,)), b.tensor((1,), num_bytes=4), b.tensor((1,), num_bytes=1)
    b.op("exp", [x], [y], flops=2e-6, name="first")
    b.op("opaque", [y], [z], flops=1e-6, name="second")
    b.output(z)
    graph = b.build()
    machine = Machine(name="two", devices=(Device(name="left"), Device(name="right")), link_bandwidth=1e6)
    plan = Plans(graph, np.array([[0, 1]], np.int16), np.zeros((1, 2)), np.zeros((1, 2), bool))
    trace = Simulator(name="s", machine=machine, objective="runtime", threads=1).simulate(plan)
    write_trace(tmp_path / "run.json", trace, graph, machine)
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    rows = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = {(rows[e["tid"]], e["name"], round(e["ts"]), round(e["dur"])) for e in events if e["ph"] == "X"}
    assert spans == {
        ("0 left", "first", 0, 2),
        ("0 -> 1", "first (4 B)", 2, 4),
        ("1 right", "second", 6, 1),
    }
    counters = [(e["name"], round(e["ts"]), e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("bytes on 0 left", 0, 8),  # x and y
        ("bytes on 0 left", 2, 4),
        ("bytes on 0 left", 6, 0),
        ("bytes on 1 right", 0, 0),
        ("bytes on 1 right", 2, 4),
        ("bytes on 1 right", 6, 5),
        ("bytes on 1 right", 7, 1),
    ]
    assert not list(tmp_path.glob("*.partial"))


# --- Eigenvectors of Laplacians against a dense solver, below and above the size from which a sparse one is used.


@pytest.mark.parametrize("ops", [20, 2 * DENSE])
def test_vectors_are_those_of_the_smallest_eigenvalues(ops: int) -> None:
    rng = np.random.default_rng(0)
    weight = np.triu(rng.random((ops, ops)) * (rng.random((ops, ops)) < 0.1), 1) + np.diag(np.ones(ops - 1), 1)
    edges = csr_array(weight + weight.T)
    found = smallest_eigenvectors(edges, 3)
    values, vectors = np.linalg.eigh(csgraph.laplacian(edges, normed=True).toarray())
    np.testing.assert_allclose(np.abs(np.sum(found * vectors[:, :3], 0)), 1.0, atol=1e-6)
    assert values[0] == pytest.approx(0.0, abs=1e-9)


def test_two_parts_with_a_thin_bridge_have_different_signs() -> None:
    block = np.ones((5, 5)) - np.eye(5)
    weight = np.zeros((10, 10))
    weight[:5, :5], weight[5:, 5:], weight[4, 5], weight[5, 4] = block, block, 0.01, 0.01
    side = smallest_eigenvectors(csr_array(weight), 2)[:, 1] > 0
    assert len(set(side[:5].tolist())) == len(set(side[5:].tolist())) == 1 and side[0] != side[9]
