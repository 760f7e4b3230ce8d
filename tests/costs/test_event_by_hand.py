"""Event simulation against cases worked out by hand, and against plain references."""

import heapq

import numpy as np
import pytest
from cells import simulator
from random_plans import random_graph

from graphopt.core.errors import UserError
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.plan import Plans
from graphopt.core.trace import Trace
from tests.trace_oracle import check_trace


def graph_of(ops: dict[str, tuple[list[str], float, int]], outputs: list[str] = ()) -> Graph:
    """name -> (names read, seconds, bytes of the result). Names without an entry are graph inputs of 100 bytes."""
    b = GraphBuilder("hand")
    tensors = {name: b.tensor((1,), num_bytes=size) for name, (_, _, size) in ops.items()}
    for name, (reads, seconds, _) in ops.items():
        for read in reads:
            if read not in tensors:
                tensors[read] = b.tensor((1,), num_bytes=100, weight=read.startswith("w"))
        b.op("opaque", [tensors[r] for r in reads], [tensors[name]], flops=seconds, name=name)
    for name in outputs:
        b.output(tensors[name])
    return b.build()


def machine_of(devices: int = 2, bandwidth: float = 1.0, latency: float = 0.0, speeds=None, capacity=np.inf,
               **rule) -> Machine:  # fmt: skip
    made = tuple(Device(vector_flops=s, capacity=capacity) for s in speeds or [1.0] * devices)
    return Machine(name="hand", devices=made, link_bandwidth=bandwidth, link_latency=latency,
                   transfer=TransferRule(**rule))  # fmt: skip


def plan_of(graph: Graph, device: dict[str, int], priority: dict[str, float] | None = None) -> Plans:
    devices = np.array([[device.get(name, 0) for name in graph.op_names]], np.int16)
    priorities = np.array([[(priority or {}).get(name, 0.0) for name in graph.op_names]])
    return Plans(graph, devices, priorities, np.zeros((1, graph.num_ops), bool))


def run(machine: Machine, plan: Plans) -> Trace:
    return simulator(machine).simulate(plan)


def starts(trace: Trace, graph: Graph) -> dict[str, float]:
    return dict(zip([graph.op_names[n] for n in trace.kernel_op], trace.kernel_start.tolist()))


def test_chain_across_devices_waits_for_latency_and_bytes():
    graph = graph_of({"a": (["x"], 2, 6), "b": (["a"], 3, 4), "c": (["b"], 1, 1)})
    trace = run(machine_of(bandwidth=2.0, latency=1.0, speeds=[1.0, 3.0]), plan_of(graph, {"b": 1}))
    # a 0-2 on 0; 1 + 6/2 = 4 s of travel; b 6-7 on the faster device; 1 + 4/2 = 3 s back; c 10-11
    assert starts(trace, graph) == {"a": 0.0, "b": 6.0, "c": 10.0}
    assert trace.makespan == 11.0
    assert trace.transfer_start.tolist() == [2.0, 7.0]
    assert trace.transfer_end.tolist() == [6.0, 10.0]


THREE = {"a": (["x"], 1, 1), "b": (["x"], 1, 1), "c": (["x"], 1, 1)}
TWO_SENDS = {"a": (["x"], 1, 4), "b": (["x"], 1, 2), "c": (["x"], 1, 3),
             "ra": (["a"], 1, 1), "rb": (["b"], 1, 1), "rc": (["c"], 1, 1)}  # fmt: skip
