"""Speed of the event simulator and of HEFT, against a plain pass over the same arrays and another implementation.

`python benchmarks/simulator.py [--quick]` prints JSON lines {"name", "value", "unit", "low", "high", ...}: the median
of several repetitions, with the smallest and the largest. Numbers that are divided come from the same run, interleaved.
Plans: placement by runs of 50 ops, random priorities; names with `/random` place every op at random, which makes about
one transfer per op and is what random-key searches price.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Callable
from statistics import median

import numpy as np
from lines import say
from numba import njit

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.list_schedule import Dependencies, bottom_levels, heft, links
from graphopt.core.machine import Device, Machine
from graphopt.core.plan import Plans
from graphopt.costs.event_arrays import Flow, flow
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.costs.simulator import Simulator


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.thread_time) -> float:
    """CPU seconds of this thread: other work on the machine does not count."""
    start = clock()
    call()
    return clock() - start


def layered_graph(ops: int) -> Graph:
    """Ops that read one to three of the 20 results before them; sizes and FLOP at random."""
    rng = np.random.default_rng(ops)
    b = GraphBuilder(f"layered{ops}")
    results = [b.tensor((1000,))]
    for _ in range(ops):
        near = rng.integers(max(0, len(results) - 20), len(results), rng.integers(1, 4))
        result = b.tensor((int(rng.integers(1, 100_000)),))
        b.op("opaque", [results[i] for i in set(near.tolist())], [result], flops=float(rng.integers(1, 100)))
        results.append(result)
    b.output(results[-1])
    return b.build()


@njit(cache=True)
def plain_pass(flow, device, makespan):  # type: ignore[no-untyped-def]
    """The floor: the longest path of every plan, one visit per op and operand."""
    ends = np.zeros(len(flow.keep))
    for b in range(len(device)):
        last = 0.0
        for n in range(len(flow.is_kernel)):
            if flow.is_kernel[n]:
                end = 0.0
                for e in range(flow.in_ptr[n], flow.in_ptr[n + 1]):
                    end = max(end, ends[flow.in_tensor[e]])
                end += flow.time[n, flow.column[device[b, n]]]
                for tensor in range(flow.out_ptr[n], flow.out_ptr[n + 1]):
                    ends[tensor] = end
                last = max(last, end)
        makespan[b] = last


@njit(cache=True)
def sorted_pass(time_ND, needs, order, end):  # type: ignore[no-untyped-def]
    """The floor of a list schedule: tasks in order, each on the device that is free first for it, without gaps."""
    free = np.zeros(time_ND.shape[1])
    for n in order:
        ready, best, last = 0.0, 0, np.inf
        for e in range(needs.ptr[n], needs.ptr[n + 1]):
            ready = max(ready, end[needs.source[e]])
        for d in range(len(free)):
            at = max(ready, free[d]) + time_ND[n, d]
            if at < last:
                best, last = d, at
        free[best] = end[n] = last


def plans_for(graph: Graph, devices: int, count: int, run: int) -> Plans:
    rng = np.random.default_rng(devices)
    shape = (count, graph.num_ops)
    device = rng.integers(0, devices, (count, -(-graph.num_ops // run)), dtype=np.int16)
    inline = np.broadcast_to(view_inline(graph), shape)
    return Plans(graph, np.repeat(device, run, 1)[:, : graph.num_ops].copy(), rng.random(shape), inline)


def simulator(sizes: list[int], repetitions: int) -> None:
    for ops in sizes:
        graph = layered_graph(ops)
        for devices in (2, 8):
            fast = Device(vector_flops=1e6, contraction_flops=1e6)  # runs of seconds, not of hours
            machine = Machine(name="bench", devices=(fast,) * devices, link_bandwidth=1e11, link_latency=1e-7)
            made = flow(graph, kernel_graph(graph, view_inline(graph), machine.devices), machine.transfer)
            for suffix, run in (("", 50), ("/random", 1)):
                plans = plans_for(graph, devices, max(4, 200_000 // ops), run)
                one_size(f"{ops}/{devices}{suffix}", machine, plans, made, repetitions)


def one_size(label: str, machine: Machine, plans: Plans, made: Flow, repetitions: int) -> None:
    runtime, threads, peak = (
        Simulator(name="s", machine=machine, objective=objective, threads=count)
        for objective, count in (("runtime", 1), ("runtime", 2), ("peak_memory", 1))
    )
    makespan = np.zeros(len(plans))
    calls = [
        lambda: plain_pass(made, plans.device, makespan),
        *(lambda s=s: s.price(plans) for s in (runtime, runtime, threads, peak)),
    ]
    for call in calls:
        call()
    clocks = [time.thread_time, time.thread_time, time.perf_counter, time.perf_counter, time.thread_time]
    rounds = [[seconds(call, clock) for call, clock in zip(calls, clocks)] for _ in range(repetitions)]
    per_op = 1e9 / plans.device.size
    say(f"simulator_floor_ns_per_op/{label}", [r[0] * per_op for r in rounds], "ns")
    say(f"simulator_ns_per_op/{label}", [r[1] * per_op for r in rounds], "ns")
    say(f"simulator_over_floor/{label}", [r[1] / r[0] for r in rounds], "ratio")
    say(f"simulator_peak_memory_ns_per_op/{label}", [r[4] * per_op for r in rounds], "ns")
    say(f"simulator_evals_per_second_2_threads/{label}", [len(plans) / r[3] for r in rounds], "1/s")
    say(f"simulator_two_threads_over_one/{label}", [r[2] / r[3] for r in rounds], "ratio")


def random_tasks(tasks: int, processors: int) -> tuple[np.ndarray, np.ndarray, Dependencies, Machine]:
    """Task costs, processor speeds, dependencies on up to three of the 50 tasks before, unit links."""
    rng = np.random.default_rng(0)
    count = np.minimum(rng.integers(0, 4, tasks), np.arange(tasks))
    source = [rng.choice(np.arange(max(0, n - 50), n), count[n], replace=False) for n in range(tasks)]
    needs = Dependencies(
        np.append(0, np.cumsum(count)).astype(np.int64), np.concatenate(source).astype(np.int32),
        rng.uniform(1, 10, int(count.sum())),
    )  # fmt: skip
    machine = Machine(name="bench", devices=tuple(Device() for _ in range(processors)), link_bandwidth=1.0)
    return rng.uniform(1, 10, tasks), rng.uniform(1, 2, processors), needs, machine


def heft_and_saga(repetitions: int) -> None:
    cost, speed, needs, machine = random_tasks(1000, 4)
    time_ND, works = cost[:, None] / speed, np.ones(len(cost), np.bool_)
    between = links(machine)
    ours = heft(time_ND, works, needs, between)
    end, level = np.empty(len(cost)), bottom_levels(time_ND.mean(1), needs, needs.size)
    calls = [
        lambda: heft(time_ND, works, needs, between),
        lambda: sorted_pass(time_ND, needs, np.argsort(-level, kind="stable"), end),
    ]
    calls[1]()
    rounds = [[seconds(call) for call in calls] for _ in range(10 * repetitions)]
    times = [r[0] for r in rounds]
    say("heft_milliseconds/1000/4", [t * 1e3 for t in times], "ms", {"makespan": ours.makespan})
    say("heft_over_sorted_pass/1000/4", [r[0] / r[1] for r in rounds], "ratio")
    if importlib.util.find_spec("saga") is None:
        print(json.dumps({"name": "heft_speedup_over_saga", "value": None, "unit": "ratio", "reason": "no anrg-saga"}))
        return
    import saga
    from saga.schedulers import HeftScheduler

    names = [f"p{i}" for i in range(4)]
    network = saga.Network.create(
        list(zip(names, speed.tolist())), [(a, b, 1.0) for a in names for b in names if a < b]
    )
    arrows = [
        (f"t{needs.source[e]}", f"t{n}", float(needs.size[e]))
        for n in range(len(cost))
        for e in range(needs.ptr[n], needs.ptr[n + 1])
    ]
    tasks = saga.TaskGraph.create([(f"t{n}", float(c)) for n, c in enumerate(cost)], arrows)
    theirs = [seconds(lambda: HeftScheduler().schedule(network, tasks)) for _ in range(repetitions)]
    makespan = HeftScheduler().schedule(network, tasks).makespan
    say("saga_heft_milliseconds/1000/4", [t * 1e3 for t in theirs], "ms", {"makespan": makespan})
    say("heft_speedup_over_saga", [t / median(times) for t in theirs], "ratio", {"tasks": 1000, "processors": 4})


def large_graph() -> None:
    """Capture of an unrolled training graph of about 80,000 ops, its features, and one forward pass of an encoder."""
    import torch

    from graphopt.graphs.zoo_dataset import capture_model
    from graphopt.learn.encoders.convolutions import GraphSAGE
    from graphopt.learn.encoders.features import graph_features

    clock = time.perf_counter
    made: list[Graph] = []
    spec = {"model": "rnnlm", "layers": 8, "steps": 206, "width": 64, "batch": 4, "backward": True}
    took = seconds(lambda: made.append(capture_model(spec)), clock)
    graph = made[0]
    say("capture_seconds_80k", [took], "s", {"ops": graph.num_ops})
    device = Device(vector_flops=1e13, contraction_flops=6e13, bandwidth=1.5e12, launch=3e-6)
    machines = [Machine(name=f"m{i}", devices=(device, device), link_bandwidth=2e10) for i in range(3)]
    say("features_seconds_80k", [seconds(lambda m=m: graph_features(graph, m), clock) for m in machines], "s")
    encoder = GraphSAGE(name="graphsage", width=64, layers=4, dropout=0.0, aggregation="mean", extra_width=0).eval()
    data = graph_features(graph, machines[0])
    with torch.no_grad():
        passes = [seconds(lambda: encoder(data), clock) for _ in range(4)][1:]
    say("encoder_pass_seconds_80k", passes, "s", {"encoder": "graphsage", "threads": torch.get_num_threads()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 ops only, fewer repetitions, nothing captured")
    quick = parser.parse_args().quick
    simulator([1000] if quick else [1000, 10_000, 80_000], 3 if quick else 7)
    heft_and_saga(2 if quick else 4)
    if not quick:
        large_graph()


if __name__ == "__main__":
    main()
