"""Trace files hold every kernel, transfer and change of memory, in microseconds."""

import json
from itertools import pairwise

import numpy as np

from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.machine import Device, Machine, TransferRule
from graphopt.core.plan import Plans
from graphopt.core.trace import slots, write_trace
from graphopt.costs.simulator import Simulator


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