READERS = {"ra": 1, "rb": 1, "rc": 1}
URGENT = {"a": 3.0, "b": 1.0, "c": 2.0}
CASES = {  # ops, their devices, their priorities, the machine, and when ops start
    # l 1-5 on 0; a travels 1-3; r 3-5 on 1; r travels 5-6; j 6-7
    "a transfer overlaps with computing": (
        {"a": (["x"], 1, 2), "l": (["a"], 4, 1), "r": (["a"], 2, 1), "j": (["l", "r"], 1, 1)}, {"r": 1}, {}, {},
        {"a": 0.0, "l": 1.0, "r": 3.0, "j": 6.0}),
    # high is ready at 1, while low holds the device until 5: priority inversion
    "nothing is preempted": (
        {"low": (["x"], 5, 1), "gate": (["x"], 1, 1), "high": (["gate"], 1, 1)}, {"gate": 1}, {"low": 0.0, "high": 9.0},
        {"bandwidth": np.inf}, {"low": 0.0, "gate": 0.0, "high": 5.0}),
    "the highest priority first": (THREE, {}, {"b": 2.0}, {"devices": 1}, {"b": 0.0, "a": 1.0, "c": 2.0}),
    "what becomes ready at one time, by priority": (
        {"s": (["x"], 1, 0), "p": (["s"], 2, 1), "q": (["s"], 1, 1)}, {}, {"q": 1.0}, {"devices": 1},
        {"s": 0.0, "q": 1.0, "p": 2.0}),
    # a 0-1, b 1-2, c 2-3; the link takes a 1-5, then by priority c 5-8, then b 8-10
    "a link by priority": (TWO_SENDS, READERS, URGENT, {}, {"ra": 5.0, "rc": 8.0, "rb": 10.0}),
    "a link, first in, first out": (TWO_SENDS, READERS, URGENT, {"order": "fifo"}, {"ra": 5.0, "rc": 8.0, "rb": 10.0}),
    "a link by the op's number on ties": (TWO_SENDS, READERS, {}, {}, {"ra": 5.0, "rb": 7.0, "rc": 10.0}),
    "with an overhead": (TWO_SENDS, READERS, {}, {"lane_overhead": 0.5}, {"ra": 5.0, "rb": 7.5, "rc": 11.0}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_starts_by_hand(name: str) -> None:
    ops, place, priority, machine, expected = CASES[name]
    graph = graph_of(ops)
    found = starts(run(machine_of(**machine), plan_of(graph, place, priority)), graph)
    assert {op: found[op] for op in expected} == expected


def test_first_in_first_out_differs_from_priority_on_a_link():
    graph = graph_of(TWO_SENDS)
    priority = {"a": 3.0, "b": 2.0, "c": 2.5}  # made in the order a, c, b under priority
    plan = plan_of(graph, READERS, priority)
    rank = Plans(graph, plan.device, plan.priority, plan.inline, np.zeros((1, graph.num_tensors, 2)))
    made_b, made_c = graph.output_ptr[1], graph.output_ptr[2]
    rank.transfer[0, made_b, 1] = 1.0  # keys overrule the producer's priority
    assert made_c == made_b + 1
    assert starts(run(machine_of(), plan), graph)["rb"] == 10.0
    assert starts(run(machine_of(), rank), graph)["rb"] == 7.0


def test_a_result_travels_once_per_device_or_once_in_all():
    ops = {"a": (["x"], 1, 4)} | {f"r{i}": (["a"], 1, 0) for i in range(4)}
    graph, place = graph_of(ops), {"r0": 1, "r1": 1, "r2": 2, "r3": 2}
    trace = run(machine_of(3), plan_of(graph, place))
    assert trace.transfer_target.tolist() == [1, 2]
    assert trace.transfer_end.tolist() == [5.0, 5.0]  # two links
    assert run(machine_of(3, lane="source"), plan_of(graph, place)).transfer_end.tolist() == [5.0, 9.0]  # one bus
    once = run(machine_of(3, lane="source", multicast=True), plan_of(graph, place))
    assert (once.transfer_target.tolist(), once.transfer_end.tolist()) == ([-1], [5.0])
    assert once.makespan == 7.0


def test_unlimited_lanes_carry_any_number_at_a_time():
    ops = {"a": (["x"], 1, 4), "b": (["x"], 1, 6)} | {"ra": (["a"], 1, 0), "rb": (["b"], 1, 0)}
    graph, place = graph_of(ops), {"ra": 1, "rb": 1}
    one = run(machine_of(latency=1.0), plan_of(graph, place))
    assert one.transfer_start.tolist() == [1.0, 6.0]  # b waits for the link until a is there
    many = run(machine_of(latency=1.0, lane="unlimited"), plan_of(graph, place))
    assert many.transfer_start.tolist() == [1.0, 2.0]
    assert many.transfer_end.tolist() == [6.0, 9.0]  # 1 + 4, 1 + 6: as if alone
    assert starts(many, graph) == {"a": 0.0, "b": 1.0, "ra": 6.0, "rb": 9.0}


def classical_starts(graph: Graph, place: list[int], urgency: list[float], bandwidth: float, latency: float):
    """DAG scheduling with fixed devices and a priority list: a result is elsewhere latency + bytes / bandwidth after
    its op; whenever a device is idle it starts the most urgent op whose operands are there. Times are positive."""
    ops, end, start = range(graph.num_ops), {}, {}

    def there(n: int, now: float) -> bool:
        for tensor in graph.operands(n).tolist():
            maker = int(graph.producer[tensor])
            if maker >= 0:
                travel = 0.0 if place[maker] == place[n] else latency + graph.tensor_bytes[tensor] / bandwidth
                if maker not in end or end[maker] + travel > now:
                    return False
        return True

    times = {0.0}
    while len(start) < graph.num_ops:
        now = min(times)
        times.remove(now)
        for d in set(place):
            idle = all(end[n] <= now for n in start if place[n] == d)
            ready = [n for n in ops if place[n] == d and n not in start and there(n, now)]
            if idle and ready:
                n = min(ready, key=lambda n: (-urgency[n], n))
                start[n], end[n] = now, now + float(graph.flops[n])
                sent = {latency + float(graph.tensor_bytes[t]) / bandwidth for t in graph.results(n)}
                times |= {end[n], *(end[n] + travel for travel in sent)}
    return start


@pytest.mark.parametrize("seed", range(40))
def test_unlimited_lanes_are_the_classical_model(seed):
    rng = np.random.default_rng(seed)
    ops, made = {}, ["x"]
    for i in range(25):
        reads = rng.choice(made[-8:], min(len(made), 2), replace=False).tolist()
        ops[f"n{i}"] = (reads, float(rng.integers(1, 5)), int(rng.integers(0, 9)))
        made.append(f"n{i}")
    graph, devices = graph_of(ops), int(rng.integers(2, 5))
    place = {name: int(rng.integers(devices)) for name in ops}
    urgency = {name: float(rng.integers(6)) for name in ops}
    plan = plan_of(graph, place, urgency)
    machine = machine_of(devices, bandwidth=2.0, latency=0.5, lane="unlimited")
    trace = run(machine, plan)
    expected = classical_starts(graph, plan.device[0].tolist(), plan.priority[0].tolist(), 2.0, 0.5)
    assert dict(zip(trace.kernel_op.tolist(), trace.kernel_start.tolist())) == expected
    assert check_trace(trace, plan, machine) == []


def test_op_overhead_follows_kernels_that_cost_something():
    graph = graph_of({"a": (["x"], 1, 1), "z": (["a"], 0, 1), "b": (["z"], 1, 1)})
    trace = run(machine_of(1, op_overhead=0.25), plan_of(graph, {}))
    assert starts(trace, graph) == {"a": 0.0, "z": 1.25, "b": 1.25}
    assert trace.makespan == 2.5
    assert simulator(machine_of(1, op_overhead=0.25)).price(plan_of(graph, {})).cost.tolist() == [2.5]


def test_memory_over_time_by_hand():
    graph = graph_of(
        {"a": (["x", "w"], 1, 10), "b": (["a"], 2, 20), "c": (["a"], 1, 5), "d": (["b", "c"], 1, 1)}, ["d"]
    )
    trace = run(machine_of(bandwidth=10.0), plan_of(graph, {"c": 1}))
    # device 0: x 100 to 1, w 100 always. a 0-1, b 1-3, a travels 1-2, c 2-3 on 1, c travels 3-3.5, d 3.5-4.5
    at = {float(t): bytes_D.tolist() for t, bytes_D in zip(trace.memory_time, trace.memory_bytes)}
    assert at == {
        0.0: [100 + 100 + 10, 0],
        1.0: [100 + 10 + 20, 10],  # x freed before b is allocated; the copy of a on 1
        2.0: [100 + 10 + 20, 10 + 5],  # a stays for b, which runs until 3
        3.0: [100 + 20 + 5, 5],  # a freed on both; c being copied to 0
        3.5: [100 + 20 + 5 + 1, 0],  # c freed on 1 when it has been sent
        4.5: [100 + 1, 0],  # the weight and the output stay
    }
    assert trace.peak_bytes.tolist() == [210, 15]


def test_a_plan_over_capacity_is_infinite_and_says_by_how_much():
    graph = graph_of({"a": (["x"], 1, 60), "b": (["a"], 1, 90)})
    for objective in ("runtime", "peak_memory"):
        small = simulator(machine_of(2, capacity=125.0), objective)
        prices = small.price(plan_of(graph, {}))
        assert prices.cost.tolist() == [np.inf]
        assert prices.excess.tolist() == [(160 - 125) / 125]
        fits = small.price(plan_of(graph, {"b": 1}))  # 0: 100 + 60 > 125 still; 1: 60 + 90 > 125
        assert fits.excess.tolist() == [(160 - 125) / 125 + (150 - 125) / 125]
    large = simulator(machine_of(2, capacity=160.0)).price(plan_of(graph, {}))
    assert (large.cost.tolist(), large.excess.tolist()) == ([2.0], [0.0])


@pytest.mark.parametrize("levels", [1, 3, None])
def test_starts_on_one_device_are_those_of_a_plain_heap(levels):
    rng = np.random.default_rng(levels)
    graph = random_graph(rng, 9000)
    inline = graph.category[None] == 1
    many = rng.standard_normal((1, graph.num_ops))
    priority = many if levels is None else rng.integers(0, levels, (1, graph.num_ops)).astype(np.float64)
    trace = run(machine_of(1), Plans(graph, np.zeros((1, graph.num_ops), np.int16), priority, inline))
    found = trace.kernel_op[np.lexsort((trace.kernel_step[:, 0], trace.kernel_start))]
    assert found.tolist() == _heap_order(graph, priority[0])


def _heap_order(graph: Graph, priority: np.ndarray) -> list[int]:
    view = graph.category == 1
    source = np.arange(graph.num_tensors)
    for op in np.flatnonzero(view):
        for tensor in graph.results(op):
            source[tensor] = source[graph.operands(op)[0]]
    reads = [
        {int(source[t]) for t in graph.operands(n) if graph.producer[source[t]] >= 0} for n in range(graph.num_ops)
    ]
    waiting = [len(r) for r in reads]
    readers: dict[int, list[int]] = {}
    for n in np.flatnonzero(~view).tolist():
        for tensor in reads[n]:
            readers.setdefault(tensor, []).append(n)
    ready = [(-priority[n], n) for n in np.flatnonzero(~view).tolist() if waiting[n] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        n = heapq.heappop(ready)[1]
        order.append(n)
        for tensor in graph.results(n):
            for reader in readers.get(tensor, ()):
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    heapq.heappush(ready, (-priority[reader], reader))
    return order


def test_sets_of_ranks_and_heaps_of_keys_order_transfers_alike():
    rng = np.random.default_rng(7)
    graph = random_graph(rng, 6000)
    machine = machine_of(3, bandwidth=3.0)
    priority = rng.standard_normal((1, graph.num_ops))
    device = rng.integers(0, 3, priority.shape).astype(np.int16)
    inline = graph.category[None] == 1
    keys = np.zeros((1, graph.num_tensors, 3))
    made = graph.producer >= 0
    keys[0, made] = priority[0, graph.producer[made]][:, None]
    by_rank, by_key = (run(machine, Plans(graph, device, priority, inline, k)) for k in (None, keys))
    assert by_rank.makespan == by_key.makespan
    assert np.array_equal(by_rank.kernel_start, by_key.kernel_start)
    assert np.array_equal(by_rank.memory_bytes, by_key.memory_bytes)


@pytest.mark.parametrize(("rule", "sentence"), [
    ({"lane": "lnik"}, "transfer.lane is one of link, source, unlimited, not 'lnik'"),
    ({"free": "now"}, "transfer.free is one of end, tick_before"),
    ({"lane": "unlimited", "lane_overhead": 1.0}, "has to be 0"),
    ({"ties": "name"}, "needs order=fifo"),
    ({"ties": "name", "order": "fifo", "op_order": "fifo", "lane": "unlimited"}, "lane=link or lane=source"),
    ({"devices": 63}, "more than 62 devices"),
])  # fmt: skip
def test_machines_that_make_no_sense_are_sentences(rule, sentence):
    with pytest.raises(UserError, match=sentence):
        simulator(machine_of(**rule))
